# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
import numpy as np


class UpdateRulesTest(parameterized.TestCase):

  # One row worked by hand: w = 1, g = 0.5,
  # constructor defaults, fresh slots, step 0.
  @parameterized.named_parameters(
      ("sgd", (), (0.001,), 0.9995, ()),
      ("adagrad", (0.1,), (0.001,), 0.99915487, (0.35,)),
      (
          "adam",
          (0.0, 0.0),
          (0.00031622566, 0.9, 0.999, 3.1622574e-10),
          0.999,
          (0.050000012, 0.00024999678),
      ),
      (
          "adagrad_momentum",
          (0.1, 0.0),
          (0.001, 0.9, 1.0, 1e-10, 2.0, 0),
          0.99915487,
          (0.35, 0.8451543),
      ),
      (
          "ftrl",
          (0.1, 0.0),
          (0.01, -0.5, 0.0, 0.0, 0.0),
          0.45702597,
          (0.35, -27.038023),
          dict(multiply_linear_by_learning_rate=False),
      ),
      (
          "laprop",
          (0.0, 0.0),
          (0.001, 0.9, 0.0, 1e-30),
          0.9995641,
          (0.43588996, 0.25),
      ),
      (
          "f2a",
          (0.1, 0.0),
          (0.01, 0.5, 0.0, 0.0, 1e6, 0.0),
          0.9915485,
          (0.35, 1.0),
      ),
  )
  def test_worked_row(
      self, slots, hyper, expected_row, expected_slots, static_params=None
  ):
    name = self._testMethodName.removeprefix("test_worked_row_")
    rule = update_rules.UPDATE_RULES[name]
    self.assertLen(rule.slots, len(slots))
    self.assertLen(rule.hyperparameters, len(hyper))
    self.assertSameElements(rule.static_params, static_params or {})
    row, new_slots = rule.step(
        jnp.full((1, 1), 0.5),
        jnp.ones((1, 1)),
        tuple(jnp.full((1, 1), slot) for slot in slots),
        tuple(map(jnp.float32, hyper)),
        **static_params or {},
    )
    np.testing.assert_allclose(row, expected_row, rtol=1e-6)
    self.assertLen(new_slots, len(expected_slots))
    for slot, expected in zip(new_slots, expected_slots):
      np.testing.assert_allclose(slot, expected, rtol=1e-6)

  @parameterized.parameters(list(update_rules.UPDATE_RULES))
  def test_operands_are_grouped_in_the_order_of_their_names(self, name):
    rule = update_rules.UPDATE_RULES[name]
    self.assertEqual(rule.name, name)
    named = rule.group_operands(rule.operand_names)
    self.assertEqual(named.coo[0], "row_pointers")
    self.assertEqual(named.table, "table")
    self.assertEqual(named.slots, rule.slots)
    self.assertEqual(named.gradient, "activation_gradient")
    self.assertEqual(named.hyperparameters, rule.hyperparameters)
    self.assertContainsSubset(rule.bool_hyperparameters, rule.hyperparameters)


if __name__ == "__main__":
  absltest.main()
