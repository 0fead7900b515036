# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.primitives import optimizers_computation
import numpy as np


def _lower(add, dim):
  """The text of a module whose only operation adds a function."""
  primitive = core.Primitive("adds_a_function")
  primitive.def_abstract_eval(lambda x: x)

  def rule(ctx, x):
    name = add(ctx, "step", dim)
    assert name == "step", name
    return [x]

  mlir.register_lowering(primitive, rule)
  return jax.jit(primitive.bind).lower(np.float32(1)).as_text()


class OptimizersComputationTest(parameterized.TestCase):

  @parameterized.parameters(
      (optimizers_computation.sgd, 3, 1, {"subtract", "multiply"}),
      (
          optimizers_computation.adagrad,
          4,
          2,
          {"subtract", "multiply", "divide", "sqrt", "add"},
      ),
  )
  def test_adds_a_function_of_rows(
      self, add, num_arguments, num_results, operations
  ):
    text = _lower(add, dim=6)
    function = re.search(
        r"func.func private @step\((.*?)\) -> \(?tuple<(.*?)>\)? \{(.*?)\n  \}",
        text,
        re.DOTALL,
    )
    self.assertIsNotNone(function, text)
    arguments, results, body = function.groups()
    self.assertEqual(arguments.count("tensor<1x6xf32>"), num_arguments)
    self.assertEqual((results + ">").count("tensor<1x6xf32>"), num_results)
    self.assertContainsSubset(
        operations, set(re.findall(r"stablehlo\.(\w+)", body))
    )

  def test_dim_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "sgd: dim must be positive, got 0"):
      _lower(optimizers_computation.sgd, dim=0)


if __name__ == "__main__":
  absltest.main()
