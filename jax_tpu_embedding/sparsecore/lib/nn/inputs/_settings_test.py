# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What buffers were made for is part of them, and programs go by it."""

import dataclasses
import pickle
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_MESH = jax.sharding.Mesh(jax.devices(), ("x",))
_SPLIT = jax.sharding.PartitionSpec("x")
_TOPOLOGY = layout.Topology(
    local_device_count=2, global_device_count=2, num_sc_per_device=1
)


def _specs(batch, valency, vocabulary_size, **fields):
  table = two_table_model.table(
      vocabulary_size=vocabulary_size, embedding_dim=8, **fields
  )
  specs = {"f": two_table_model.feature("f", table, valency, batch)}
  embedding.prepare_feature_specs_for_training(specs, 2, 1)
  return specs


def _variables(specs):
  return embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(_MESH, jax.sharding.PartitionSpec("x", None)),
      1,
  )


def _over_devices(function):
  """`function` with messages, as between processes, and not shared memory."""
  return jax.jit(
      jax.shard_map(
          function,
          mesh=_MESH,
          in_specs=_SPLIT,
          out_specs=_SPLIT,
          check_vma=False,
      )
  )


def _by_messages(test):
  test.enter_context(
      mock.patch.object(mesh_axis, "_is_in_one_process", lambda _: False)
  )


def _rows(specs, variables):
  """f32[vocabulary_size, 8], as the user counts rows."""
  shards = np.asarray(variables["t"].table).reshape(2, -1, 8)
  vocabulary_size = specs["f"].table_spec.vocabulary_size
  return shards.swapaxes(0, 1).reshape(-1, 8)[:vocabulary_size]


