# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What updates refuse. update_test.py tests what they do."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_ROW_OPTIONS = ("max_gradient_norm", "decoupled_weight_decay")


def _valid_arguments(rule="adam", **setting):
  """Operands and static parameters of an update."""
  static_params = update_cases.CASES[rule].static_params
  setting = update_programs.Setting(num_sc=1, **setting)
  rule = update_rules.with_options(
      update_rules.UPDATE_RULES[rule],
      setting.row_options,
      stochastic_rounding=setting.stochastic_rounding,
  )
  _, operands = update_programs.random_update(
      update_cases.CASES[rule.name], setting
  )
  values = (
      *map(np.array, operands.coo),  # a copy, for the test to change
      operands.table,
      *operands.slots,
      operands.gradient,
      *operands.hyperparameters,
      operands.rounding_seed,
  )
  names = rule.operand_names
  return dict(zip(names, values)), setting.params() | static_params


def _bind(arguments, params, rule="adam", extra_operands=()):
  return update.UPDATE_PRIMITIVES[rule].bind(
      *arguments.values(), *extra_operands, **params
  )


class UpdateChecksTest(parameterized.TestCase):

  # What lookup and update share is tested in lookup_test.py, but for one case.
  @parameterized.named_parameters(
      ("baseline", {}, None),
      (
          "shared",
          {"row_pointers": np.ones(8, np.int16)},
          "row_pointers must have type int32, got int16",
      ),
      (
          "table_type",
          {"table": np.ones((40, 24), np.int32)},
          "table must have type float32, bfloat16, float16, got int32",
      ),
      (
          "gradient_type",
          {"activation_gradient": np.ones((12, 24), np.float16)},
          "activation_gradient must have type float32, got float16",
      ),
      (
          "gradient_rank",
          {"activation_gradient": np.ones((12, 24, 1), np.float32)},
          "activation_gradient must have dim 1 or 2, got 3",
      ),
      (
          "gradient_width",
          {"activation_gradient": np.ones((12, 16), np.float32)},
          "must have as many columns as the table, 24, got 16",
      ),
      (
          "slot_type",
          {"velocity": np.ones((40, 24), np.float16)},
          "velocity must have type float32, got float16",
      ),
      (
          "slot_shape",
          {"momentum": np.ones((40, 16), np.float32)},
          r"momentum must have shape \(40, 24\), got \(40, 16\)",
      ),
      (
          "hyperparameter_type",
          {"beta_1": np.int32(1)},
          "beta_1 must have type float32, got int32",
      ),
      (
          "hyperparameter_rank",
          {"beta_2": np.ones(3, np.float32)},
          "beta_2 must have dim 0, got 1",
      ),
      (
          "option_type",
          {"max_gradient_norm": np.int32(1)},
          "max_gradient_norm must have type float32, got int32",
      ),
      (
          "option_rank",
          {"decoupled_weight_decay": np.ones(3, np.float32)},
          "decoupled_weight_decay must have dim 0, got 1",
      ),
      (
          "seed_type",
          {"rounding_seed": np.int32(1)},
          "rounding_seed must have type uint32, got int32",
      ),
      (
          "seed_rank",
          {"rounding_seed": np.ones(1, np.uint32)},
          "rounding_seed must have dim 0, got 1",
      ),
  )
  def test_bad_operands_raise(self, change, message):
    arguments, params = _valid_arguments(
        row_options=_ROW_OPTIONS, dtype="bfloat16", stochastic_rounding=True
    )
    self.assertContainsSubset(change, arguments)
    if message is None:
      self.assertLen(_bind(arguments, params), 3)
    else:
      with self.assertRaisesRegex(ValueError, message):
        _bind(arguments | change, params)

  @parameterized.named_parameters(
      ("baseline", {}, None),
      (
          "computation_name",
          {"computation_name": ""},
          "computation_name must not be empty",
      ),
      (
          "clipping",
          {"min_value": 1.0, "max_value": 0.5},
          "min_value must not exceed max_value, got 1.0 > 0.5",
      ),
      ("lower_nan", {"min_value": np.nan}, "min_value must be a num.*got nan"),
      ("upper_nan", {"max_value": np.nan}, "max_value must be a num.*got nan"),
      (
          "nan_beside_a_number",
          {"min_value": 0.0, "max_value": np.nan},
          "max_value must be a number",
      ),
      (
          "unknown_parameter",
          {"nesterov": True},
          r"parameters \[\] beside those of every rule; got \['nesterov'\]",
      ),
      (
          "rounding_of_float32",
          {"stochastic_rounding": True},
          "takes 14 operands.*rounding_seed; got 13",
      ),
      (
          "unknown_option",
          {"row_options": ("weight_decay",)},
          r"row_options must be some of skip_non_finite_gradients,"
          r" max_gradient_norm, l2_weight_decay, decoupled_weight_decay.*got"
          r" \('weight_decay',\)",
      ),
      (
          "order_of_options",
          {"row_options": ("l2_weight_decay", "max_gradient_norm")},
          "and in this order; got",
      ),
      (
          "option_twice",
          {"row_options": ("l2_weight_decay", "l2_weight_decay")},
          "each at most once",
      ),
      (
          "flag_without_a_number",
          {"row_options": ("skip_non_finite_gradients",)},
          None,
      ),
      (
          "number_of_option",
          {"row_options": ("l2_weight_decay",)},
          "takes 14 operands.*epsilon_hat, l2_weight_decay; got 13",
      ),
  )
  def test_bad_parameters_raise(self, change, message):
    arguments, params = _valid_arguments()
    if message is None:
      self.assertLen(_bind(arguments, params), 3)
    else:
      with self.assertRaisesRegex(ValueError, message):
        _bind(arguments, params | change)

  @parameterized.parameters(
      "row_pointers", "gains", "table", "velocity", "activation_gradient"
  )
  def test_ref_in_place_of_its_value_raises(self, name):
    arguments, params = _valid_arguments()
    ref = jax.new_ref(jnp.asarray(arguments[name]))
    self.assertLen(_bind(arguments | {name: ref[...]}, params), 3)
    for bind in (
        lambda ref: _bind(arguments | {name: ref}, params),
        jax.jit(lambda ref: _bind(arguments | {name: ref}, params)),
    ):
      with self.assertRaisesRegex(
          TypeError,
          rf"{name} must be an array, got a jax.Ref, Ref{{.*}}. Pass its"
          r" value, ref\[...\]",
      ):
        bind(ref)

  def test_float32_cannot_be_rounded(self):
    arguments, params = _valid_arguments(stochastic_rounding=True)
    with self.assertRaisesRegex(
        ValueError, "the table is float32, which is not rounded. Leave it out"
    ):
      _bind(arguments, params)

  def test_slots_of_a_row_have_one_column(self):
    arguments, params = _valid_arguments("rowwise_adagrad")
    arguments["accumulator"] = np.ones((40, 24), np.float32)
    with self.assertRaisesRegex(
        ValueError, r"accumulator must have shape \(40, 1\), got \(40, 24\)"
    ):
      _bind(arguments, params, "rowwise_adagrad")

  @parameterized.parameters(
      (24, None, None),
      (np.int64(1), None, None),
      (0, ValueError, r"in \[1, 24\] for operands of 24 columns, got 0"),
      (25, ValueError, "the width of the table without padding.*got 25"),
      (6.0, TypeError, "embedding_dim must be an integer, got 6.0"),
  )
  def test_width_without_padding_is_at_most_that_of_the_table(
      self, embedding_dim, error, message
  ):
    arguments, params = _valid_arguments("rowwise_adagrad")
    params["embedding_dim"] = embedding_dim
    if error is None:
      self.assertLen(_bind(arguments, params, "rowwise_adagrad"), 2)
    else:
      with self.assertRaisesRegex(error, message):
        _bind(arguments, params, "rowwise_adagrad")

  def test_slots_have_as_many_dimensions_as_the_table(self):
    arguments, params = _valid_arguments(dim=None)
    arguments["momentum"] = arguments["momentum"][:, None]
    with self.assertRaisesRegex(
        ValueError, r"momentum must have shape \(40,\), got \(40, 1\)"
    ):
      _bind(arguments, params)

  def test_gradient_of_a_table_without_columns_may_have_one(self):
    arguments, params = _valid_arguments(dim=None)
    expected = _bind(arguments, params)
    arguments["activation_gradient"] = arguments["activation_gradient"][:, None]
    for one, other in zip(_bind(arguments, params), expected, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_surplus_operands_raise(self):
    with self.assertRaisesRegex(ValueError, "takes 13 operands.*; got 14"):
      _bind(*_valid_arguments(), extra_operands=(np.float32(1),))

  @parameterized.named_parameters(
      ("row_pointer", "row_pointers", 0, 99, r"row_pointers\[0\] is 99"),
      ("id", "embedding_ids", 3, 40, r"embedding_ids\[3\] is 40"),
      ("sample", "sample_ids", 2, -1, r"sample_ids\[2\] is -1"),
  )
  def test_corrupt_buffers_raise_on_cpu(self, name, position, value, message):
    arguments, params = _valid_arguments()
    arguments[name][position] = value
    with self.assertRaisesRegex(_NATIVE_ERRORS, message):
      jax.block_until_ready(_bind(arguments, params))

  def test_cannot_be_differentiated(self):
    arguments, params = _valid_arguments()

    def loss(table):
      return _bind(arguments | {"table": table}, params)[0].sum()

    with self.assertRaisesRegex(
        NotImplementedError, "cannot be differentiated: it is the backward"
    ):
      jax.grad(loss)(jnp.ones((40, 24)))

  def test_cannot_be_mapped(self):
    arguments, params = _valid_arguments()

    def step(gradient):
      return _bind(arguments | {"activation_gradient": gradient}, params)

    with self.assertRaisesRegex(NotImplementedError, "no batching rule.*vmap"):
      jax.vmap(step)(jnp.ones((2, 12, 24)))


if __name__ == "__main__":
  absltest.main()
