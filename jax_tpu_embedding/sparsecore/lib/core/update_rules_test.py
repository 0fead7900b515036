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
      (
          "rowwise_adagrad",
          (0.1,),
          (0.01, 1e-8),
          0.9915485,
          (0.35,),
          dict(embedding_dim=1),
      ),
      ("momentum", (0.0,), (0.001, 0.9, 1), 0.99905, (0.5,)),
      ("lion", (0.0,), (0.0001, 0.9, 0.99), 0.9999, (0.005,)),
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
    self.assertContainsSubset(rule.row_slots, rule.slots)

  @parameterized.parameters(2, 3, 8)
  def test_step_of_one_number_per_row_takes_the_mean_of_the_table(self, width):
    rule = update_rules.UPDATE_RULES["rowwise_adagrad"]
    padding = ((0, 0), (0, width - 2))
    row, (accumulator,) = rule.step(
        jnp.pad(jnp.array([[1.0, 3.0], [0.0, 2.0]]), padding),
        jnp.zeros((2, width)),
        (jnp.array([[4.0], [2.0]]),),
        (jnp.float32(6), jnp.float32(0)),
        embedding_dim=2,
    )
    np.testing.assert_array_equal(accumulator, [[9.0], [4.0]])
    np.testing.assert_array_equal(
        row, np.pad([[-2.0, -6.0], [0.0, -6.0]], padding)
    )

  def test_sign_of_zero_is_no_step(self):
    rule = update_rules.UPDATE_RULES["lion"]
    row, _ = rule.step(
        jnp.zeros((1, 1)),
        jnp.ones((1, 1)),
        (jnp.zeros((1, 1)),),
        (jnp.float32(0.5), jnp.float32(0.9), jnp.float32(0.9)),
    )
    np.testing.assert_array_equal(row, [[1.0]])


class WithOptionsTest(parameterized.TestCase):

  # w = (3, 4), g = (6, 8), whose norm is 10; plain SGD with learning rate 1.
  @parameterized.named_parameters(
      ("none", {}, (-3.0, -4.0)),
      ("norm", {"max_gradient_norm": 5.0}, (0.0, 0.0)),
      ("norm_not_reached", {"max_gradient_norm": 11.0}, (-3.0, -4.0)),
      ("l2", {"l2_weight_decay": 0.5}, (-4.5, -6.0)),
      ("decoupled", {"decoupled_weight_decay": 0.5}, (-4.5, -6.0)),
      (
          "all_in_order",  # g = (3, 4) + (1.5, 2), then w - g - w / 4
          {
              "max_gradient_norm": 5.0,
              "l2_weight_decay": 0.5,
              "decoupled_weight_decay": 0.25,
          },
          (-2.25, -3.0),
      ),
  )
  def test_worked_row(self, options, expected):
    rule = update_rules.with_options(
        update_rules.UPDATE_RULES["sgd"], tuple(options)
    )
    self.assertEqual(rule.hyperparameters, ("learning_rate", *options))
    row, slots = rule.step(
        jnp.array([[6.0, 8.0]]),
        jnp.array([[3.0, 4.0]]),
        (),
        tuple(map(jnp.float32, (1.0, *options.values()))),
    )
    np.testing.assert_array_equal(row, [expected])
    self.assertEmpty(slots)

  def test_flag_is_no_hyperparameter(self):
    sgd = update_rules.UPDATE_RULES["sgd"]
    options = ("skip_non_finite_gradients",)
    rule = update_rules.with_options(sgd, options)
    self.assertTrue(rule.skips_non_finite_gradients)
    self.assertEqual(rule.hyperparameters, sgd.hyperparameters)
    self.assertIs(rule.step, sgd.step)
    rule = update_rules.with_options(sgd, (*options, "l2_weight_decay"))
    self.assertEqual(rule.hyperparameters, ("learning_rate", "l2_weight_decay"))
    self.assertFalse(
        update_rules.with_options(
            sgd, ("l2_weight_decay",)
        ).skips_non_finite_gradients
    )

  @parameterized.parameters(0.0, -1.0, float("nan"))
  def test_what_cannot_be_a_norm_shows_as_nan(self, limit):
    rule = update_rules.with_options(
        update_rules.UPDATE_RULES["sgd"], ("max_gradient_norm",)
    )
    for grad in (jnp.zeros((1, 2)), jnp.ones((1, 2))):
      row, _ = rule.step(
          grad, jnp.ones((1, 2)), (), (jnp.ones(()), jnp.float32(limit))
      )
      self.assertTrue(jnp.isnan(row).all())

  def test_gradient_zero_has_no_norm_to_divide_by(self):
    rule = update_rules.with_options(
        update_rules.UPDATE_RULES["sgd"], ("max_gradient_norm",)
    )
    row, _ = rule.step(
        jnp.zeros((1, 2)), jnp.ones((1, 2)), (), (jnp.ones(()), jnp.ones(()))
    )
    np.testing.assert_array_equal(row, [[1.0, 1.0]])

  def test_seed_is_the_last_operand(self):
    rule = update_rules.with_options(
        update_rules.UPDATE_RULES["adagrad"],
        ("l2_weight_decay",),
        stochastic_rounding=True,
    )
    self.assertEqual(
        rule.operand_names[-4:],
        (
            "activation_gradient",
            "learning_rate",
            "l2_weight_decay",
            "rounding_seed",
        ),
    )
    named = rule.group_operands(rule.operand_names)
    self.assertEqual(named.rounding_seed, "rounding_seed")
    self.assertEqual(named.hyperparameters[-1], "l2_weight_decay")

  def test_unknown_options_raise(self):
    with self.assertRaisesRegex(ValueError, r"got \('clip',\)"):
      update_rules.with_options(update_rules.UPDATE_RULES["sgd"], ("clip",))


if __name__ == "__main__":
  absltest.main()