class LimitsTest(parameterized.TestCase):

  def test_raw_ids_bring_limits_that_hold_for_any_ids(self):
    _by_messages(self)
    # Far beyond the limits of the table, which are 256.
    specs = _specs(batch=2048, valency=20, vocabulary_size=100_000)
    variables = _variables(specs)
    ids = np.random.default_rng(0).integers(0, 100_000, (2048, 20), np.int32)

    def step(ids, variables):
      inputs = embedding.convert_ids({"f": ids}, None, specs, _TOPOLOGY)
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      rows = embedding.sparse_gradients(activations, inputs, specs)
      return (
          activations,
          embedding.tpu_sparse_dense_matmul_grad(
              activations, inputs, variables, specs
          ),
          embedding.apply_sparse_gradients(rows, variables, specs),
      )

    activations, new, also_new = _over_devices(step)(ids, variables)
    before = _rows(specs, variables)
    pooled = before[ids].sum(axis=1)
    np.testing.assert_allclose(activations["f"], pooled, atol=1e-4)
    after = before.astype(np.float64)
    np.subtract.at(after, ids, 0.5 * pooled[:, None].astype(np.float64))
    for variables in (new, also_new):
      np.testing.assert_allclose(_rows(specs, variables), after, atol=1e-4)

  def test_limits_that_are_raised_reach_a_compiled_program(self):
    _by_messages(self)
    specs = _specs(
        batch=64,
        valency=1,
        vocabulary_size=200,
        max_ids_per_partition=64,
        max_unique_ids_per_partition=8,
    )
    variables = _variables(specs)
    traces = []

    @_over_devices
    def lookup(inputs, variables):
      traces.append(inputs.settings)
      return embedding.tpu_sparse_dense_matmul(inputs, variables, specs)

    def run(ids):
      inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
          {"f": ids}, None, specs, 2, 2, num_sc_per_device=1, limits="specs"
      )
      np.testing.assert_array_equal(
          lookup(inputs, variables)["f"], _rows(specs, variables)[ids[:, 0]]
      )
      return inputs, stats

    few, many = np.arange(64)[:, None] % 8, np.arange(64)[:, None]
    before, _ = run(few)
    run(few)
    self.assertLen(traces, 1, "Equal limits are one program.")
    with self.assertRaisesRegex(ValueError, "max_unique_ids_per_partition"):
      run(many)
    embedding.update_preprocessing_parameters(
        specs,
        embedding.SparseDenseMatmulInputStats(
            max_ids_per_partition={"t": np.array([64])},
            max_unique_ids_per_partition={"t": np.array([64])},
            required_buffer_size_per_sc={"t": np.array([128])},
            id_drop_counters={"t": 0},
        ),
        1,
    )
    after, _ = run(many)
    self.assertEqual(
        jax.tree.map(np.shape, before.sparse_dense_matmul_input),
        jax.tree.map(np.shape, after.sparse_dense_matmul_input),
    )
    self.assertLen(traces, 2)


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, None),
      (
          dict(
              global_device_count=1,
              num_sc_per_device=2,
              enable_minibatching=True,
              feature_stacking_strategy="Stack_Then_Split",
          ),
          None,
      ),
      (
          dict(global_device_count=2),
          "global_device_count is 2, but the inputs were preprocessed with 1",
      ),
      (
          dict(num_sc_per_device=4),
          "num_sc_per_device is 4, but the inputs were preprocessed with 2",
      ),
      (
          dict(enable_minibatching=False),
          "enable_minibatching is False, but .* preprocessed with True",
      ),
      (
          dict(feature_stacking_strategy="split_then_stack"),
          "is 'SPLIT_THEN_STACK', but .* with 'STACK_THEN_SPLIT'",
      ),
  )
  def test_arguments_may_be_left_out_and_must_agree(self, arguments, message):
    model = two_table_model.TwoTableModel(2)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        model.ids,
        model.weights,
        model.specs,
        1,
        1,
        num_sc_per_device=2,
        enable_minibatching=True,
        feature_stacking_strategy="STACK_THEN_SPLIT",
    )
    expected = model.lookup(model.inputs, model.variables)
    gradients = jax.tree.map(np.ones_like, expected)
    calls = [
        lambda: embedding.tpu_sparse_dense_matmul(
            inputs, model.variables, model.specs, **arguments
        ),
        lambda: embedding.tpu_sparse_dense_matmul_grad(
            gradients, inputs, model.variables, model.specs, **arguments
        ),
        lambda: embedding.sparse_gradients(
            gradients, inputs, model.specs, **arguments
        ),
    ]
    if message is not None:
      for call in calls:
        with self.assertRaisesRegex(ValueError, message):
          call()
      return
    look_up, update, get_gradients = calls
    jax.tree.map(np.testing.assert_array_equal, look_up(), expected)
    stepped = update()
    by_rows = embedding.apply_sparse_gradients(
        get_gradients(), model.variables, model.specs
    )
    jax.tree.map(np.testing.assert_array_equal, by_rows, stepped)

  def test_tables_of_another_number_of_devices_are_an_error(self):
    model = two_table_model.TwoTableModel(2)
    half = {
        name: (x.table[: x.table.shape[0] // 2],)
        for name, x in model.variables.items()
    }
    with self.assertRaisesRegex(
        ValueError, "inputs are for 1 devices, and a table .* of one of 2"
    ):
      embedding.tpu_sparse_dense_matmul(model.inputs, half, model.specs)

  def test_raw_ids_may_be_none_at_all(self):
    model = two_table_model.TwoTableModel(2)
    topology = layout.Topology(
        local_device_count=1, global_device_count=1, num_sc_per_device=2
    )
    inputs = embedding.convert_ids(
        {name: ids[:, :0] for name, ids in model.ids.items()},
        None,
        model.specs,
        topology,
    )
    activations = model.lookup(inputs, model.variables)
    for of_feature in activations.values():
      np.testing.assert_array_equal(of_feature, 0)

  def test_shapes_are_those_of_preprocessing(self):
    model = two_table_model.TwoTableModel(2)
    shapes = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
        model.specs, 1, 1, num_sc_per_device=2
    )
    self.assertEqual(
        jax.tree.structure(shapes), jax.tree.structure(model.inputs)
    )

  def test_inputs_without_settings_go_by_shapes(self):
    model = two_table_model.TwoTableModel(2)
    by_hand = embedding.PreprocessedInput(
        model.inputs.sparse_dense_matmul_input
    )
    # As a version without settings has pickled it.
    old = dataclasses.replace(model.inputs)
    del old.__dict__["settings"]
    old = pickle.loads(pickle.dumps(old))
    expected = model.lookup(model.inputs, model.variables)
    for inputs in (by_hand, old):
      self.assertIsNone(inputs.settings)
      jax.tree.map(
          np.testing.assert_array_equal,
          model.lookup(inputs, model.variables),
          expected,
      )

  @parameterized.parameters(False, True)
  def test_row_pointers_for_fewer_minibatches_than_the_most(self, by_hand):
    model = two_table_model.TwoTableModel(2, stacked=False)
    embedding.update_preprocessing_parameters(
        model.specs,
        embedding.SparseDenseMatmulInputStats(
            max_ids_per_partition={"users": 16, "items": 32},
            max_unique_ids_per_partition={"users": 8, "items": 8},
        ),
        2,
    )
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        model.ids,
        model.weights,
        model.specs,
        1,
        1,
        num_sc_per_device=2,
        enable_minibatching=True,
    )
    (num_minibatches,) = inputs.num_minibatches
    self.assertBetween(num_minibatches, 2, 32)
    buffers = inputs.sparse_dense_matmul_input
    fewer = inputs.replace(
        sparse_dense_matmul_input=buffers._replace(
            lhs_row_pointers={
                # Two SparseCores, 8 row pointers in each minibatch.
                name: x[: 2 * 8 * num_minibatches]
                for name, x in buffers.lhs_row_pointers.items()
            }
        ),
        settings=None if by_hand else inputs.settings,
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        embedding.tpu_sparse_dense_matmul(
            fewer,
            model.variables,
            model.specs,
            enable_minibatching=True,
        ),
        model.lookup(inputs, model.variables),
    )

  def test_settings_survive_what_pipelines_do(self):
    model = two_table_model.TwoTableModel(2)
    inputs = model.inputs
    stacked = jax.tree.map(lambda *x: np.stack(x), inputs, inputs)
    for same in (
        pickle.loads(pickle.dumps(inputs)),
        jax.tree.map(lambda x: x[0], stacked),
        jax.device_put(inputs),
    ):
      self.assertEqual(same.settings, inputs.settings)
      self.assertEqual(hash(same.settings), hash(inputs.settings))


if __name__ == "__main__":
  absltest.main()
