# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_optimizer_grad
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

Custom = embedding_spec.CustomOptimizerSpec


def adagrad(grad, row, accumulator, learning_rate):
  accumulator = accumulator + grad * grad
  return row - learning_rate * grad / jnp.sqrt(accumulator), accumulator


class Slots(NamedTuple):
  accumulator: object


class CustomOptimizerSpecTest(parameterized.TestCase):

  def test_defaults(self):
    spec = Custom()
    self.assertEqual(spec.learning_rate, 0.001)
    self.assertEqual(spec.short_name(), "custom")
    self.assertEqual(spec.slot_variables_initializers(), ())
    self.assertEqual(spec.slot_variables_count(), 0)
    self.assertEqual(spec.get_hyperparameters(), (jnp.float32(0.001),))
    self.assertEqual(spec.get_float_params() | spec.get_bool_params(), {})

  def test_primitive_gets_the_computation(self):
    spec = Custom(0.5, custom_computation_fn=adagrad, stablehlo="module {}")
    self.assertIs(
        spec.get_optimizer_primitive(),
        sparse_dense_matmul_optimizer_grad.tpu_sparse_dense_matmul_optimizer_grad_primitive,
    )
    self.assertEqual(
        spec.get_static_params(),
        dict(
            num_hyperparameters=1,
            custom_computation_fn=adagrad,
            stablehlo="module {}",
        ),
    )

  def test_gradient_and_hyperparameters_stand_before_the_table(self):
    self.assertEqual(
        Custom().order_operands(
            coo=(1, 2),
            table=3,
            slots=(4, 5),
            gradient=6,
            hyperparameters=(7,),
        ),
        (1, 2, 6, 7, 3, 4, 5),
    )

  def test_slots_keep_their_tuple(self):
    spec = Custom(
        slot_variable_initializers_tuple=Slots(jax.nn.initializers.zeros)
    )
    self.assertIsInstance(spec.slot_variables_initializers(), Slots)
    self.assertEqual(spec.slot_variables_count(), 1)

  @parameterized.parameters(
      dict(learning_rate=0.5),
      dict(custom_computation_fn=adagrad),
      dict(stablehlo="module {}"),
      dict(slot_variable_initializers_tuple=(jax.nn.initializers.zeros,)),
      dict(short_name_str="mine"),
  )
  def test_every_field_takes_part_in_equality(self, **change):
    self.assertNotEqual(Custom(**change), Custom())
    self.assertEqual(Custom(**change), Custom(**change))
    self.assertEqual(hash(Custom(**change)), hash(Custom(**change)))

  @parameterized.parameters(
      (dict(custom_computation_fn="f"), "custom_computation_fn must be callab"),
      (dict(stablehlo=3), "stablehlo must be str or bytes, got int"),
      (
          dict(slot_variable_initializers_tuple=[jax.nn.initializers.zeros]),
          "slot_variable_initializers_tuple must be a tuple",
      ),
      (
          dict(slot_variable_initializers_tuple=(0.1,)),
          "must have initializers, got 0.1",
      ),
      (dict(learning_rate=None), "learning_rate must be a number, got None"),
  )
  def test_wrong_types_raise(self, change, message):
    with self.assertRaisesRegex(TypeError, f"CustomOptimizerSpec: .*{message}"):
      Custom(**change)

  def test_lowers_to_stablehlo(self):
    text = Custom.lower_to_stablehlo(adagrad, 8, num_slot_variables=1)
    self.assertIn("tensor<1x8xf32>", text)
    self.assertEqual(Custom.wrap_stablehlo_with_limits(text, 8, 1, 1), text)


if __name__ == "__main__":
  absltest.main()
