# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One suite for every row of UPDATE_RULES; new rows need a formula and a case.

The rows also run as custom optimizers: any step does the same there.
"""

import importlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.primitives import update_cases
import numpy as np

_RULES = list(update_rules.UPDATE_RULES)
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)

# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_DIM = 24
_ROWS_PER_SHARD = 40
_BATCH_SIZE_PER_SC = 12


_CASES = update_cases.CASES


def _update_on_cpu(case, operands, *, enable_minibatching=False, **kw):
  del kw["num_sc_per_device"]  # Follows from the row pointers.
  results = update.UPDATE_PRIMITIVES[case.rule.name].bind(
      *operands,
      enable_minibatching=enable_minibatching,
      **case.static_params,
      **_LIMITS,
      **kw,
  )
  return results if case.rule.slots else (results,)


def _update_reference(case, operands, **kw):
  def function(*operands):
    return reference.update(
        case.rule,
        case.rule.group_operands(operands),
        **case.static_params,
        **kw,
    )

  return jax.jit(function)(*operands)


def _update_custom(case, operands, *, num_sc_per_device, **kw):
  """The rule's step as if it were the user's."""
  del num_sc_per_device
  given = case.rule.group_operands(operands)
  num_slots = len(given.slots)

  def computation(grad, row, *rest):
    row, slots = case.rule.step(
        grad, row, rest[:num_slots], rest[num_slots:], **case.static_params
    )
    return row, *slots

  return custom_update.custom_update_p.bind(
      *given.coo,
      given.gradient,
      *map(np.float32, given.hyperparameters),
      given.table,
      *given.slots,
      num_hyperparameters=len(given.hyperparameters),
      custom_computation_fn=computation,
      **_LIMITS,
      **kw,
  )


_IMPLEMENTATIONS = {
    "reference": _update_reference,
    "cpu": _update_on_cpu,
    "custom": _update_custom,
}


def _random_case(case, num_sc, num_minibatches=None):
  """Buffers and all operands of one update, float32."""
  coo = random_coo.random_coo(
      num_sc_per_device=num_sc,
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=_BATCH_SIZE_PER_SC,
      ids_per_sample=2,
      num_minibatches=num_minibatches,
      seed=num_sc,
  )
  rng = np.random.default_rng(1)
  rows = num_sc * _ROWS_PER_SHARD
  table = rng.normal(size=(rows, _DIM))
  slots = [rng.uniform(0.1, 1, (rows, _DIM)) for _ in case.rule.slots]
  gradient = rng.normal(size=(num_sc * _BATCH_SIZE_PER_SC, _DIM))
  hyperparameters = [
      np.bool_(value)
      if name in case.rule.bool_hyperparameters
      else np.float32(value)
      for name, value in zip(
          case.rule.hyperparameters, case.hyperparameters, strict=True
      )
  ]
  return coo, (
      *coo.operands,
      *map(np.float32, (table, *slots, gradient)),
      *hyperparameters,
  )


class UpdateTest(parameterized.TestCase):

  def test_every_rule_has_a_formula_and_a_case(self):
    self.assertSameElements(update_cases.FORMULAS, _RULES)
    self.assertSameElements({c.rule.name for c in _CASES.values()}, _RULES)

  @parameterized.product(
      name=list(_CASES),
      implementation=list(_IMPLEMENTATIONS),
      limits=[(None, None), (-0.5, 0.25)],
  )
  def test_steps_referenced_rows_once(self, name, implementation, limits):
    self.assert_steps_referenced_rows_once(
        _CASES[name], implementation, limits, num_sc=2
    )

  # What is done with the step's results does not depend on the rule.
  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      num_sc=[1, 2, 3, 4],
      num_minibatches=[None, 3],
  )
  def test_reads_every_layout(self, implementation, num_sc, num_minibatches):
    self.assert_steps_referenced_rows_once(
        _CASES["adam"], implementation, (-0.5, 0.25), num_sc, num_minibatches
    )

  def assert_steps_referenced_rows_once(
      self, case, implementation, limits, num_sc, num_minibatches=None
  ):
    coo, operands = _random_case(case, num_sc, num_minibatches)
    actual = _IMPLEMENTATIONS[implementation](
        case,
        operands,
        num_sc_per_device=num_sc,
        enable_minibatching=num_minibatches is not None,
        min_value=limits[0],
        max_value=limits[1],
    )
    self.assertLen(actual, 1 + len(case.rule.slots))
    self.assertLess(coo.touched.sum(), coo.touched.size)
    self.assertGreater(coo.touched.sum(), 0)

    given = case.rule.group_operands(operands)
    before = (given.table, *given.slots)
    wide = [np.float64(x) for x in before]
    expected, slots = case.formula(
        wide[0], coo.weights.T @ np.float64(given.gradient), wide[1:]
    )
    if limits != (None, None):
      expected = np.clip(expected, *limits)
    for old, new, formula in zip(before, actual, (expected, *slots)):
      self.assertEqual(new.dtype, jnp.float32)
      np.testing.assert_array_equal(new[~coo.touched], old[~coo.touched])
      np.testing.assert_allclose(
          new[coo.touched], formula[coo.touched], rtol=2e-5, atol=2e-5
      )

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      limits=[(-0.5, None), (None, 0.25)],
  )
  def test_clips_to_one_limit(self, implementation, limits):
    coo, operands = _random_case(_CASES["sgd"], 1)
    free, clipped = (
        _IMPLEMENTATIONS[implementation](
            _CASES["sgd"],
            operands,
            num_sc_per_device=1,
            min_value=low,
            max_value=high,
        )[0]
        for low, high in ((None, None), limits)
    )
    np.testing.assert_array_equal(
        clipped[coo.touched], np.clip(free, *limits)[coo.touched]
    )

  @parameterized.product(
      name=list(_CASES), implementation=list(_IMPLEMENTATIONS)
  )
  def test_rows_with_gradient_zero_are_stepped(self, name, implementation):
    case = _CASES[name]
    coo, operands = _random_case(case, 2)
    position = case.rule.operand_names.index("activation_gradient")
    operands = list(operands)
    operands[position] = np.zeros_like(operands[position])
    actual = _IMPLEMENTATIONS[implementation](
        case, operands, num_sc_per_device=2
    )
    given = case.rule.group_operands(operands)
    before = [np.float64(x) for x in (given.table, *given.slots)]
    row, slots = case.formula(before[0], 0.0, before[1:])
    for old, new, formula in zip(before, actual, (row, *slots), strict=True):
      np.testing.assert_allclose(
          new, np.where(coo.touched[:, None], formula, old), rtol=1e-5
      )

  @parameterized.parameters(_RULES)
  def test_empty_batch_changes_nothing(self, name):
    case = next(c for c in _CASES.values() if c.rule.name == name)
    _, operands = _random_case(case, 1)
    operands = (np.zeros_like(operands[0]), *operands[1:])
    given = case.rule.group_operands(operands)
    for implementation in _IMPLEMENTATIONS.values():
      actual = implementation(case, operands, num_sc_per_device=1)
      for old, new in zip((given.table, *given.slots), actual, strict=True):
        np.testing.assert_array_equal(new, old)

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


def _valid_arguments():
  """Operands and static parameters of an update with Adam."""
  rule = update_rules.UPDATE_RULES["adam"]
  _, operands = _random_case(_CASES["adam"], 1)
  return dict(zip(rule.operand_names, operands), **_LIMITS)


def _bind(arguments, extra_operands=()):
  rule = update_rules.UPDATE_RULES["adam"]
  operands = [arguments.pop(name) for name in rule.operand_names]
  return update.UPDATE_PRIMITIVES["adam"].bind(
      *operands, *extra_operands, **arguments
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
          "gradient_type",
          {"activation_gradient": np.ones((12, 24), np.float16)},
          "activation_gradient must have type float32, got float16",
      ),
      (
          "gradient_rank",
          {"activation_gradient": np.ones(12, np.float32)},
          "activation_gradient must have as many columns as the table, 24",
      ),
      (
          "gradient_width",
          {"activation_gradient": np.ones((12, 16), np.float32)},
          "must have as many columns as the table, 24, got 16",
      ),
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
          "unknown_parameter",
          {"nesterov": True},
          r"parameters \[\] beside those of every rule; got \['nesterov'\]",
      ),
  )
  def test_bad_arguments_raise(self, change, message):
    arguments = _valid_arguments() | change
    if message is None:
      self.assertLen(_bind(arguments), 3)
    else:
      with self.assertRaisesRegex(ValueError, message):
        _bind(arguments)

  def test_surplus_operands_raise(self):
    with self.assertRaisesRegex(ValueError, "takes 13 operands.*; got 14"):
      _bind(_valid_arguments(), (np.float32(1),))

  @parameterized.named_parameters(
      ("row_pointer", "row_pointers", 0, 99, r"row_pointers\[0\] is 99"),
      ("id", "embedding_ids", 3, 40, r"embedding_ids\[3\] is 40"),
      ("sample", "sample_ids", 2, -1, r"sample_ids\[2\] is -1"),
  )
  def test_corrupt_buffers_raise_on_cpu(self, name, position, value, message):
    arguments = _valid_arguments()
    arguments[name][position] = value
    with self.assertRaisesRegex(_NATIVE_ERRORS, message):
      jax.block_until_ready(_bind(arguments))

  def test_cannot_be_differentiated(self):
    def loss(table):
      return _bind(_valid_arguments() | {"table": table})[0].sum()

    with self.assertRaisesRegex(
        NotImplementedError, "cannot be differentiated: it is the backward"
    ):
      jax.grad(loss)(jnp.ones((40, 24)))

  def test_cannot_be_mapped(self):
    def step(gradient):
      return _bind(_valid_arguments() | {"activation_gradient": gradient})

    with self.assertRaisesRegex(NotImplementedError, "no batching rule.*vmap"):
      jax.vmap(step)(jnp.ones((2, 12, 24)))


if __name__ == "__main__":
  absltest.main()
