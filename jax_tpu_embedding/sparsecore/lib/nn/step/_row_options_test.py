# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Options of every optimizer: from the spec to new tables."""

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_SGD = embedding_spec.SGDOptimizerSpec


def _custom(**options):
  return embedding_spec.CustomOptimizerSpec(
      0.5,
      custom_computation_fn=lambda grad, row, rate: row - rate * grad,
      **options,
  )


def _update(model, gradients):
  return jax.jit(
      functools.partial(
          embedding.tpu_sparse_dense_matmul_grad, feature_specs=model.specs
      )
  )(gradients, model.inputs, model.variables)


def _apply_sparse_gradients(model, gradients):
  rows = embedding.sparse_gradients(gradients, model.inputs, model.specs)
  return embedding.apply_sparse_gradients(rows, model.variables, model.specs)


class SpecTest(parameterized.TestCase):

  def test_are_off_by_default(self):
    self.assertEqual(_SGD().get_row_options(), {})
    self.assertEqual(repr(_SGD()), "SGDOptimizerSpec(learning_rate=0.001)")
    self.assertEqual(
        repr(_SGD(skip_non_finite_gradients=True)),
        "SGDOptimizerSpec(learning_rate=0.001, skip_non_finite_gradients=True)",
    )

  def test_have_the_order_of_their_application(self):
    spec = _SGD(
        lambda step: 0.5 + step,
        decoupled_weight_decay=0.25,
        l2_weight_decay=np.float32(0.125),
        max_gradient_norm=jnp.ones((1,)),
        skip_non_finite_gradients=True,
    )
    options = spec.get_row_options(step=1)
    self.assertEqual(list(options), list(row_options.ROW_OPTIONS))
    self.assertIsNone(options.pop("skip_non_finite_gradients"))
    # Decoupled decay is scaled by the learning rate, 1.5.
    np.testing.assert_array_equal(list(options.values()), [1, 0.125, 0.375])
    for value in options.values():
      self.assertEqual((value.shape, value.dtype), ((), jnp.float32))

  def test_options_of_0_are_on(self):
    self.assertEqual(
        list(_SGD(l2_weight_decay=0).get_row_options()), ["l2_weight_decay"]
    )

  def test_take_part_in_equality(self):
    self.assertEqual(_SGD(l2_weight_decay=0.5), _SGD(l2_weight_decay=0.5))
    self.assertNotEqual(_SGD(l2_weight_decay=0.5), _SGD())
    self.assertNotEqual(_SGD(skip_non_finite_gradients=True), _SGD())
    self.assertNotEqual(
        _SGD(l2_weight_decay=0.5), _SGD(decoupled_weight_decay=0.5)
    )

  @parameterized.parameters(
      ("max_gradient_norm", 0.0, ValueError, "finite and positive, got 0.0"),
      ("max_gradient_norm", -1, ValueError, "finite and positive, got -1"),
      ("max_gradient_norm", float("inf"), ValueError, "finite and positive"),
      ("max_gradient_norm", "1", TypeError, "a number, got '1'"),
      ("l2_weight_decay", -1.0, ValueError, "finite and at least 0, got -1.0"),
      ("l2_weight_decay", float("inf"), ValueError, "finite and at least 0"),
      ("l2_weight_decay", np.ones(2), ValueError, "one number, got an array"),
      ("decoupled_weight_decay", -1, ValueError, "finite and at least 0"),
      ("decoupled_weight_decay", float("nan"), ValueError, "number, got nan"),
      ("skip_non_finite_gradients", 1.0, TypeError, "True or False, got 1.0"),
      ("skip_non_finite_gradients", None, TypeError, "True or Fal.*got None"),
  )
  def test_values_that_can_only_give_nonsense_raise(
      self, option, value, error, message
  ):
    for spec in (_SGD, _custom):
      with self.assertRaisesRegex(
          error, f"OptimizerSpec: {option} must be .*{message}"
      ):
        spec(**{option: value})

  def test_values_may_be_traced(self):
    @jax.jit
    def options(decay):
      return _SGD(0.5, decoupled_weight_decay=decay).get_row_options()

    self.assertEqual(options(0.5), {"decoupled_weight_decay": 0.25})


class UpdateTest(parameterized.TestCase):

  @parameterized.parameters(_custom, lambda **options: _SGD(0.5, **options))
  def test_are_applied_to_the_rows_of_the_batch(self, spec):
    model = two_table_model.TwoTableModel(
        2,
        optimizer=spec(
            max_gradient_norm=0.75,
            l2_weight_decay=0.25,
            decoupled_weight_decay=0.125,
        ),
    )
    gradients = {
        name: np.ones(feature.output_shape, np.float32)
        for name, feature in model.specs.items()
    }
    new = jax.jit(
        lambda gradients, variables: embedding.tpu_sparse_dense_matmul_grad(
            gradients, model.inputs, variables, model.specs
        )
    )(gradients, model.variables)

    before = model.logical_tables(model.variables)["users"]
    after = model.logical_tables(new)["users"]
    gradient = model.gains("user").T @ gradients["user"]
    norm = np.linalg.norm(gradient, axis=1, keepdims=True)
    touched = norm[:, 0] > 0
    self.assertTrue(np.any(norm > 0.75) and not np.all(touched))
    gradient *= 0.75 / np.maximum(norm, 0.75)
    expected = before - 0.5 * (gradient + 0.25 * before) - 0.5 * 0.125 * before
    np.testing.assert_allclose(after[touched], expected[touched], rtol=1e-5)
    np.testing.assert_array_equal(after[~touched], before[~touched])

  @parameterized.product(
      spec=[_custom, lambda **options: _SGD(0.5, **options)],
      update=[_update, _apply_sparse_gradients],
  )
  def test_rows_without_finite_gradient_stay(self, spec, update):
    model = two_table_model.TwoTableModel(
        2, optimizer=spec(skip_non_finite_gradients=True)
    )
    gradients = {
        name: np.ones(feature.output_shape, np.float32)
        for name, feature in model.specs.items()
    }
    gradients["user"][3, 2] = np.nan
    gradients["user"][4, 5] = np.inf
    new = update(model, gradients)
    before = model.logical_tables(model.variables)["users"]
    after = model.logical_tables(new)["users"]
    gains = model.gains("user")
    is_left_out = np.any(gains[3:5] > 0, axis=0)
    is_stepped = np.any(gains > 0, axis=0) & ~is_left_out
    self.assertTrue(is_left_out.any() and is_stepped.any())
    # Not written in place: the program may still be reading it.
    finite = gradients["user"].copy()
    finite[3:5] = 0
    expected = before - 0.5 * gains.T @ finite
    np.testing.assert_allclose(
        after[is_stepped], expected[is_stepped], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(after[~is_stepped], before[~is_stepped])


if __name__ == "__main__":
  absltest.main()
