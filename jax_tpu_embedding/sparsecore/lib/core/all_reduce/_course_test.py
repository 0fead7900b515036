# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses
import functools
import operator
import random

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _course
from jax_tpu_embedding.sparsecore.lib.core.testing import simulated_agreement

_NETWORK = simulated_agreement.Network(
    work=1e-4, min_delay=5e-5, max_delay=5e-3, percent_lost=5
)
# Where none of a thousand hosts loses patience.
_BETTER = dataclasses.replace(_NETWORK, percent_lost=1)
# Where nothing is lost, so that nothing is sent twice.
_SAFE = simulated_agreement.Network(work=1e-4, max_delay=5e-3)


def _bits(n, rng):
  """A value for each of n hosts, most of them with a bit of their own."""
  return [1 << rng.randrange(64) if rng.random() < 0.8 else 0 for _ in range(n)]


class CourseTest(parameterized.TestCase):

  def assert_all_have_the_or(self, hosts, values):
    expected = functools.reduce(operator.or_, values)
    self.assertEqual([host.result for host in hosts], [expected] * len(hosts))

  @parameterized.parameters(1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 100)
  def test_every_host_has_the_or_of_all(self, n):
    for seed in range(20):
      rng = random.Random(seed)
      values = _bits(n, rng)
      # Each host in turn is the only one with a value.
      if seed < 8:
        values = [0] * n
        values[seed * n // 8] = 1
      hosts = simulated_agreement.reduce(values, rng, _NETWORK)
      self.assert_all_have_the_or(hosts, values)

  def test_any_host_may_be_late_or_not_know_the_others(self):
    for seed in range(200):
      rng = random.Random(seed)
      n = rng.randrange(2, 40)
      values = _bits(n, rng)
      hosts = simulated_agreement.reduce(
          values,
          rng,
          _NETWORK,
          # Some for longer than hosts are patient.
          starts={i: rng.uniform(0, 2) for i in range(0, n, 3)},
          strangers=rng.sample(range(n), k=rng.choice([0, 0, 1, n // 2])),
      )
      self.assert_all_have_the_or(hosts, values)

  def test_1024_hosts_send_ten_messages_each(self):
    rng = random.Random(0)
    values = _bits(1024, rng)
    hosts = simulated_agreement.reduce(values, rng, _SAFE)
    self.assert_all_have_the_or(hosts, values)
    self.assertEqual({host.num_sent for host in hosts}, {10})
    self.assertEqual({host.num_received for host in hosts}, {10})

  def test_1024_hosts_over_a_network_that_loses_messages(self):
    rng = random.Random(1)
    values = _bits(1024, rng)
    hosts = simulated_agreement.reduce(values, rng, _BETTER)
    self.assert_all_have_the_or(hosts, values)
    self.assertGreater(max(host.num_sent for host in hosts), 10)
    self.assertLessEqual(max(host.num_sent for host in hosts), 2 * 10)

  @parameterized.parameters((4, 3), (5, 3), (8, 3), (9, 4), (16, 4))
  def test_more_than_four_hosts_talk_in_rounds(self, n, num_messages):
    hosts = simulated_agreement.reduce([True] * n, random.Random(0), _SAFE)
    self.assertEqual({host.num_sent for host in hosts}, {num_messages})

  def test_one_host_that_does_not_know_the_others_makes_all_tell_everyone(self):
    hosts = simulated_agreement.reduce(
        [False] * 8, random.Random(0), _SAFE, strangers=[3]
    )
    self.assert_all_have_the_or(hosts, [False] * 8)
    self.assertEqual(hosts[3].num_sent, 7)
    self.assertGreaterEqual(min(host.num_sent for host in hosts), 7)

  def test_missing_is_the_source_of_the_round_until_everyone_is_told(self):
    course = _course.Course(1, 8, frozenset(range(8)))
    heard = {(_course.EVERYONE, 1): False}
    self.assertEqual(
        course.advance(heard),
        [_course.Message(round_number=1, to=2, value=False)],
    )
    self.assertEqual(course.missing(heard), [0])
    heard[1, 0] = True
    self.assertEqual(
        course.advance(heard),
        [_course.Message(round_number=2, to=3, value=True)],
    )
    self.assertEqual(course.missing(heard), [7])
    course.tell_everyone()
    # Its own value, as those understand who know of no rounds.
    self.assertEqual(
        course.advance(heard),
        [_course.Message(round_number=_course.EVERYONE, to=None, value=False)],
    )
    self.assertEqual(course.missing(heard), [0, 2, 3, 4, 5, 6, 7])
    self.assertEmpty(course.advance(heard))
    # Either way ends it.
    by_rounds = heard | {(2, 7): False, (3, 5): False}
    course.advance(by_rounds)
    self.assertEmpty(course.missing(by_rounds))
    by_everyone = heard | {(_course.EVERYONE, i): False for i in range(8)}
    self.assertEmpty(course.missing(by_everyone))


if __name__ == "__main__":
  absltest.main()
