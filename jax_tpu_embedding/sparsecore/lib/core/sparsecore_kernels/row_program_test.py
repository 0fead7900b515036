# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs on registers compute what JAX does. No kernel runs here."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import float16_bits
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_program
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_step_programs
import numpy as np

# A program runs once.
jax.config.update("jax_disable_most_optimizations", True)

_LANES, _DIM = 8, 16
_SPECIAL = np.float32(
    [
        0,
        -0.0,
        1,
        -1,
        0.5,
        -2.5,
        3.5,
        1e-30,
        1e30,
        -1e30,
        np.inf,
        -np.inf,
        np.nan,
    ]
    + [255.5, 2**24, -7]
)
_ROW = np.random.default_rng(0).normal(size=(1, _DIM)).astype(np.float32)


def _run(function, *arrays, dim=_DIM, lanes=_LANES):
  """`function` by a program, and by JAX."""
  avals = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arrays]
  with_list = lambda *x: [function(*x)]
  program = row_program.trace(with_list, avals, dim)

  def registers(x):
    x = jnp.asarray(x).reshape(-1)
    if x.size == 1:
      return [jnp.full((lanes,), x[0])]
    x = jnp.pad(x, (0, -x.size % lanes), constant_values=77)
    return list(x.reshape(-1, lanes))

  columns = registers(np.arange(dim, dtype=np.int32))
  columns[-1] = (len(columns) - 1) * lanes + jnp.arange(lanes)
  (result,) = jax.jit(program.run)(
      list(map(registers, arrays)),
      columns,
      list(map(registers, program.constants)),
  )
  expected = np.asarray(function(*map(jnp.asarray, arrays)), np.float64)
  return np.concatenate(result)[: expected.size], expected.reshape(-1)


