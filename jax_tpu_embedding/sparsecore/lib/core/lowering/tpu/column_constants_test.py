# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Constants that differ between columns are computed, bit by bit the same."""

from __future__ import annotations

import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.extend import core
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import column_constants
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
import numpy as np

_FLOATS = np.float32([1.5, 1.5, -0.0, 0.0, np.nan, np.nan, np.inf, 1.5])
_ROWS = {
    "floats": _FLOATS[None],
    "without_rows": _FLOATS,
    "two_runs": np.float32([[1, 1, 1, 2, 2, 2, 2, 2]]),
    "integers": np.int32([[3, -1, 4, 1, 5, 9, 2, 6]]),
    "unsigned": np.uint32([[2**32 - 1, 0, 0, 7]]),
    "booleans": np.array([[True, False, False, True]]),
    "column": np.float32([[1], [2], [2]]),
}


def _rewritten(function, *rows):
  """Results of `function` with its constants computed, and its text."""
  texts = []

  def lower(ctx, *operands):
    name = calls.add_row_function(ctx, "step", function, ctx.avals_in)
    column_constants.compute(ctx, name)
    symbol = ctx.module_context.symbol_table[name]
    texts.append(str(symbol))
    # Only TPUs have tuples: the results of the step, without one.
    (block,) = symbol.regions[0].blocks
    *_, returned = block.operations
    made = returned.operands[0].owner
    values = list(made.operands)
    with mlir.ir.InsertionPoint(returned):
      symbol.attributes["function_type"] = mlir.ir.TypeAttr.get(
          mlir.ir.FunctionType.get(
              [x.type for x in block.arguments], [x.type for x in values]
          )
      )
      func.ReturnOp(values)
    returned.erase()
    made.erase()
    call = func.CallOp(
        [x.type for x in values],
        mlir.ir.FlatSymbolRefAttr.get(name),
        list(operands),
    )
    return call.results

  step_p = core.Primitive("step")
  step_p.multiple_results = True
  step_p.def_abstract_eval(
      lambda *avals: [
          jax.core.ShapedArray(x.shape, x.dtype)
          for x in jax.eval_shape(function, *avals)
      ]
  )
  mlir.register_lowering(step_p, lower)
  results = jax.jit(lambda *rows: step_p.bind(*rows))(*rows)
  (text,) = texts
  return results, text


class TpuColumnConstantsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.version = self.enter_context(
        mock.patch.object(
            libtpu_features, "installed_version", return_value=(0, 0, 50, 1)
        )
    )

  @parameterized.parameters(*_ROWS)
  def test_constant_is_the_same_bits(self, name):
    row = _ROWS[name]
    zero = jnp.zeros(row.shape, row.dtype)
    (found, _), text = _rewritten(lambda x: [jnp.array(row), x], zero)
    self.assertEqual(found.dtype, row.dtype)
    self.assertEqual(np.asarray(found).tobytes(), row.tobytes())
    self.assertIn("stablehlo.iota", text)
    self.assertNotRegex(text, r'dense<[\["]')

  def test_runs_of_equal_columns_are_one_choice(self):
    _, text = _rewritten(
        lambda x: [x * _ROWS["two_runs"]], jnp.ones((1, 8), jnp.float32)
    )
    self.assertLen(re.findall("stablehlo.select", text), 1)

  @parameterized.parameters(np.float32, np.int32)
  def test_numbers_of_columns_are_integers_at_first(self, dtype):
    (found,), text = _rewritten(
        lambda x: [x + lax.broadcasted_iota(dtype, (1, 8), 1)],
        jnp.zeros((1, 8), dtype),
    )
    np.testing.assert_array_equal(found, np.arange(8, dtype=dtype)[None])
    self.assertRegex(text, r"stablehlo.iota.*-> tensor<1x8xi32>")
    self.assertNotRegex(text, r"stablehlo.iota.*-> tensor<1x8xf32>")

  @parameterized.product(
      version=(None, (0, 0, 51)), dtype=(np.float32, np.int32, np.uint32)
  )
  def test_newer_compiler_has_constants_and_no_numbers(self, version, dtype):
    self.version.return_value = version
    (found,), text = _rewritten(
        lambda x: [
            x * np.arange(3, 11, dtype=dtype)
            + lax.broadcasted_iota(dtype, (1, 8), 1)
        ],
        jnp.ones((1, 8), dtype),
    )
    np.testing.assert_array_equal(found, np.arange(3, 19, 2, dtype)[None])
    self.assertNotIn("stablehlo.iota", text)

  def test_equal_columns_stay_a_constant(self):
    _, text = _rewritten(
        lambda x: [x * np.full((1, 8), 2.5, np.float32)], jnp.ones((1, 8))
    )
    self.assertNotIn("stablehlo.iota", text)


if __name__ == "__main__":
  absltest.main()
