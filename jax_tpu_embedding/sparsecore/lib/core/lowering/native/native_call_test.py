# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.testing import operation_programs
import numpy as np

_PROGRAMS = operation_programs.PROGRAMS
# Their calls are made on several devices too, of arrays.
_OF_ARRAYS = ("lookup", "sum_rows", "update_adagrad", "update_adam")


class NativeCallTest(parameterized.TestCase):

  @parameterized.parameters(
      [n for n, p in _PROGRAMS.items() if p.operation in _OF_ARRAYS]
  )
  def test_call_is_the_same_of_arrays_and_of_operands(self, name):
    program = _PROGRAMS[name]
    expected = program.text("cpu")
    self.assertEqual(expected.count("custom_call"), 1)
    with mock.patch.object(
        table,
        "_native_lowering_rule",
        lambda rule, otherwise: table.lowering_rule(rule),
    ):
      rule = table.lowering_rules(program.operation)["cpu"]
    (eqn,) = jax.make_jaxpr(program.function)(*program.operands).eqns
    primitive = core.Primitive("of_arrays")
    primitive.multiple_results = True
    primitive.def_abstract_eval(
        lambda *operands, **params: [x.aval for x in eqn.outvars]
    )
    mlir.register_lowering(primitive, rule, cacheable=False)

    def function(*operands):
      results = primitive.bind(*operands, **eqn.params)
      return results if eqn.primitive.multiple_results else results[0]

    text = program._replace(function=function).text("cpu")
    self.assertEqual(_without_names(text), _without_names(expected))

  @parameterized.parameters("an_operand", "an_array")
  def test_apply(self, kind):
    seen = []

    def lower(ctx, value):
      operands = native_call.operands_of(ctx, [value])
      result = native_call.apply(lambda x: 2 * x[:3], operands[0])
      seen.append((result.shape, result.dtype, result.ndim, result.size))
      return native_call.values_of([result])

    def traced(ctx, value):
      return native_call.traced(
          lambda operands: [native_call.apply(lambda x: 2 * x[:3], *operands)],
          native_call.operands_of(ctx, [value]),
      )

    primitive = core.Primitive("twice")
    primitive.def_abstract_eval(lambda x: x.update(shape=(3,)))
    mlir.register_lowering(primitive, lower if kind == "an_operand" else traced)
    values = jax.jit(primitive.bind)(np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(values, [0, 2, 4])
    if kind == "an_operand":
      self.assertEqual(seen, [((3,), np.float32, 1, 3)])


def _without_names(text):
  return text.split("\n", 1)[1]


if __name__ == "__main__":
  absltest.main()
