# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What no primitive's own test sees of utils.py."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

# Shape, dimensions, and the shape without trailing ones.
_SQUEEZED = (
    ((6, 1), 1, (6,)),
    ((6, 1, 1), 1, (6,)),
    ((6, 1, 1), 2, (6, 1)),
    ((1, 1), 0, ()),
    ((6, 1), 2, (6, 1)),
    ((6,), 2, (6,)),
    ((6, 2), 1, (6, 2)),
    ((1, 6), 1, (1, 6)),
)


def _function(*shapes):
  """A function of int32 arrays in a module of its own."""
  context = mlir.make_ir_context()
  with context, mlir.ir.Location.unknown(context):
    module = mlir.ir.Module.create()
    int32 = mlir.ir.IntegerType.get_signless(32)
    types = [mlir.ir.RankedTensorType.get(shape, int32) for shape in shapes]
    with mlir.ir.InsertionPoint(module.body):
      function = func.FuncOp("main", (types, types))
    function.add_entry_block()
  return module, function


class SqueezeTest(parameterized.TestCase):

  @parameterized.parameters(*_SQUEEZED)
  def test_aval_drops_trailing_ones(self, shape, ndim, expected):
    aval = utils.maybe_squeeze_abstract_eval(
        jax.core.ShapedArray(shape, jnp.int32), ndim
    )
    self.assertEqual((aval.shape, aval.dtype), (expected, jnp.int32))

  @parameterized.parameters(*_SQUEEZED)
  def test_value_drops_trailing_ones(self, shape, ndim, expected):
    module, function = _function(shape)
    (argument,) = function.entry_block.arguments
    with module.context, mlir.ir.Location.unknown():
      with mlir.ir.InsertionPoint(function.entry_block):
        value = utils.maybe_squeeze_ir(argument, ndim)
    result = mlir.ir.RankedTensorType(value.type)
    self.assertEqual(
        (tuple(result.shape), str(result.element_type)), (expected, "i32")
    )
    operations = [op.name for op in function.entry_block.operations]
    self.assertEqual(
        operations, ["stablehlo.reshape"] * (shape != expected), module
    )


class ToValueSequenceTest(absltest.TestCase):

  def test_values_are_in_their_order(self):
    _, function = _function((1,), (2,), (3,))
    one, two, three = function.entry_block.arguments
    for values, expected in (
        (one, [one]),
        ([one, two], [one, two]),
        ([one, (two, three)], [one, two, three]),
        (((three,), [], one), [three, one]),
        ((), []),
    ):
      result = utils.to_value_sequence(values)
      self.assertIsInstance(result, tuple)
      self.assertEqual(list(result), expected)


class EnsureTest(parameterized.TestCase):

  @parameterized.parameters(
      lambda x: utils.ensure_dtype(x, jnp.float32, "table"),
      utils.ensure_table_dtype,
      lambda x: utils.ensure_dim(x, 2, "table"),
  )
  def test_every_check_refuses_a_ref(self, check):
    array = jnp.ones((8, 8))
    check(jax.typeof(array))
    with self.assertRaisesRegex(TypeError, "table must be an array, got"):
      check(jax.typeof(jax.new_ref(array)))


if __name__ == "__main__":
  absltest.main()
