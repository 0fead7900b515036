# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the calls of SparseCores are, in any version of JAX.

golden_text_test.py has them in full.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import operation_programs
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
import numpy as np

_SIZES = operation_programs.PLAIN
# The others are plain JAX on TPU.
_SPARSECORE_CALLS = [
    name
    for name in operation_programs.OF_BUFFERS
    if name not in ("check_batch", "row_gradients")
]


def _text(name):
  return operation_programs.PROGRAMS[name].text("tpu")


class CallTest(parameterized.TestCase):

  def test_numbers_of_numpy_are_numbers(self):
    quantization = (np.float32(-1.0), np.float32(1.5), np.int64(256))
    program = operation_programs.lookup_program(
        _SIZES, quantization_config=quantization
    )
    self.assertEqual(program.text("tpu"), _text("lookup_quantized"))

  @parameterized.parameters(*_SPARSECORE_CALLS)
  def test_minibatched_call_has_the_target_of_minibatches(self, name):
    for suffix, targets in (
        (
            "",
            (
                "SparseDenseMatmulOp",
                "SparseDenseMatmulGradOpWithOptimizerUpdate",
            ),
        ),
        (
            "_minibatched",
            (
                "SparseDenseMatmulWithMinibatchingOp",
                "SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp",
            ),
        ),
    ):
      (call,) = re.findall(r"custom_call @(\w+)\(", _text(name + suffix))
      self.assertIn(call, targets)

  @parameterized.parameters(
      ("update_sgd", 0, 1),
      ("update_adagrad", 1, 1),
      ("update_adagrad_momentum", 2, 6),
      ("update_adam", 2, 4),
      ("update_ftrl", 2, 5),
      ("update_laprop", 2, 4),
      ("update_f2a", 2, 6),
      ("update_rowwise_adagrad", 1, 2),
      ("update_momentum", 1, 3),
      ("update_lion", 1, 3),
      ("adam_with_options", 2, 7),
      ("adam_without_columns", 2, 5),
      ("custom_update", 1, 2),
  )
  def test_config_of_an_update_counts_slots_and_numbers(
      self, name, num_slots, num_numbers
  ):
    (config,) = re.findall(r'backend_config = "(.*?[^\\])"', _text(name))
    self.assertEqual(
        json.loads(config.replace("\\22", '"')),
        {
            "sparse_dense_matmul_config": {
                "max_ids_per_partition": 16,
                "max_unique_ids_per_partition": 8,
                "pad_value": 2147483647,
                "sharding_strategy": 1,
                "num_slot_variables": num_slots,
                "num_hyperparameters": num_numbers,
            },
            "device_type": "DEVICE_TYPE_SPARSECORE",
        },
    )

  def test_updates_of_one_name_have_functions_of_their_own(self):
    sizes = _SIZES

    def two_updates(coo, table, gradient, rate):
      for bound in (1.0, 2.0):
        table = update.UPDATE_PRIMITIVES["sgd"].bind(
            *coo,
            table,
            gradient,
            rate,
            computation_name="sgd-stack",
            max_value=bound,
            **tpu_operands.LIMITS,
        )
      return table

    text = operation_programs.Program(
        "update_sgd",
        two_updates,
        (
            sizes.coo(),
            sizes.table,
            sizes.gradient,
            jax.ShapeDtypeStruct((), jnp.float32),
        ),
    ).text("tpu")
    called = re.findall(r'called_computations = \[@"(.*?)"\]', text)
    defined = re.findall(r'func.func private @"(.*?)"', text)
    self.assertLen(set(called), 2)
    self.assertSameElements(called, defined)
    self.assertEqual(called[0], "sgd-stack")

  def test_program_as_custom_optimizer_is_the_function_of_the_call(self):
    program = """
        func.func @main(%g: tensor<1x16xf32>, %w: tensor<1x16xf32>,
                        %s: tensor<1x16xf32>, %a: tensor<1x16xf32>,
                        %b: tensor<1x16xf32>)
            -> (tensor<1x16xf32>, tensor<1x16xf32>) {
          return %g, %s : tensor<1x16xf32>, tensor<1x16xf32>
        }"""
    text = operation_programs.custom_update_program(
        _SIZES, stablehlo=program, computation_name="mine"
    ).text("tpu")
    self.assertRegex(text, r"func.func private @mine\(")
    self.assertRegex(text, r"called_computations = \[@mine\]")

  def test_custom_optimizer_without_slots_may_return_a_bare_row(self):
    text = operation_programs.Program(
        "custom_update",
        functools.partial(
            custom_update.custom_update_p.bind,
            num_hyperparameters=0,
            custom_computation_fn=lambda gradient, row: row - gradient,
            **tpu_operands.LIMITS,
        ),
        (*_SIZES.coo(), _SIZES.gradient, _SIZES.table),
    ).text("tpu")
    self.assertRegex(text, r"return .* : tuple<tensor<1x16xf32>>")

  def test_gradient_with_a_column_fits_a_table_without(self):
    sizes = dataclasses.replace(_SIZES, embedding_dim=None)
    program = operation_programs.update_program("sgd", sizes)
    *others, gradient, rate = program.operands
    gradient = gradient.update(shape=(*gradient.shape, 1))
    text = program._replace(operands=(*others, gradient, rate)).text("tpu")
    self.assertRegex(text, r"reshape .*tensor<32x1xf32>\) -> tensor<32xf32>")


if __name__ == "__main__":
  absltest.main()
