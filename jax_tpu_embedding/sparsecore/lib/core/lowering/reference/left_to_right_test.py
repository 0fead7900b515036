# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import left_to_right
import numpy as np


def _fold(lengths, step=lambda total, value: total + value):
  """Totals of random runs, and the runs."""
  rng = np.random.default_rng(0)
  runs = [rng.normal(size=n).astype(np.float32) for n in lengths]
  is_first = np.concatenate([np.arange(n) == 0 for n in lengths])
  values = np.concatenate(runs)
  with jax.enable_x64(True):
    fold = jax.jit(functools.partial(left_to_right.fold_runs, step))
    return np.asarray(fold(values, values, is_first)), runs


class FoldRunsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("one_element", [1]),
      ("singles", [1] * 10),
      ("one_run", [3000]),
      ("uneven", [3, 1, 700, 2, 1, 1, 2000, 2]),
      # More runs of one length than a chunk of the loop takes.
      ("many", [2] * 1500 + [3] * 512 + [1] * 5),
  )
  def test_adds_from_left_to_right(self, lengths):
    totals, runs = _fold(lengths)
    expected = [
        np.full(run.size, functools.reduce(np.add, run), np.float32)
        for run in runs
    ]
    np.testing.assert_array_equal(totals, np.concatenate(expected))

  def test_order_matters_to_the_step(self):
    totals, runs = _fold([4, 2], lambda total, value: 2 * total - value)
    expected = [
        functools.reduce(lambda total, value: 2 * total - value, run)
        for run in runs
    ]
    np.testing.assert_array_equal(totals[[0, 4]], np.float32(expected))


if __name__ == "__main__":
  absltest.main()
