# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import sorted_sums
import numpy as np


def _sum(terms, segments, num_segments):
  run = jax.jit(
      functools.partial(sorted_sums.segment_sum, num_segments=num_segments)
  )
  return np.asarray(run(terms, np.int32(segments)))


def _terms(n):
  return np.float32(np.random.default_rng(n).normal(size=(n, 3)))


class SegmentSumTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("none_at_all", [], 3),
      ("one_term", [0], 1),
      ("no_term", [9, 9], 3),
      ("one_segment", [1] * 37, 3),
      ("in_any_order", [4, 0, 2, 2, 4, 9, 4, 0, 7, 4, 4, 9], 8),
  )
  def test_is_the_sum(self, segments, num_segments):
    terms = _terms(len(segments))
    expected = np.zeros((10, 3))
    np.add.at(expected, segments, np.float64(terms))
    np.testing.assert_allclose(
        _sum(terms, segments, num_segments),
        expected[:num_segments],
        atol=1e-5,
    )

  def test_bits_do_not_depend_on_other_segments(self):
    terms = _terms(33)
    alone = _sum(terms, [0] * 33, 1)[0]
    # Others before it, behind it and in between.
    mixed = np.repeat(terms, 3, axis=0)
    among_others = _sum(mixed, [0, 1, 2] * 33, 3)
    np.testing.assert_array_equal(among_others, [alone] * 3)

  def test_nan_stays_in_its_segment(self):
    terms = _terms(4)
    terms[1] = np.nan
    sums = _sum(terms, [0, 1, 1, 2], 3)
    np.testing.assert_array_equal(np.isnan(sums[:, 0]), [False, True, False])


if __name__ == "__main__":
  absltest.main()
