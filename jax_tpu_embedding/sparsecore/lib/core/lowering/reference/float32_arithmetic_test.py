# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import float32_arithmetic
import numpy as np


def _numbers(n=20000):
  """Random bits, so all magnitudes, subnormal numbers, infinities and NaN."""
  rng = np.random.default_rng(0)
  bits = rng.integers(0, 2**32, n, np.uint32)
  numbers = bits.view(np.float32)
  # Magnitudes like each other's, where rounding matters, and small ones.
  numbers[: n // 2] = rng.normal(size=n // 2)
  numbers[: n // 4] *= np.float32(1e-38)
  numbers[:8] = [0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, 3, 7]
  return numbers


def _square_sum(a, b):
  return (a.astype(np.float64) + b.astype(np.float64) ** 2).astype(np.float32)


class Float32ArithmeticTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("add", float32_arithmetic.add, np.add),
      ("divide", float32_arithmetic.divide, np.divide),
      ("add_square", float32_arithmetic.add_square, _square_sum),
      (
          "sqrt",
          lambda a, _: float32_arithmetic.sqrt(a),
          lambda a, _: np.sqrt(a),
      ),
  )
  def test_rounds_like_the_processor(self, function, expected):
    a = _numbers()
    b = np.roll(a, 3)[::-1].copy()
    is_subnormal = (a != 0) & (np.abs(a) < np.finfo(np.float32).tiny)
    self.assertGreater(is_subnormal.sum(), 10)  # which XLA flushes on CPUs
    with jax.enable_x64(True):
      actual = np.asarray(jax.jit(function)(a, b))
    with np.errstate(all="ignore"):
      expected = expected(a, b)
    self.assertEqual(actual.dtype, np.float32)
    both_nan = np.isnan(actual) & np.isnan(expected)
    np.testing.assert_array_equal(
        np.where(both_nan, 0, actual).view(np.uint32),
        np.where(both_nan, 0, expected).view(np.uint32),
    )


if __name__ == "__main__":
  absltest.main()
