# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches of another size than the specs declare, tables stacked or not."""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
from scipy import sparse


def _rows(ids):
  """The ids as what SciPy and others have: a value each, and row splits."""
  splits = np.arange(len(ids) + 1, dtype=np.int32) * ids.shape[1]
  return ids.reshape(-1), splits


class BatchSizesTest(parameterized.TestCase):

  @parameterized.parameters(
      # One sample, some, and more than there are.
      (1, 1, True, "SPLIT_THEN_STACK", np.asarray),
      (2, 6, True, "STACK_THEN_SPLIT", _rows),
      (2, 6, False, "SPLIT_THEN_STACK", np.asarray),
      (2, 40, True, "SPLIT_THEN_STACK", _rows),
  )
  def test_results_are_those_of_specs_with_this_batch(
      self, num_sc, batch, stacked, strategy, form
  ):
    model = two_table_model.TwoTableModel(num_sc, stacked=stacked)
    ids = {
        name: np.resize(x, (batch, x.shape[1])) for name, x in model.ids.items()
    }
    in_form = {name: form(x) for name, x in ids.items()}
    tables = model.logical_tables(model.variables)
    options = dict(feature_stacking_strategy=strategy)
    on_host, _ = embedding.preprocess_sparse_dense_matmul_input(
        in_form, None, model.specs, 1, 1, num_sc_per_device=num_sc, **options
    )
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=num_sc
    )
    in_program = embedding.convert_ids(
        in_form, None, model.specs, topology, **options
    )

    @jax.jit
    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, model.specs
      )
      # The gradient of a row is its count.
      ones = jax.tree.map(jnp.ones_like, activations)
      rows = embedding.sparse_gradients(ones, inputs, model.specs)
      return (
          activations,
          embedding.tpu_sparse_dense_matmul_grad(
              ones, inputs, variables, model.specs
          ),
          embedding.apply_sparse_gradients(rows, variables, model.specs),
      )

    for inputs in (on_host, in_program):
      activations, *updated = step(inputs, model.variables)
      for name, spec in model.specs.items():
        table = np.asarray(tables[spec.table_spec.name])
        np.testing.assert_allclose(
            activations[name], table[ids[name]].sum(axis=1), atol=1e-5
        )
      for name, table in tables.items():
        counts = np.zeros(len(table))
        for feature, spec in model.specs.items():
          if spec.table_spec.name == name:
            np.add.at(counts, ids[feature].ravel(), 1)
        expected = np.asarray(table) - 0.5 * counts[:, None]
        for variables in updated:
          np.testing.assert_allclose(
              model.logical_tables(variables)[name], expected, atol=1e-4
          )

  @parameterized.product(
      # A smaller batch has room in the places of the plan.
      batch=[6, 40],
      strategy=["SPLIT_THEN_STACK", "STACK_THEN_SPLIT"],
  )
  def test_another_batch_declared_after_stacking(self, batch, strategy):
    model = two_table_model.TwoTableModel(2)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=2
    )

    specs = {
        name: dataclasses.replace(
            f,
            input_shape=(batch, f.input_shape[1]),
            output_shape=(batch, f.output_shape[1]),
        )
        for name, f in model.specs.items()
    }
    ids = {
        name: np.resize(x, (batch, x.shape[1])) for name, x in model.ids.items()
    }
    options = dict(feature_stacking_strategy=strategy)

    def step(inputs, specs):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, model.variables, specs
      )
      new = embedding.tpu_sparse_dense_matmul_grad(
          jax.tree.map(jnp.sin, activations), inputs, model.variables, specs
      )
      return activations, new

    expected = step(
        embedding.convert_ids(ids, None, model.specs, topology, **options),
        model.specs,
    )
    for inputs in (
        embedding.convert_ids(ids, None, specs, topology, **options),
        embedding.preprocess_sparse_dense_matmul_input(
            ids, None, specs, 1, 1, num_sc_per_device=2, **options
        )[0],
    ):
      jax.tree.map(
          functools.partial(np.testing.assert_allclose, atol=1e-5),
          step(inputs, specs),
          expected,
      )

  def test_a_shape_that_inputs_know_nothing_of_names_the_feature(self):
    model = two_table_model.TwoTableModel(2)
    specs = dict(model.specs)
    specs["item"] = dataclasses.replace(
        specs["item"], input_shape=(48, 1), output_shape=(48, 8)
    )
    inputs = model.inputs.replace(settings=None)
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, model.variables, model.specs, global_device_count=1
    )
    message = r"Feature '.*': its output_shape \(.*'item': .*same specs"
    with self.assertRaisesRegex(ValueError, message):
      embedding.tpu_sparse_dense_matmul(
          inputs, model.variables, specs, global_device_count=1
      )
    activations["item"] = jnp.zeros((48, 8))
    with self.assertRaisesRegex(ValueError, message):
      embedding.stack_embedding_gradients(activations, specs, 2, 1)

  def test_settings_of_an_earlier_version_say_batches_only(self):
    model = two_table_model.TwoTableModel(2)
    ids = {name: x[:6] for name, x in model.ids.items()}
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, model.specs, 1, 1, num_sc_per_device=2
    )
    old = dataclasses.replace(inputs.settings, layouts=())
    jax.tree.map(
        np.testing.assert_array_equal,
        model.lookup(inputs.replace(settings=old), model.variables),
        model.lookup(inputs, model.variables),
    )

  def test_features_may_have_batches_of_their_own(self):
    # A user, and every item for them.
    model = two_table_model.TwoTableModel(1)
    ids = {
        "user": np.array([[3]]),
        "item": np.arange(70)[:, None],
        "last": np.array([[5, 6]]),
    }
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids, None, model.specs, 1, 1, num_sc_per_device=1
    )
    activations = model.lookup(inputs, model.variables)
    tables = model.logical_tables(model.variables)
    np.testing.assert_array_equal(activations["item"], tables["items"])
    np.testing.assert_array_equal(activations["user"], tables["users"][3:4])

  @parameterized.parameters(
      (np.zeros((2, 5), np.int32), (2, 5, 8)),
      (np.zeros((2, 5, 4), np.int32), (2, 5, 8)),
      (np.zeros((10, 4), np.int32), (2, 5, 8)),
      (_rows(np.zeros((10, 4), np.int32)), (2, 5, 8)),
      # As declared, although 30 is a batch of positions, too.
      (np.zeros((30, 4), np.int32), (6, 5, 8)),
      # As declared, although it may be a batch of 30 with an id per position.
      (np.zeros((30, 5), np.int32), (6, 5, 8)),
  )
  def test_positions_are_no_batch(self, ids, expected):
    table = two_table_model.table(embedding_dim=8)
    feature = two_table_model.feature("f", table, batch=6)
    feature.output_shape = (6, 5, 8)
    specs = {"f": feature}
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids}, None, specs, 1, 1, num_sc_per_device=1
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        two_table_model.one_device_sharding(),
        1,
    )
    activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
    self.assertEqual(activations["f"].shape, expected)

  def test_a_batch_that_sparsecores_cannot_share_says_which_one_they_can(self):
    model = two_table_model.TwoTableModel(2)
    ids = {name: x[:3] for name, x in model.ids.items()}
    with self.assertRaisesRegex(ValueError, "3 samples.*multiple of 2"):
      embedding.preprocess_sparse_dense_matmul_input(
          ids, None, model.specs, 1, 1, num_sc_per_device=2
      )
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=2
    )
    with self.assertRaisesRegex(ValueError, "3 samples.*multiple of 2"):
      embedding.convert_ids(ids, None, model.specs, topology)

  def test_specs_stay_as_they_are(self):
    model = two_table_model.TwoTableModel(2)
    before = repr(model.specs)
    embedding.preprocess_sparse_dense_matmul_input(
        {name: x[:2] for name, x in model.ids.items()},
        None,
        model.specs,
        1,
        1,
        num_sc_per_device=2,
    )
    self.assertEqual(repr(model.specs), before)


