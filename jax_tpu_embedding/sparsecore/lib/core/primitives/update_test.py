# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What an update does with the step of a rule, on one device.

The rules themselves: lowering/every_update_test.py. Here they run as custom
optimizers: any step does the same there.
"""

import importlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

_Setting = update_programs.Setting

_RULES = list(update_rules.UPDATE_RULES)
_CASES = update_cases.CASES
# A computation of the user is a step, which these tests do not depend on.
_OF_BUILT_IN_RULES = ("reference", "cpu")

_SETTINGS = {
    "plain": _Setting(),
    "minibatched": _Setting(num_minibatches=3, min_value=-0.5, max_value=0.25),
    "all_row_options": _Setting(
        row_options=row_options.ROW_OPTIONS, min_value=-0.5, max_value=0.25
    ),
    "one_dimension": _Setting(
        dim=None, row_options=row_options.ROW_OPTIONS, num_minibatches=3
    ),
    "bfloat16": _Setting(dtype="bfloat16", min_value=-0.5, max_value=0.25),
    "bfloat16_minibatched": _Setting(
        dtype="bfloat16",
        stochastic_rounding=True,
        num_minibatches=3,
        row_options=("l2_weight_decay",),
    ),
    "skip_bfloat16": _Setting(
        dtype="bfloat16",
        stochastic_rounding=True,
        row_options=("skip_non_finite_gradients",),
        max_value=0.25,
    ),
    "float16": _Setting(
        dtype="float16",
        stochastic_rounding=True,
        row_options=("max_gradient_norm", "decoupled_weight_decay"),
    ),
}


def _combinations():
  # How a computation of the user is called does not depend on it.
  for rule in _RULES:
    for setting in _SETTINGS:
      if setting == "plain" or rule == "adam":
        yield rule, setting


class UpdateTest(parameterized.TestCase):

  @parameterized.parameters(*_combinations())
  def test_any_step_may_be_a_custom_one(self, rule, setting):
    for name, case in _CASES.items():
      if case.rule.name == rule:
        with self.subTest(name):
          self.assert_is_update(case, _SETTINGS[setting], "custom")

  def assert_is_update(self, case, setting, implementation):
    """Of random gradients, of gradients 0, and of no entries."""
    given = update_programs.random_update(case, setting)
    self.assertLess(given.coo.touched.sum(), given.coo.touched.size)
    self.assertGreater(given.coo.touched.sum(), 0)

    def run(operands):
      return update_programs.run(implementation, case, setting, operands)

    update_programs.assert_rows_are_stepped_once(
        case, setting, given, run(given.operands)
    )

    zeros = np.zeros_like(given.operands.gradient)
    given = given._replace(operands=given.operands._replace(gradient=zeros))
    update_programs.assert_rows_are_stepped_once(
        case, setting, given, run(given.operands)
    )

    row_pointers, *cells = given.operands.coo
    empty = given.operands._replace(coo=(np.zeros_like(row_pointers), *cells))
    before = (empty.table, *empty.slots)
    for old, new in zip(before, run(empty), strict=True):
      np.testing.assert_array_equal(
          np.asarray(new), np.broadcast_to(old, new.shape)
      )

  # What is done with the step's results does not depend on the rule.
  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES,
      num_sc=[1, 3, 4],
      num_minibatches=[None, 3],
  )
  def test_reads_every_layout(self, implementation, num_sc, num_minibatches):
    self.assert_is_update(
        _CASES["adam"],
        _Setting(num_sc=num_sc, num_minibatches=num_minibatches),
        implementation,
    )

  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES, option=list(row_options.ROW_OPTIONS)
  )
  def test_every_row_option_alone(self, implementation, option):
    self.assert_is_update(
        _CASES["adagrad"], _Setting(row_options=(option,)), implementation
    )

  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES,
      limits=[(-0.5, None), (None, 0.25)],
  )
  def test_clips_to_one_limit(self, implementation, limits):
    minimum, maximum = limits
    self.assert_is_update(
        _CASES["sgd"],
        _Setting(num_sc=1, min_value=minimum, max_value=maximum),
        implementation,
    )

  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES, dtype=["bfloat16", "float16"]
  )
  def test_random_bits_are_those_of_the_place_in_the_whole_table(
      self, implementation, dtype
  ):
    # With this rate a multiplication and a subtraction are one operation.
    case = _CASES["sgd"]._replace(hyperparameters=(0.5,))
    setting = _Setting(dtype=dtype, stochastic_rounding=True)
    coo, operands = update_programs.random_update(case, setting)
    (actual,) = update_programs.run(implementation, case, setting, operands)
    (exact,) = update_programs.run(
        implementation,
        case,
        _Setting(),
        operands._replace(
            table=operands.table.astype(jnp.float32), rounding_seed=None
        ),
    )
    shard, local_row = np.divmod(np.arange(exact.shape[0]), exact.shape[0] // 2)
    bits = low_precision.random_bits(
        operands.rounding_seed, jnp.asarray(local_row * 2 + shard), 24
    )
    expected = np.asarray(low_precision.round_to(exact, dtype, bits))
    is_up_or_down = (actual != exact.astype(dtype))[coo.touched]
    self.assertGreater(np.mean(is_up_or_down), 0.2)
    np.testing.assert_array_equal(actual[coo.touched], expected[coo.touched])

  @parameterized.parameters(*_CASES)
  def test_numbers_that_are_nan_show_as_in_the_reference(self, name):
    case, setting = _CASES[name], _Setting(num_sc=1)
    operands = update_programs.random_update(case, setting).operands
    for number, hyperparameter in enumerate(case.rule.hyperparameters):
      if hyperparameter in case.rule.bool_hyperparameters:
        continue
      values = list(operands.hyperparameters)
      values[number] = np.float32(np.nan)
      changed = operands._replace(hyperparameters=tuple(values))
      with self.subTest(hyperparameter):
        actual, expected = (
            [
                np.isnan(x)
                for x in update_programs.run(
                    implementation, case, setting, changed
                )
            ]
            for implementation in ("cpu", "reference")
        )
        self.assertTrue(any(x.any() for x in expected))
        jax.tree.map(np.testing.assert_array_equal, actual, expected)

  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES,
      limit=[0.0, -1.0, np.nan],
      scale=[0.0, 1.0],
  )
  def test_what_cannot_be_a_norm_makes_rows_nan(
      self, implementation, limit, scale
  ):
    case = _CASES["sgd"]
    setting = _Setting(row_options=("max_gradient_norm",))
    coo, operands = update_programs.random_update(case, setting)
    (table,) = update_programs.run(
        implementation,
        case,
        setting,
        operands._replace(
            gradient=scale * operands.gradient,
            hyperparameters=(np.float32(0.1), np.float32(limit)),
        ),
    )
    self.assertTrue(np.isnan(table[coo.touched]).all())
    self.assertFalse(np.isnan(table[~coo.touched]).any())

  @parameterized.product(
      implementation=_OF_BUILT_IN_RULES, embedding_dim=[24, 8, 6, 2, 1]
  )
  def test_row_wise_steps_are_those_without_padding(
      self, implementation, embedding_dim
  ):
    case = _CASES["rowwise_adagrad"]._replace(
        static_params=dict(embedding_dim=embedding_dim)
    )
    given = update_programs.random_update(case, _Setting())
    coo, operands = given
    operands.gradient[:, embedding_dim:] = 0
    table, accumulator = update_programs.run(
        implementation, case, _Setting(), operands
    )
    gradient = (coo.weights.T @ operands.gradient)[:, :embedding_dim]
    mean = np.mean(gradient**2, axis=1, keepdims=True)
    expected = operands.slots[0] + mean
    np.testing.assert_allclose(
        accumulator[coo.touched], expected[coo.touched], rtol=1e-5
    )
    rate, epsilon = case.hyperparameters
    step = rate * gradient / (np.sqrt(expected) + epsilon)
    np.testing.assert_allclose(
        table[coo.touched, :embedding_dim],
        (operands.table[:, :embedding_dim] - step)[coo.touched],
        rtol=1e-5,
        atol=1e-6,
    )

  @parameterized.product(
      implementation=["reference", "cpu", "custom"],
      setting=["all_row_options", "one_dimension", "skip_bfloat16"],
  )
  def test_rows_without_finite_gradient_keep_their_bits(
      self, implementation, setting
  ):
    case, setting = _CASES["adam"], _SETTINGS[setting]
    given = update_programs.random_update(case, setting)
    gradient, expected = update_programs.without_finite_gradients(given)
    operands = given.operands._replace(gradient=gradient)
    update_programs.assert_rows_are_stepped_once(
        case,
        setting,
        expected,
        update_programs.run(implementation, case, setting, operands),
    )

  def test_options_have_gradients_of_both_kinds(self):
    given = update_programs.random_update(_CASES["sgd"], _Setting())
    gradients = given.coo.weights.T @ given.operands.gradient
    norms = np.linalg.norm(gradients[given.coo.touched], axis=1)
    limit = update_cases.ROW_OPTIONS["max_gradient_norm"]
    self.assertBetween(np.mean(norms > limit), 0.2, 0.8)

  @parameterized.parameters(_RULES)
  def test_public_module_has_the_primitive(self, name):
    module = importlib.import_module(
        "jax_tpu_embedding.sparsecore.lib.core.primitives."
        f"sparse_dense_matmul_grad_with_{name}"
    )
    primitive = getattr(
        module, f"tpu_sparse_dense_matmul_grad_with_{name}_primitive"
    )
    rule = update_rules.UPDATE_RULES[name]
    self.assertIs(primitive, update.UPDATE_PRIMITIVES[name])
    self.assertEqual(primitive.name, rule.primitive_name)
    self.assertEqual(primitive.multiple_results, bool(rule.slots))


if __name__ == "__main__":
  absltest.main()
