# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What update_test.py, which runs every rule as a custom one, leaves out."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_optimizer_grad
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

_PRIMITIVE = (
    sparse_dense_matmul_optimizer_grad.tpu_sparse_dense_matmul_optimizer_grad_primitive
)
_COO = random_coo.random_coo(
    num_sc_per_device=2,
    rows_per_shard=16,
    batch_size_per_sc=4,
    ids_per_sample=2,
)
_TABLE = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
_GRADIENT = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
_ROW_GRADIENTS = _COO.weights.T @ np.float64(_GRADIENT)


def _sgd(grad, row, learning_rate):
  return row - learning_rate * grad


def _sgd_of_unit_length(grad, row, learning_rate):
  return row - learning_rate * grad / jnp.linalg.norm(grad)


def _bind(function=_sgd, *, slots=(), hyperparameters=(0.5,), **params):
  return _PRIMITIVE.bind(
      *_COO.operands,
      _GRADIENT,
      *map(np.float32, hyperparameters),
      _TABLE,
      *slots,
      **(
          dict(
              num_hyperparameters=len(hyperparameters),
              custom_computation_fn=function,
              max_ids_per_partition=64,
              max_unique_ids_per_partition=64,
          )
          | params
      ),
  )


def _stepped(gradients):
  expected = _TABLE - 0.5 * gradients
  return np.where(_COO.touched[:, None], expected, _TABLE)


