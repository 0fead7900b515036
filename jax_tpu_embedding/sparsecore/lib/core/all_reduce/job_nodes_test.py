# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import socket
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import process_job

_QUICK = minibatching_node.Timeouts(call_seconds=0.5)


def _is_free(port):
  with socket.socket() as listener:
    try:
      listener.bind(("127.0.0.1", port))
    except OSError:
      return False
  return True


def _reduce():
  """What a process of a job gets, with two nodes that it makes."""
  index, count = jax_private.place_in_job()
  results = []
  nodes = [job_nodes.make_node(), job_nodes.make_node()]
  for node in nodes:
    results.append(node.reduce(1, 1 << index))
  interface = job_nodes.all_reduce_interface_of_job()
  results.append(interface.any_of(1, index == count - 1))
  # The others are where this process expects them until all are done.
  nodes[0].reduce(2, 0)
  return results


def _wait_alone():
  """Process 1 waits for the others, which do not come; its port is free then."""
  index, _ = jax_private.place_in_job()
  if index == 0:
    jax_private.tell_job("jax_tpu_embedding/all_reduce/0/secret", 16 * "x")
    return jax_private.ask_job("done", 60)
  ports = []
  tell = jax_private.tell_job
  with mock.patch.object(
      jax_private,
      "tell_job",
      lambda key, value: (ports.append(value), tell(key, value)),
  ):
    try:
      job_nodes.make_node(timeouts=_QUICK)
    except TimeoutError as error:
      message = str(error)
  (address,) = ports
  tell("done", message)
  return _is_free(int(address.rpartition(":")[2]))


class JobNodesTest(parameterized.TestCase):

  @parameterized.parameters(2, 5)
  def test_processes_find_each_other(self, count):
    job = process_job.ProcessJob(
        self, _reduce, num_processes=count, num_devices=count
    )
    everyone = (1 << count) - 1
    self.assertEqual(job.results(), count * [[everyone, everyone, True]])

  def test_who_does_not_come_is_waited_for_so_long(self):
    job = process_job.ProcessJob(
        self, _wait_alone, num_processes=2, num_devices=2
    )
    message, is_free = job.results()
    self.assertRegex(
        message, "Process 0 of 2 .* which is 1: .* no node in 0.5 s.*one order"
    )
    self.assertTrue(is_free)

  def test_one_process_needs_no_job(self):
    interface = job_nodes.all_reduce_interface_of_job()
    self.assertEqual(interface.bitwise_or(1, 6), 6)

  def test_several_processes_need_a_job(self):
    with (
        mock.patch.object(jax, "process_count", lambda: 3),
        self.assertRaisesRegex(RuntimeError, "one of 3 .*distributed.init"),
    ):
      job_nodes.all_reduce_interface_of_job()

  def _arguments(self, index, coordinator, **options):
    """What a process of two makes its node of, and what it tells the other."""
    told = {}
    asked = []

    def ask(key, timeout_seconds):
      self.assertEqual(timeout_seconds, 120)
      asked.append(key)
      return "asked"

    with (
        mock.patch.object(jax_private, "place_in_job", lambda: (index, 2)),
        mock.patch.object(
            jax_private, "coordinator_of_job", lambda: coordinator
        ),
        mock.patch.object(jax_private, "tell_job", told.__setitem__),
        mock.patch.object(jax_private, "ask_job", ask),
        mock.patch.object(minibatching_node, "MinibatchingNode") as node,
    ):
      job_nodes.make_node(**options)
      peers = node.call_args.args[2](77)
    self.assertEqual(peers, ["asked"])
    told = {key.rpartition("/")[2]: value for key, value in told.items()}
    asked = [key.rpartition("/")[2] for key in asked]
    return node.call_args.kwargs, told, asked

  @parameterized.parameters(
      ("localhost:123", "localhost:77", ["127.0.0.1"]),
      ("127.0.0.1:123", "127.0.0.1:77", ["127.0.0.1"]),
      # Found by its name, wherever that leads on the machine itself.
      ("node7.cluster:123", "node7.cluster:77", ["::"]),
      ("10.1.2.3:123", "10.1.2.3:77", ["::"]),
      ("[2001:db8::1]:123", "[2001:db8::1]:77", ["::"]),
  )
  def test_the_first_process_is_where_the_coordinator_is(
      self, coordinator, address, listen_addresses
  ):
    options, told, asked = self._arguments(0, coordinator)
    self.assertEqual(told["0"], address)
    self.assertEqual(asked, ["secret", "1"])
    self.assertContainsSubset(listen_addresses, options["listen_addresses"])
    self.assertLen(told["secret"], 64)

  def test_others_are_where_they_reach_the_coordinator_from(self):
    options, told, asked = self._arguments(1, "localhost:123")
    self.assertEqual(told, {"1": "127.0.0.1:77"})
    self.assertEqual(asked, ["secret", "0"])
    self.assertIn("127.0.0.1", options["listen_addresses"])
    self.assertEqual(options["secret"], "asked")

  @parameterized.parameters(0, 1)
  def test_name_that_is_a_loopback_address_on_the_machine_itself(self, index):
    find = socket.getaddrinfo
    with mock.patch.object(
        socket,
        "getaddrinfo",
        lambda host, *args, **kwargs: find(
            "127.0.1.1" if host == "node7" else host, *args, **kwargs
        ),
    ):
      options, told, _ = self._arguments(index, "node7:123")
    self.assertEqual(told[str(index)], "node7:77")
    self.assertEqual(options["listen_addresses"], ["::"])

  def test_a_secret_that_is_given_is_not_told(self):
    secret = 16 * "x"
    with mock.patch.dict(
        os.environ, {minibatching_node.SECRET_VARIABLE: secret}
    ):
      options, told, asked = self._arguments(0, "localhost:1")
      self.assertEqual(options["secret"], secret)
      self.assertEqual((list(told), asked), (["0"], ["1"]))
    options, told, _ = self._arguments(0, "localhost:1", secret=16 * "y")
    self.assertEqual(options["secret"], 16 * "y")
    self.assertEqual(list(told), ["0"])


if __name__ == "__main__":
  absltest.main()
