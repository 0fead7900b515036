# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of rows on one device; see also _sparse_gradients_devices_test."""

import dataclasses
import functools
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
import optax

_NO_ROW = 2**31 - 1
_OPTIMIZERS = {
    "sgd": embedding_spec.SGDOptimizerSpec(
        learning_rate=lambda step: 0.5 / (1 + step)
    ),
    "adam": embedding_spec.AdamOptimizerSpec(0.5, max_gradient_norm=1.0),
    "rowwise_adagrad": embedding_spec.RowwiseAdagradOptimizerSpec(0.5),
    "custom": embedding_spec.CustomOptimizerSpec(
        0.5, lambda gradient, row, rate: row - rate * gradient
    ),
}


def _activation_gradients(model, seed=0):
  rng = np.random.default_rng(seed)
  return {
      name: rng.normal(size=spec.output_shape).astype(np.float32)
      for name, spec in model.specs.items()
  }


def _sparse_gradients(model, seed=0):
  make = functools.partial(
      embedding.sparse_gradients, feature_specs=model.specs
  )
  return jax.jit(make)(_activation_gradients(model, seed), model.inputs)


def _apply(model, gradients, **options):
  apply = functools.partial(
      embedding.apply_sparse_gradients, feature_specs=model.specs, **options
  )
  return jax.jit(apply)(gradients, model.variables)


def _update(model, activation_gradients, **options):
  update = functools.partial(
      embedding.tpu_sparse_dense_matmul_grad,
      feature_specs=model.specs,
      **options,
  )
  return jax.jit(update)(activation_gradients, model.inputs, model.variables)


def _dense(gradient, num_rows):
  """f64[num_rows, D]: the gradient of a whole stack."""
  total = np.zeros((num_rows, gradient.values.shape[-1]))
  is_row = np.asarray(gradient.rows) != _NO_ROW
  np.add.at(total, np.asarray(gradient.rows)[is_row], gradient.values[is_row])
  return total


def _assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


class SparseGradientsTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, True, "sum"), (1, False, "mean"), (3, True, "sqrtn")
  )
  def test_are_those_of_matrices(self, num_sc, stacked, combiner):
    model = two_table_model.TwoTableModel(num_sc, stacked, combiner)
    gradients = _sparse_gradients(model)
    dense = {
        name: _dense(gradient, model.variables[name].table.shape[0])
        for name, gradient in gradients.items()
    }
    actual = model.logical_tables(
        {
            name: variables._replace(
                table=jnp.asarray(dense[name], jnp.float32)
            )
            for name, variables in model.variables.items()
        }
    )
    expected = {"users": np.zeros((40, 6)), "items": np.zeros((70, 8))}
    for name, gradient in _activation_gradients(model).items():
      expected[model.specs[name].table_spec.name] += (
          model.gains(name).T @ gradient
      )
    for name, table in expected.items():
      np.testing.assert_allclose(actual[name], table, rtol=1e-5, atol=1e-5)

  @parameterized.parameters(
      ("sgd", 1), ("adam", 3), ("rowwise_adagrad", 2), ("custom", 1)
  )
  def test_applied_they_are_the_update(self, optimizer, num_sc):
    model = two_table_model.TwoTableModel(
        num_sc, optimizer=_OPTIMIZERS[optimizer]
    )
    limits = {name: (-0.5, None) for name in model.variables}
    options = dict(step=3, embedding_var_limits=limits)
    expected = _update(model, _activation_gradients(model), **options)
    new = _apply(model, _sparse_gradients(model), **options)
    _assert_equal(new, expected)

  def test_rows_without_entries_are_no_rows(self):
    model = two_table_model.TwoTableModel(1)
    ((name, gradient),) = _sparse_gradients(model).items()
    touched = np.zeros(model.variables[name].table.shape[0], bool)
    touched[gradient.rows[gradient.rows != _NO_ROW]] = True
    new = _apply(model, {name: gradient})[name]
    changed = np.any(new.table != model.variables[name].table, axis=1)
    np.testing.assert_array_equal(changed, touched)

  def test_added_they_are_the_sum(self):
    model = two_table_model.TwoTableModel(2)
    first, second = (_sparse_gradients(model, seed) for seed in (0, 1))
    total = jax.jit(embedding.add_sparse_gradients)(first, second)
    self.assertCountEqual(total, first)
    for name, gradient in total.items():
      rows = gradient.rows[gradient.rows != _NO_ROW]
      self.assertLen(np.unique(rows), rows.size)
      self.assertLen(
          gradient.rows, first[name].rows.size + second[name].rows.size
      )
      expected = _dense(first[name], 500) + _dense(second[name], 500)
      np.testing.assert_allclose(_dense(gradient, 500), expected, atol=1e-5)

  def test_leading_axes_are_added(self):
    model = two_table_model.TwoTableModel(1)
    gradients = [_sparse_gradients(model, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
    add = jax.jit(embedding.add_sparse_gradients)
    expected = add(*gradients)
    _assert_equal(add(stacked), expected)
    # A step adds them too.
    _assert_equal(_apply(model, stacked), _apply(model, expected))

  # 256 rows in one shard, of which a minibatch has 4. These limits size the
  # memory of a SparseCore.
  @parameterized.parameters(
      (8, False, 8), (1024, False, 256), (8, True, 4), (1024, True, 4)
  )
  def test_limit_is_the_lesser_of_gradients_and_rows(
      self, n, enable_minibatching, expected
  ):
    table = two_table_model.table(vocabulary_size=256, embedding_dim=8)
    specs = {"f": two_table_model.feature("f", table, batch=8)}
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    apply = functools.partial(
        embedding.apply_sparse_gradients,
        feature_specs=specs,
        enable_minibatching=enable_minibatching,
    )
    text = (
        jax.jit(apply)
        .trace(
            {
                "t": embedding.SparseGradient(
                    jnp.zeros(n, int), jnp.ones((n, 8))
                )
            },
            {"t": embedding.EmbeddingVariables(jnp.ones((256, 8)), ())},
        )
        .lower(lowering_platforms=("tpu",))
        .as_text()
    )
    limits = re.findall(
        r'"(max_\w*ids_per_partition)": (\d+)', text.replace("\\22", '"')
    )
    self.assertEqual(
        dict(limits),
        {
            "max_ids_per_partition": str(n),
            "max_unique_ids_per_partition": str(expected),
        },
    )

  @parameterized.product(num_sc=[1, 5], enable_minibatching=[False, True])
  def test_rows_of_any_order_and_number(self, num_sc, enable_minibatching):
    table = two_table_model.table(
        vocabulary_size=64, embedding_dim=8, optimizer=two_table_model.sgd(1.0)
    )
    specs = {"f": two_table_model.feature("f", table, batch=20)}
    embedding.prepare_feature_specs_for_training(specs, 1, num_sc)
    num_rows = table.stacked_table_spec.stack_vocab_size
    before = jnp.zeros((num_rows, 8))
    rng = np.random.default_rng(0)
    for n in (1, 63):
      rows = rng.integers(num_rows, size=n, dtype=np.int32)
      rows[rng.random(n) < 0.3] = _NO_ROW
      values = np.float32(rng.integers(-4, 5, (n, 8)))
      values[rows == _NO_ROW] = 0
      gradient = embedding.SparseGradient(rows, values)
      apply = functools.partial(
          embedding.apply_sparse_gradients,
          feature_specs=specs,
          enable_minibatching=enable_minibatching,
      )
      new = jax.jit(apply)({"t": gradient}, {"t": (before, ())})
      np.testing.assert_array_equal(new["t"][0], -_dense(gradient, num_rows))

  @parameterized.parameters(-1, 10**6)
  def test_rows_that_are_none_raise(self, row):
    model = two_table_model.TwoTableModel(1, stacked=False)
    gradients = _sparse_gradients(model)
    rows = gradients["users"].rows.at[0].set(row)
    gradients["users"] = gradients["users"]._replace(rows=rows)
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), r"embedding_ids\[\d+\] is"
    ):
      jax.block_until_ready(_apply(model, gradients))

  def test_one_program_for_all_steps(self):
    model = two_table_model.TwoTableModel(1, optimizer=_OPTIMIZERS["sgd"])
    num_traces = 0

    @jax.jit
    def change(gradients, variables, step):
      nonlocal num_traces
      num_traces += 1
      new = embedding.apply_sparse_gradients(
          gradients, variables, model.specs, step=step
      )
      return new["items_users"].table - variables["items_users"].table

    gradients = _sparse_gradients(model)
    first = change(gradients, model.variables, 0)
    self.assertGreater(np.abs(first).max(), 0.1)
    for step in (1, 3):
      np.testing.assert_allclose(
          change(gradients, model.variables, step),
          first / (1 + step),
          atol=1e-6,
      )
    self.assertEqual(num_traces, 1)

  def test_optax_sees_the_norm_of_the_table(self):
    model = two_table_model.TwoTableModel(2)
    gradients = _sparse_gradients(model)
    values = {name: each.values for name, each in gradients.items()}
    expected = np.linalg.norm(_dense(gradients["items_users"], 500))
    np.testing.assert_allclose(optax.tree.norm(values), expected, rtol=1e-5)

  def test_specs_that_others_placed_need_the_counts(self):
    model = two_table_model.TwoTableModel(2)
    for spec in model.specs.values():
      table = spec.table_spec
      table.setting_in_stack = dataclasses.replace(
          table.setting_in_stack, num_shards=None
      )
    make = functools.partial(
        embedding.sparse_gradients,
        _activation_gradients(model),
        model.inputs.replace(settings=None),
        model.specs,
    )
    apply = functools.partial(
        embedding.apply_sparse_gradients,
        embedding_variables=model.variables,
        feature_specs=model.specs,
    )
    with self.assertRaisesRegex(
        ValueError, "The inputs do not say.*Pass global_device_count"
    ):
      make()
    with self.assertRaisesRegex(
        ValueError, "'items'.*Pass global_device_count"
    ):
      make(num_sc_per_device=2)
    counts = dict(global_device_count=1, num_sc_per_device=2)
    gradients = jax.eval_shape(lambda: make(**counts))
    with self.assertRaisesRegex(ValueError, "'items'.*Pass num_sc_per_device"):
      make(global_device_count=1)
    with self.assertRaisesRegex(ValueError, "'items'.*Pass num_sc_per_device"):
      jax.eval_shape(apply, gradients)
    jax.eval_shape(functools.partial(apply, num_sc_per_device=2), gradients)

  def test_arguments_are_checked(self):
    model = two_table_model.TwoTableModel(2)
    activation_gradients = _activation_gradients(model)
    gradients = _sparse_gradients(model)
    (gradient,) = gradients.values()

    def make(**changes):
      arguments = dict(
          activation_gradients=activation_gradients,
          preprocessed_inputs=model.inputs,
          feature_specs=model.specs,
      )
      return embedding.sparse_gradients(**arguments | changes)

    def apply(**changes):
      arguments = dict(
          gradients=gradients,
          embedding_variables=model.variables,
          feature_specs=model.specs,
      )
      return embedding.apply_sparse_gradients(**arguments | changes)

    # Valid, but for what a line replaces.
    for call in (make, apply):
      jax.eval_shape(call)
    jax.eval_shape(embedding.add_sparse_gradients, gradients)
    table = model.variables["items_users"]
    unknown = model.inputs.replace(settings=None)
    wrong = gradient._replace(rows=gradient.rows[1:])
    narrow = gradient._replace(values=gradient.values[:, 1:])
    for call, message in (
        (
            lambda: make(global_device_count=2, preprocessed_inputs=unknown),
            "'items_users': .* 16 row pointers, expected 8 for one of 2 dev",
        ),
        (
            lambda: make(
                global_device_count=1,
                enable_minibatching=True,
                preprocessed_inputs=unknown,
            ),
            "'items_users': .* 16 row pointers, expected 1024",
        ),
        (
            lambda: make(activation_gradients={"user": 0}),
            "feature_specs and activation_gradients",
        ),
        (
            lambda: make(
                activation_gradients={"t": np.zeros((72, 8))},
                perform_stacking=False,
            ),
            r"activation_gradients must have one entry.*\['items_users'\], got"
            r" \['t'\]",
        ),
        (
            lambda: apply(gradients={"t": gradient}),
            r"gradients must have one entry.*\['items_users'\], got \['t'\]",
        ),
        (
            lambda: apply(embedding_variables={}),
            r"embedding_variables must have one entry.*got \[\]",
        ),
        (
            lambda: apply(gradients={"items_users": wrong}),
            r"'items_users': rows must have shape \[n\] and values \[n, D\]",
        ),
        (
            lambda: apply(gradients={"items_users": narrow}),
            "as many columns as the table, 8, got 7",
        ),
        (
            lambda: apply(
                embedding_variables={
                    "items_users": table._replace(table=table.table[:33])
                }
            ),
            "has 33 rows, which does not divide the stack's",
        ),
        (
            lambda: apply(num_sc_per_device=3),
            "prepared for 2 SparseCores in all, and is used with 3",
        ),
        (
            lambda: embedding.add_sparse_gradients(),
            "at least one dict of gradients, got none",
        ),
        (
            lambda: embedding.add_sparse_gradients(gradients, {"t": gradient}),
            "gradients must have one entry per stack",
        ),
        (
            lambda: embedding.add_sparse_gradients(
                gradients, {"items_users": narrow}
            ),
            r"'items_users': gradients have \[7, 8\] columns",
        ),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        jax.eval_shape(call)
    for call in (
        lambda: apply(gradients={"items_users": tuple(gradient)}),
        lambda: embedding.add_sparse_gradients({"items_users": None}),
    ):
      with self.assertRaisesRegex(
          TypeError, "'items_users': .* SparseGradient, got (tuple|NoneType)"
      ):
        jax.eval_shape(call)


if __name__ == "__main__":
  absltest.main()