class FunctionsTest(parameterized.TestCase):

  @parameterized.parameters(
      (lax.cbrt, 4e-7),
      (lax.ceil, 0),
      (lambda x: lax.clamp(-1.0, x, 1.0), 0),
      (lax.exp2, 4e-7),
      (lax.expm1, 4e-7),
      (lax.floor, 0),
      (lambda x: x**3, 2e-7),
      (lambda x: x**-2, 2e-7),
      (lambda x: (jnp.abs(x) < jnp.inf) | lax.is_finite(x), 0),
      (jnp.log, 2e-7),
      (lax.log1p, 4e-7),
      (lax.logistic, 4e-7),
      (lambda x: lax.pow(x, jnp.full_like(x, 2)), 2e-5),
      (lambda x: lax.pow(x, jnp.full_like(x, 3)), 2e-5),
      (lambda x: lax.pow(x, jnp.full_like(x, -0.5)), 2e-5),
      (lambda x: lax.pow(x, jnp.zeros_like(x)), 0),
      (lambda x: lax.reduce_precision(x, 8, 7), 0),
      (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0),
      (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), 0),
      (lax.rsqrt, 2e-7),
      (lax.sign, 0),
      (lax.sqrt, 2e-7),
      (lax.square, 0),
      (lax.tanh, 4e-7),
  )
  def test_is_that_of_jax(self, function, tolerance):
    values = np.random.default_rng(0).normal(size=112).astype(np.float32)
    values = np.concatenate([_SPECIAL, values * 10, values * 1e-3])
    actual, expected = _run(
        function, values[None], dim=values.size, lanes=values.size
    )
    # XLA's functions of tiny and huge numbers have errors of their own.
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-35)

  def test_quotients_by_roots_are_those_of_jax(self):
    numerators = np.float32([0, -0.0, 1e-30, -3, 1e30, np.inf, np.nan])
    # The exponents of half of them are odd.
    squares = np.exp2(np.linspace(-125, 127, 10**5)).astype(np.float32)
    squares = np.concatenate([_SPECIAL, squares])
    for x in numerators:
      actual, expected = _run(
          lambda y: x / jnp.sqrt(y),  # pylint: disable=cell-var-from-loop
          squares[None],
          dim=squares.size,
          lanes=squares.size,
      )
      np.testing.assert_allclose(actual, expected, rtol=6e-7, atol=1e-35)
      zeros = expected == 0
      np.testing.assert_array_equal(
          np.signbit(actual[zeros]), np.signbit(expected[zeros])
      )

  def test_roots_of_tiny_numbers_are_not_negative(self):
    tiny = np.float32(2.0**-126) * np.linspace(1, 4, 16, dtype=np.float32)
    roots, expected = _run(lax.sqrt, tiny[None])
    np.testing.assert_array_less(-1e-37, roots)
    np.testing.assert_array_less(roots, 1.001 * expected)
    inverses, expected = _run(lambda x: 1 / lax.sqrt(x), tiny[None])
    np.testing.assert_array_less(0.4 * expected, inverses)
    np.testing.assert_array_less(inverses, 2.5 * expected)

  def test_quotients_by_one_root_are_those_of_jax(self):
    actual, expected = _run(
        lambda x: x / jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True)), _ROW
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)

  def test_remainder_has_the_sign_of_the_first(self):
    x, y = np.float32([[7, -7, 7, 3]]), np.float32([[3, 3, -2, 5]])

    def of_integers(x, y):
      return lax.rem(x.astype(jnp.int32), y.astype(jnp.int32)) * jnp.ones_like(
          x
      )

    actual, expected = _run(of_integers, x, y, dim=4, lanes=4)
    np.testing.assert_array_equal(actual, expected)
    with self.assertRaisesRegex(subcores.NotTaken, "a remainder of floats"):
      _run(lax.rem, x, y, dim=4, lanes=4)

  def test_every_float16_keeps_its_bits(self):
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits.view(np.float16)
    is_nan = np.isnan(numbers)
    values = np.asarray(float16_bits.to_float32(bits.astype(np.int32)))
    np.testing.assert_array_equal(values[~is_nan], numbers[~is_nan])
    self.assertTrue(np.isnan(values[is_nan]).all())
    back = np.asarray(float16_bits.of_float32(values))
    np.testing.assert_array_equal(back[~is_nan], bits[~is_nan])

  @parameterized.parameters(jnp.bfloat16, jnp.float16)
  def test_rounding_is_that_of_jax(self, dtype):
    bits = np.random.default_rng(0).integers(0, 2**32, 10**5, dtype=np.uint32)
    ties = (bits & ~np.uint32(0xFFFF)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    # Numbers smaller than the smallest normal float32 may count as 0.
    values = values[~(np.abs(values) < 1e-37)]
    expected = jnp.asarray(values).astype(dtype).astype(jnp.float32)
    np.testing.assert_array_equal(
        float16_bits.round_to(values, dtype), expected
    )

  @parameterized.parameters(jnp.bfloat16, jnp.float16)
  def test_rounding_at_random_is_that_of_the_library(self, dtype):
    def rounded(x, seed, row):
      bits = low_precision.random_bits(seed, row, _DIM)
      return low_precision.round_to(x, dtype, bits)

    actual, expected = _run(
        rounded, _ROW * 100, np.uint32(5), np.array([3], np.int32)
    )
    np.testing.assert_array_equal(actual, expected)


class StepsTest(parameterized.TestCase):

  @parameterized.parameters(
      "bfloat16", "choice", "norm", "round", "softmax", "sums"
  )
  def test_steps_for_newer_compilers_run(self, name):
    function, _ = tpu_step_programs.NEWER[name]
    actual, expected = _run(function, _ROW, _ROW[:, ::-1].copy())
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)

  # What XLA's calls refuse.
  @parameterized.parameters(
      "any",
      "argmax",
      "barrier",
      "choice",
      "column",
      "dot",
      "float16",
      "is_finite",
      "long_loop",
      "min",
      "norm_to_a_number",
      "number",
      "round_to_even",
      "sum_to_a_number",
      "while",
  )
  def test_steps_that_calls_refuse_run(self, name):
    function, *_ = tpu_step_programs.REFUSED[name]
    actual, expected = _run(function, _ROW, _ROW[:, ::-1].copy())
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)

  @parameterized.parameters(
      ("cumsum", "cumsum"),
      ("cond", "the operation sin,"),
      ("reverse", "rev"),
      ("sort", "sort"),
      ("halves", r"shape \(1, 8\)"),
      ("leading_zeros", "clz"),
      ("take", r"constant int32\[16\]"),
  )
  def test_others_are_refused_by_name(self, name, message):
    function, *_ = tpu_step_programs.REFUSED[name]
    with self.assertRaisesRegex(subcores.NotTaken, message):
      _run(function, _ROW, _ROW)

  def test_a_branch_is_chosen(self):
    def step(g, w):
      return lax.cond(jnp.max(g) > 0, jnp.tanh, lambda x: x * w, g)

    for sign in (1, -1):
      g = np.abs(_ROW) * np.float32(sign)
      actual, expected = _run(step, g, _ROW)
      np.testing.assert_allclose(actual, expected, rtol=1e-6)

  def test_constant_rows_are_asked_for(self):
    row = np.linspace(1, 2, _DIM, dtype=np.float32)
    actual, expected = _run(lambda g: g * row, _ROW)
    np.testing.assert_allclose(actual, expected)

  def test_columns_that_are_none_do_not_count(self):
    row = _ROW[:, :12]
    for reduce in (jnp.sum, jnp.max, jnp.min, jnp.argmax):
      actual, expected = _run(reduce, row, dim=12)
      np.testing.assert_allclose(actual[:1], expected, rtol=1e-6)

  def test_shapes_of_other_sizes_are_refused(self):
    with self.assertRaisesRegex(
        subcores.NotTaken, r"shape \(16, 16\), which is neither a row of 16"
    ):
      _run(lambda g: jnp.sum(g + g.T, axis=0), _ROW)


if __name__ == "__main__":
  absltest.main()
