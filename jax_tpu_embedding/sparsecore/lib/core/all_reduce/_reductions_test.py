# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools
import operator

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions


class ReductionsTest(parameterized.TestCase):

  @hypothesis.settings(derandomize=True, deadline=None, max_examples=50)
  @hypothesis.given(
      st.lists(st.booleans(), min_size=1, max_size=5)
      | st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
      st.randoms(use_true_random=False),
  )
  def test_result_is_the_or_in_any_order(self, values, random):
    own = random.randrange(len(values))
    reductions = _reductions.Reductions(own)
    order = list(range(len(values)))
    random.shuffle(order)
    # The own contribution, the first two of the others again.
    for task_id in order + [i for i in order[:2] if i != own]:
      if task_id == own:
        reductions.start(7, values[own])
      else:
        reductions.receive(7, task_id, values[task_id])
    result = reductions.result(7)
    self.assertEqual(result, functools.reduce(operator.or_, values))
    self.assertIs(type(result), type(values[0]))

  def test_heard_is_what_was_contributed_to_the_key_by_round_and_host(self):
    reductions = _reductions.Reductions(1)
    reductions.receive(2, 3, True)
    reductions.receive(2, 3, False, round_number=1)
    reductions.receive(4, 0, True)
    reductions.start(2, False)
    self.assertEqual(
        reductions.heard(2), {(0, 1): False, (0, 3): True, (1, 3): False}
    )

  def test_own_key_is_used_once(self):
    reductions = _reductions.Reductions(0)
    reductions.start(2, True)
    with self.assertRaisesRegex(
        RuntimeError, "sync_key 2 before.*batch_number"
    ):
      reductions.start(2, True)
    reductions.end(2)
    with self.assertRaisesRegex(RuntimeError, "sync_key 2 before"):
      reductions.start(2, True)
    reductions.start(3, True)  # a mistake with one key spoils no other

  def test_late_repetition_is_ignored(self):
    reductions = _reductions.Reductions(0)
    reductions.start(2, True)
    reductions.receive(2, 1, True)
    reductions.end(2)
    reductions.receive(2, 1, True)
    reductions.receive(2, 1, False)  # no contradiction: values are forgotten
    with self.assertRaisesRegex(RuntimeError, "sync_key 2 before"):
      reductions.start(2, True)

  def test_host_that_is_far_ahead_is_refused_and_changes_nothing(self):
    reductions = _reductions.Reductions(0)
    for key in range(_reductions.MAX_AHEAD):
      reductions.receive(key, 1, True)
    with self.assertRaisesRegex(RuntimeError, "Host 1 .* 1024 .* not begun"):
      reductions.receive(_reductions.MAX_AHEAD, 1, True)
    for key in range(_reductions.MAX_AHEAD):
      reductions.start(key, True)
      self.assertEqual(reductions.heard(key), {(0, 0): True, (0, 1): True})
    reductions.receive(_reductions.MAX_AHEAD, 1, True)

  def test_only_recent_keys_are_remembered(self):
    reductions = _reductions.Reductions(0)
    for key in range(_reductions.NUM_REMEMBERED + 1):
      reductions.start(key, True)
      reductions.end(key)
    with self.assertRaisesRegex(RuntimeError, "sync_key 1 before"):
      reductions.start(1, True)
    reductions.start(0, True)

  @parameterized.named_parameters(
      ("another_value_of_one_host", (1, True), (1, False)),
      ("another_value_of_one_host_uint64", (1, 5), (1, 6)),
      ("another_kind", (1, 1), (2, True)),
      ("another_value_in_a_round", (1, True, 3), (1, False, 3)),
  )
  def test_contradiction_is_an_error_from_then_on(self, first, second):
    reductions = _reductions.Reductions(0)
    reductions.receive(4, *first)
    message = (
        f"sync_key 4: {first[1]} by host {first[0]}, then {second[1]} by host"
        f" {second[0]}"
    )
    with self.assertRaisesRegex(RuntimeError, message):
      reductions.receive(4, *second)
    with self.assertRaisesRegex(RuntimeError, message):
      reductions.start(6, True)
    with self.assertRaisesRegex(RuntimeError, message):
      reductions.receive(6, 1, True)

  def test_first_failure_is_kept(self):
    reductions = _reductions.Reductions(0)
    reductions.raise_if_failed()
    reductions.fail("first")
    reductions.fail("second")
    with self.assertRaisesRegex(RuntimeError, "first"):
      reductions.raise_if_failed()


if __name__ == "__main__":
  absltest.main()
