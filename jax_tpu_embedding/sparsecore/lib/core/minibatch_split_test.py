# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core import minibatch_split

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None
)
hypothesis.settings.load_profile("deterministic")


class BucketTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, 0x286118C966BAFB07, 7),
      (1, 0x655193192EFACAA7, 39),
      (12345, 0x739891B7B6FD0E2E, 46),
      (2147483647, 0xD3A183578274BDAE, 46),
  )
  def test_hashes_are_those_of_the_buffer_format(
      self, stack_row, value, bucket
  ):
    self.assertEqual(minibatch_split.hash_stack_row(stack_row), value)
    self.assertEqual(minibatch_split.bucket_of(stack_row), bucket)

  def test_buckets_are_those_of_the_buffer_format(self):
    self.assertEqual(
        [minibatch_split.bucket_of(stack_row) for stack_row in range(16)],
        [7, 39, 13, 35, 34, 53, 9, 54, 14, 43, 17, 51, 23, 60, 14, 12],
    )


class SplitTest(absltest.TestCase):

  def test_buckets_that_fit_are_one_minibatch(self):
    bits = minibatch_split.split_bits([1] * 64, limit=64)
    self.assertEqual(minibatch_split.minibatches(bits), [range(64)])

  def test_the_worked_example_keeps_two_boundaries(self):
    counts = [int(b in (7, 9, 13, 34)) for b in range(64)]
    bits = minibatch_split.split_bits(counts, limit=2)
    self.assertEqual(
        minibatch_split.minibatches(bits),
        [range(0, 8), range(8, 32), range(32, 64)],
    )

  @hypothesis.given(
      st.lists(st.integers(0, 8), min_size=64, max_size=64),
      st.integers(8, 100),
  )
  def test_minibatches_stay_within_the_limit(self, counts, limit):
    bits = minibatch_split.split_bits(counts, limit)
    minibatches = minibatch_split.minibatches(bits)
    self.assertEqual([b for m in minibatches for b in m], list(range(64)))
    for minibatch in minibatches:
      self.assertLessEqual(sum(counts[b] for b in minibatch), limit)


if __name__ == "__main__":
  absltest.main()
