# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A step on vectors is the step, number by number."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import row_function
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import vector_steps
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
import numpy as np

_ONE = jax.core.ShapedArray((1, 1), jnp.float32)


def _row_function(case, table_shape):
  return row_function.row_function(
      case.rule,
      case.static_params,
      table_shape=table_shape,
      min_value=-0.75,
      max_value=0.75,
  )


class TpuVectorsTest(parameterized.TestCase):

  @parameterized.parameters(*update_cases.CASES)
  def test_step_without_columns_is_that_of_one_column(self, name):
    case = update_cases.CASES[name]
    on_vectors = _row_function(case, (8,))
    on_rows = _row_function(case, (8, 1))
    rng = np.random.default_rng(0)
    for _ in range(20):
      # Slots are sums of squares, among others: positive.
      values = rng.normal(size=2 + len(case.rule.slots)).astype(np.float32)
      values[2:] = abs(values[2:])
      values = [*values, *np.float32(case.hyperparameters)]
      expected = on_rows.function(*(jnp.full((1, 1), x) for x in values))
      actual = on_vectors.function(
          *(
              jnp.full(1, x)
              for x in (*values, *map(jnp.float32, on_vectors.constants))
          )
      )
      for found, wanted in zip(actual, expected, strict=True):
        self.assertEqual(found.shape, (1,))
        np.testing.assert_array_equal(found, np.reshape(wanted, 1))

  @parameterized.parameters(*update_cases.CASES)
  def test_function_on_vectors_has_no_shapes_and_no_constants(self, name):
    function = _row_function(update_cases.CASES[name], (8,))
    # Of a length that no constant could have.
    vector = jax.core.ShapedArray((3,), jnp.float32)
    program = jax.make_jaxpr(function.function)(*[vector] * len(function.rows))
    self.assertEmpty(program.consts)
    for eqn in program.eqns:
      self.assertNotIn(eqn.primitive.name, ("broadcast_in_dim", "reshape"))
      for operand in eqn.invars:
        self.assertEqual(operand.aval.shape, (3,), eqn)

  def test_constants_are_told_apart_by_their_bits(self):
    vectors = vector_steps.on_vectors(
        lambda x: [lax.max(x, jnp.float32(0.0)) + 2 * x - 2.0 + (x - (-0.0))],
        [_ONE],
    )
    self.assertEqual(
        [str(x) for x in vectors.constants], ["0.0", "2.0", "-0.0"]
    )

  @parameterized.parameters(
      (lambda x: [jnp.cumsum(x, axis=1)], "it uses cumsum"),
      (lambda x: [x + lax.iota(jnp.float32, 1)], "it uses iota"),
      (lambda x: [jnp.where(x > 0, 1, 2)], "float32 numbers only"),
  )
  def test_other_operations_raise_with_their_name(self, function, message):
    with self.assertRaisesRegex(NotImplementedError, message):
      vector_steps.on_vectors(function, [_ONE])


if __name__ == "__main__":
  absltest.main()
