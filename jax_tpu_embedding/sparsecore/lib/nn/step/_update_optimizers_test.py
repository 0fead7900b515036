# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every optimizer spec from ids to new tables, against its rule's step."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import every_optimizer
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np


def _momentum(grad, row, momentum, learning_rate):
  momentum = 0.5 * momentum + grad
  return row - learning_rate * momentum, momentum


def _custom(**computation):
  return embedding_spec.CustomOptimizerSpec(
      0.5,
      slot_variable_initializers_tuple=(jax.nn.initializers.constant(0.25),),
      **computation,
  )


def _long_rows_last(grad, row, slot, learning_rate):
  length = jnp.linalg.norm(row, axis=1, keepdims=True)
  return row - learning_rate * grad / (1 + length), slot


_SPECS = [spec_class() for spec_class in every_optimizer.SPECS.values()] + [
    embedding_spec.FTRLOptimizerSpec(multiply_linear_by_learning_rate=True),
    _custom(custom_computation_fn=_momentum),
    _custom(
        stablehlo=embedding_spec.CustomOptimizerSpec.lower_to_stablehlo(
            _momentum, embedding_dim=8, num_slot_variables=1
        )
    ),
]


def _step(spec, grad, row, step):
  """The new row and slots of all rows, hit or not, from fresh slots.

  Steps what the stack has: columns are padded to 8, with zeros.
  """
  static_params = spec.get_static_params()
  if spec.depends_on_embedding_dim:
    static_params["embedding_dim"] = row.shape[1]
  padding = ((0, 0), (0, 8 - row.shape[1]))
  grad, row = jnp.pad(jnp.float32(grad), padding), jnp.pad(row, padding)
  slots = tuple(
      init(jax.random.key(0), (row.shape[0], 1 if is_of_rows else 8))
      for init, is_of_rows in zip(
          spec.slot_variables_initializers(), spec.slot_variables_of_rows()
      )
  )
  hyper = spec.get_hyperparameters(step)
  if isinstance(spec, embedding_spec.CustomOptimizerSpec):
    row, *slots = _momentum(grad, row, *slots, *hyper)
    return row, tuple(slots)
  return update_rules.UPDATE_RULES[spec.short_name()].step(
      grad, row, slots, hyper, **static_params
  )


class UpdateOptimizersTest(parameterized.TestCase):

  @parameterized.parameters(
      *_SPECS, _custom(custom_computation_fn=_long_rows_last)
  )
  def test_padding_of_a_warm_start_reaches_no_value(self, spec):
    spec = dataclasses.replace(
        spec,
        skip_non_finite_gradients=True,
        max_gradient_norm=1.0,
        l2_weight_decay=0.01,
        decoupled_weight_decay=0.01,
    )
    model = two_table_model.TwoTableModel(2, optimizer=spec)
    specs = embedding.get_table_specs(model.specs)
    tables = table_stacking.unshard_and_unstack_tables(
        specs, model.variables, 2
    )
    gradients = {
        name: np.ones(f.output_shape, np.float32)
        for name, f in model.specs.items()
    }

    @jax.jit
    def update(variables):
      return embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, variables, model.specs, step=3
      )

    after = []
    for padding in ({}, dict(pad_value=0.0)):  # NaN is the default.
      variables = table_stacking.stack_and_shard_tables(
          specs, tables, 2, **padding
      )
      variables = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), variables)
      for _ in range(2):
        variables = update(variables)
      after.append(
          table_stacking.unshard_and_unstack_tables(specs, variables, 2)
      )
    jax.tree.map(np.testing.assert_array_equal, *after)
    # The users have 6 columns of 8.
    self.assertFalse(np.isnan(after[0]["users"].table).any())
    self.assertTrue(np.any(after[0]["users"].table != tables["users"].table))

  @parameterized.parameters(*_SPECS)
  def test_rows_in_the_batch_are_stepped(self, spec):
    model = two_table_model.TwoTableModel(2, optimizer=spec)
    rng = np.random.default_rng(3)
    gradients = {
        name: rng.normal(size=f.output_shape).astype(np.float32)
        for name, f in model.specs.items()
    }

    @jax.jit
    def update(gradients, variables, step):
      return embedding.tpu_sparse_dense_matmul_grad(
          gradients, model.inputs, variables, model.specs, step=step
      )

    new = update(gradients, model.variables, 3)
    self.assertEqual(
        jax.tree.structure(new), jax.tree.structure(model.variables)
    )
    before = model.logical_tables(model.variables)
    after = model.logical_tables(new)
    for table, rows in before.items():
      gains = [
          (model.gains(name), gradients[name])
          for name, f in model.specs.items()
          if f.table_spec.name == table
      ]
      gradient = sum(gain.T @ grad for gain, grad in gains)
      touched = sum(gain.sum(0) for gain, _ in gains) > 0
      expected, _ = _step(spec, gradient, rows, 3)
      expected = expected[:, : rows.shape[1]]
      np.testing.assert_array_equal(after[table][~touched], rows[~touched])
      np.testing.assert_allclose(
          after[table][touched], expected[touched], rtol=2e-5, atol=2e-5
      )

  @parameterized.parameters(*_SPECS)
  def test_limits_clamp_the_rows(self, spec):
    model = two_table_model.TwoTableModel(1, stacked=False, optimizer=spec)
    new = embedding.tpu_sparse_dense_matmul_grad(
        {n: jnp.ones(f.output_shape) for n, f in model.specs.items()},
        model.inputs,
        model.variables,
        model.specs,
        embedding_var_limits={"users": (-0.01, 0.01), "items": (None, None)},
    )
    rows = model.logical_tables(new)["users"][np.unique(model.ids["user"])]
    self.assertEqual(np.abs(rows).max(), np.float32(0.01))

  def test_limits_may_leave_out_stacks_of_custom_optimizers(self):
    model = two_table_model.TwoTableModel(
        1, stacked=False, optimizer=_custom(custom_computation_fn=_momentum)
    )
    zeros = {n: jnp.zeros(f.output_shape) for n, f in model.specs.items()}
    update = lambda limits: embedding.tpu_sparse_dense_matmul_grad(
        zeros,
        model.inputs,
        model.variables,
        model.specs,
        embedding_var_limits=limits,
    )
    jax.tree.map(np.testing.assert_array_equal, update({}), update(None))

  def test_computation_is_needed_for_an_update(self):
    model = two_table_model.TwoTableModel(
        1, optimizer=embedding_spec.CustomOptimizerSpec()
    )
    with self.assertRaisesRegex(ValueError, "custom_computation_fn or stableh"):
      embedding.tpu_sparse_dense_matmul_grad(
          model.lookup(model.inputs, model.variables),
          model.inputs,
          model.variables,
          model.specs,
      )


if __name__ == "__main__":
  absltest.main()