def _object_rows(ids):
  rows = np.empty(len(ids), object)
  rows[:] = list(ids)
  return rows


def _sparse(ids):
  splits = np.arange(len(ids) + 1) * ids.shape[1]
  return sparse.csr_array((np.ones(ids.size), ids.ravel(), splits))


class PositionsTest(parameterized.TestCase):
  """Features with two positions per sample, of which four are declared."""

  def setUp(self):
    super().setUp()
    table = embedding_spec.TableSpec(
        name="t",
        vocabulary_size=40,
        embedding_dim=1,
        initializer=lambda: np.arange(40, dtype=np.float32)[:, None],
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
    )
    self.specs = {
        "f": embedding_spec.FeatureSpec(
            name="f",
            table_spec=table,
            input_shape=(4, 2),
            output_shape=(4, 2, 1),
        )
    }
    embedding.prepare_feature_specs_for_training(self.specs, 1, 2)

  def look_up(self, ids):
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        jax.sharding.NamedSharding(mesh, jax.P("x", None)),
        2,
    )
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": ids}, None, self.specs, 1, 1, num_sc_per_device=2
    )
    return embedding.tpu_sparse_dense_matmul(inputs, variables, self.specs)["f"]

  @parameterized.product(
      form=(_rows, _object_rows, _sparse), num_samples=(2, 4, 6)
  )
  def test_each_position_is_a_row_of_ids(self, form, num_samples):
    ids = np.arange(1, 4 * num_samples + 1).reshape(2 * num_samples, 2)
    np.testing.assert_array_equal(
        self.look_up(form(ids)), ids.sum(axis=1).reshape(num_samples, 2, 1)
    )

  @parameterized.product(
      form=(_rows, _object_rows, _sparse), num_rows=(1, 3, 7, 9)
  )
  def test_half_of_a_sample_is_refused(self, form, num_rows):
    with self.assertRaisesRegex(
        ValueError, f"'f': the ids have {num_rows} rows, .* multiple of 2"
    ):
      self.look_up(form(np.ones((num_rows, 2), np.int32)))

  def test_dense_ids_have_the_shape_of_the_feature(self):
    with self.assertRaisesRegex(ValueError, r"shape \(4, 3\).*\(4, 2, 1\)"):
      self.look_up(np.ones((4, 3), np.int32))

  @parameterized.parameters(6, 2)
  def test_whether_rows_are_samples_or_positions_is_not_guessed(self, num_rows):
    self.specs["f"].input_shape = (8, 2)  # as many rows as positions
    ids = np.arange(2 * num_rows).reshape(num_rows, 2)
    with self.assertRaisesRegex(
        ValueError, rf"'f': ids of shape \({num_rows}, 2\) may be .*\(8, 2\)"
    ):
      self.look_up(ids)
    self.assertEqual(self.look_up(ids[:, :, None]).shape, (num_rows, 2, 1))
    self.assertEqual(
        self.look_up(ids.reshape(-1, 2, 2)).shape, (num_rows // 2, 2, 1)
    )
    self.specs["f"].input_shape = (4, 2)  # as many rows as samples
    self.assertEqual(self.look_up(ids).shape, (num_rows, 2, 1))

  @parameterized.parameters(
      (np.zeros((0, 2), np.int32),),
      ((np.zeros(0, int), np.zeros(1, int)),),
      ((np.zeros(0, int), np.zeros(0, int)),),
  )
  def test_a_batch_without_samples_is_refused(self, ids):
    with self.assertRaisesRegex(ValueError, "'f': the batch has no samples"):
      self.look_up(ids)


if __name__ == "__main__":
  absltest.main()