class CustomUpdateTest(parameterized.TestCase):

  def test_has_the_public_name_and_returns_a_list(self):
    self.assertEqual(
        _PRIMITIVE.name, "sparse_dense_matmul_optimizer_grad_primitive"
    )
    self.assertTrue(_PRIMITIVE.multiple_results)
    (table,) = _bind()
    np.testing.assert_allclose(table, _stepped(_ROW_GRADIENTS), rtol=1e-5)

  def test_program_wins_over_function(self):
    row = jax.ShapeDtypeStruct((1, 8), jnp.float32)
    text = jax.jit(_sgd).lower(row, row, row).as_text()
    (table,) = _bind(lambda *args: args[0], stablehlo=text)
    np.testing.assert_allclose(table, _stepped(_ROW_GRADIENTS), rtol=1e-5)

  def test_rows_are_stepped_one_by_one(self):
    norms = np.linalg.norm(_ROW_GRADIENTS, axis=1, keepdims=True)
    (table,) = _bind(_sgd_of_unit_length)
    np.testing.assert_allclose(
        table,
        _stepped(_ROW_GRADIENTS / np.where(norms == 0, 1, norms)),
        rtol=1e-5,
    )

  def test_hyperparameters_may_have_one_element(self):
    (expected,) = _bind()
    (table,) = _bind(hyperparameters=([0.5],))
    np.testing.assert_array_equal(table, expected)

  def test_several_or_no_hyperparameters(self):
    (none,) = _bind(lambda grad, row: row - 0.5 * grad, hyperparameters=())
    (two,) = _bind(
        lambda grad, row, a, b: row - a * b * grad, hyperparameters=(2, 0.25)
    )
    for table in (none, two):
      np.testing.assert_allclose(table, _stepped(_ROW_GRADIENTS), rtol=1e-5)

  def test_width_1(self):
    (table,) = _PRIMITIVE.bind(
        *_COO.operands,
        _GRADIENT[:, :1],
        np.float32(0.5),
        _TABLE[:, :1],
        num_hyperparameters=1,
        custom_computation_fn=_sgd,
        max_ids_per_partition=64,
        max_unique_ids_per_partition=64,
    )
    np.testing.assert_allclose(
        table, _stepped(_ROW_GRADIENTS)[:, :1], rtol=1e-5
    )

  @parameterized.named_parameters(
      ("nothing", dict(function=None), "needs custom_computation_fn or stable"),
      (
          "no_table",
          dict(num_hyperparameters=2),
          "2 hyperparameters, a table and any number of slots; got 8 operands",
      ),
      (
          "negative_count",
          dict(num_hyperparameters=-1),
          "num_hyperparameters must be 0 or more, got -1",
      ),
      (
          "no_table_beside_options",
          dict(row_options=("l2_weight_decay",)),
          "1 hyperparameters, l2_weight_decay, a table and any number of slots;"
          " got 8 operands",
      ),
      (
          "no_table_beside_a_seed",
          dict(stochastic_rounding=True),
          "a table and any number of slots, rounding_seed; got 8 operands",
      ),
      (
          "unknown_option",
          dict(slots=(_TABLE,), row_options=("decay",)),
          r"row_options must be some of .*max_gradient_norm.*got \('decay',\)",
      ),
      (
          "results",
          dict(slots=(_TABLE,), function=lambda *args: args[0]),
          "must return 2 arrays, the table and 1 slots; it returned 1",
      ),
      (
          "result_shape",
          dict(function=lambda *args: args[0][0]),
          r"arrays float32\[1, 8\]; result 0 is float32\[8\]",
      ),
      (
          "result_type",
          dict(function=lambda *args: args[0].astype(jnp.int32)),
          r"result 0 is int32\[1, 8\]",
      ),
      (
          "hyperparameter",
          dict(hyperparameters=([0.5, 0.5],)),
          "hyperparameter_0 must have dim 0, got 1",
      ),
      (
          "slot",
          dict(slots=(_TABLE[:4],)),
          r"slot_0 must have shape \(32, 8\), got \(4, 8\)",
      ),
      (
          "limits",
          dict(max_ids_per_partition=0),
          "max_ids_per_partition must be positive",
      ),
      ("name", dict(computation_name=""), "computation_name must not be empty"),
  )
  def test_bad_arguments_raise(self, change, message):
    # Traced only: a program that nobody can lower is not made.
    with self.assertRaisesRegex(ValueError, message):
      jax.eval_shape(functools.partial(_bind, **change))

  def test_errors_of_a_step_say_what_it_gets(self):
    with self.assertRaises(TypeError) as raised:
      _bind(lambda grad, row: row - grad)
    self.assertRegex(
        "".join(raised.exception.__notes__),
        "gradient, row, 0 slots and 1 hyperparameters, float32.1, 8. each",
    )

  def test_no_cells(self):
    no_cells = [x[:0] for x in _COO.operands[1:4]]
    (table,) = _PRIMITIVE.bind(
        np.zeros_like(_COO.row_pointers),
        *no_cells,
        _COO.num_minibatches,
        _GRADIENT,
        _TABLE,
        num_hyperparameters=0,
        custom_computation_fn=lambda grad, row: row - grad,
        max_ids_per_partition=64,
        max_unique_ids_per_partition=64,
    )
    np.testing.assert_array_equal(table, _TABLE)

  @parameterized.parameters(jax.jit, jax.grad)
  def test_values_of_the_program_around_it_raise(self, transformation):
    def step(rate):
      (table,) = _bind(lambda grad, row, _: row - rate * grad)
      return table.sum()

    with self.assertRaisesRegex(
        ValueError,
        r"custom optimizer .*uses float32\[\] of the program around it, a"
        " learning rate for example. Pass that as a hyperparameter",
    ):
      transformation(step)(jnp.float32(0.5))

  def test_constants_around_it_are_its_own(self):
    rate = jnp.float32(0.5)
    (table,) = jax.jit(lambda: _bind(lambda grad, row, _: row - rate * grad))()
    np.testing.assert_allclose(table, _stepped(_ROW_GRADIENTS), rtol=1e-5)

  def test_cannot_be_differentiated(self):
    def loss(gradient):
      (table,) = _PRIMITIVE.bind(
          *_COO.operands,
          gradient,
          _TABLE,
          num_hyperparameters=0,
          custom_computation_fn=lambda grad, row: row - grad,
          max_ids_per_partition=64,
          max_unique_ids_per_partition=64,
      )
      return table.sum()

    with self.assertRaisesRegex(NotImplementedError, "cannot be different"):
      jax.grad(loss)(_GRADIENT)


if __name__ == "__main__":
  absltest.main()
