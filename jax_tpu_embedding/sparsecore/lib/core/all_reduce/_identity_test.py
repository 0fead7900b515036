# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity

_OWN = _identity.Identity(task_id=0, num_tasks=3, instance_id="own")
_OTHER = _identity.Identity(task_id=1, num_tasks=3, instance_id="other")


class IdentityTest(parameterized.TestCase):

  def test_metadata_round_trip(self):
    self.assertEqual(_identity.Identity.from_metadata(_OWN.to_metadata()), _OWN)

  @parameterized.parameters([None], [()], [[("user-agent", "x")]])
  def test_no_metadata_is_no_identity(self, metadata):
    self.assertIsNone(_identity.Identity.from_metadata(metadata))

  def test_another_version_is_known_by_its_number_alone(self):
    identity = _identity.Identity.from_metadata(
        (("jte-protocol-version", "9"),)
    )
    self.assertEqual(identity.protocol_version, 9)

  def test_each_node_is_another_instance(self):
    self.assertNotEqual(
        _identity.Identity(task_id=0, num_tasks=1),
        _identity.Identity(task_id=0, num_tasks=1),
    )


class RosterTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("baseline", {}, None),
      (
          "version",
          dict(protocol_version=9),
          "at a:1 speaks version 9 .* this host version 2.*same release",
      ),
      ("num_tasks", dict(num_tasks=2), "task_id 1.* expects 2 .* this host 3"),
      ("task_id", dict(task_id=0), "at a:1 has the same task_id: task_id 0"),
      (
          "itself",
          dict(task_id=0, instance_id="own"),
          "at a:1 is this host itself.*lists the other hosts",
      ),
      (
          "restarted",
          dict(instance_id="again"),
          "Host 1 at a:1 is not the process.* it restarted.*Restart all hosts",
      ),
  )
  def test_hosts_that_do_not_fit_are_named(self, change, message):
    roster = _identity.Roster(_OWN)
    roster.admit(_OTHER, seen_at="b:2", address="b:2")
    changed = dataclasses.replace(_OTHER, **change)
    if message is None:
      roster.admit(changed, seen_at="a:1")
    else:
      with self.assertRaisesRegex(RuntimeError, message):
        roster.admit(changed, seen_at="a:1")

  def test_who_calls_decides_nothing(self):
    roster = _identity.Roster(_OWN)
    roster.admit(
        dataclasses.replace(_OTHER, instance_id="strange"), seen_at="a:1"
    )
    roster.admit(_OTHER, seen_at="b:2", address="b:2")

  def test_two_addresses_of_one_host_are_an_error(self):
    roster = _identity.Roster(_OWN)
    roster.admit(_OTHER, seen_at="a:1", address="a:1")
    roster.admit(_OTHER, seen_at="a:1", address="a:1")
    with self.assertRaisesRegex(
        RuntimeError, "a:1 and b:2 lead to the same host, with task_id 1"
    ):
      roster.admit(_OTHER, seen_at="b:2", address="b:2")

  def test_hosts_that_do_not_say_who_they_are_go_unchecked(self):
    _identity.Roster(_OWN).admit(None, seen_at="a:1", address="a:1")

  def test_describe_names_the_address_once_it_is_known(self):
    roster = _identity.Roster(_OWN)
    self.assertEqual(roster.describe(1), "host 1")
    roster.admit(_OTHER, seen_at="a:1", address="a:1")
    self.assertEqual(roster.describe(1), "host 1 at a:1")


if __name__ == "__main__":
  absltest.main()
