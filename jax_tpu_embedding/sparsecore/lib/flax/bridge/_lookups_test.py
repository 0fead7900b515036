# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What layers do not show: configs, and programs that cannot raise."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookups
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _raw_ids
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
MESH = jax.sharding.Mesh(
    np.array(jax.devices()).reshape(2, 2), ("data", "model")
)
BATCH, VOCAB, DIM = 8, 32, 8
IDS = {"f": np.arange(BATCH * 2).reshape(BATCH, 2)}


def make_config(mesh=MESH, sharding_axis=("data", "model"), **fields):
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=VOCAB,
      embedding_dim=DIM,
      optimizer=embedding_spec.SGDOptimizerSpec(0.5),
  )
  spec = embedding_spec.FeatureSpec(
      name="f",
      table_spec=table,
      input_shape=(BATCH, 2),
      output_shape=(BATCH, DIM),
  )
  embedding.prepare_feature_specs_for_training([spec], 4, 1)
  return _lookup_config.LookupConfig(
      feature_specs={"f": spec},
      mesh=mesh,
      sharding_axis=sharding_axis,
      num_sc_per_device=1,
      **fields,
  )


def make_variables(config, mesh=MESH):
  return embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(config.feature_specs),
      jax.sharding.NamedSharding(mesh, config.table_partition),
      1,
  )


class BridgeTest(parameterized.TestCase):

  @parameterized.parameters(
      ("data", 2, P("data", None), P("data")),
      (
          ("model", "data"),
          4,
          P(("model", "data"), None),
          P(("model", "data")),
      ),
  )
  def test_the_config_says_how_arrays_are_split(
      self, axis, num_shards, table_partition, data_partition
  ):
    config = make_config(sharding_axis=axis)
    self.assertEqual(config.num_shards, num_shards)
    self.assertEqual(config.topology.global_device_count, num_shards)
    self.assertEqual(config.table_partition, table_partition)
    self.assertEqual(config.data_partition, data_partition)

  def test_an_update_of_lookups_of_nothing_changes_nothing(self):
    config = make_config()
    variables = make_variables(config)
    ids = {"f": (np.zeros(4, np.int32), np.zeros(BATCH + 1, np.int32))}
    inputs = _raw_ids.convert(config, _raw_ids.read(config, ids))
    activations, _ = _lookups.lookup(config, inputs, variables)
    np.testing.assert_array_equal(activations["f"], np.zeros((BATCH, DIM)))
    new = _lookups.update(config, activations, inputs, variables, None)
    jax.tree.map(np.testing.assert_array_equal, new, dict(variables))

  def test_variables_need_no_more_than_tables_to_be_looked_up(self):
    config = make_config()
    variables = make_variables(config)
    inputs = _raw_ids.convert(config, _raw_ids.read(config, IDS))
    jax.tree.map(
        np.testing.assert_array_equal,
        _lookups.lookup(config, inputs, {"t": (variables["t"].table,)})[0],
        _lookups.lookup(config, inputs, variables)[0],
    )

  def test_devices_of_unknown_processes_give_the_same_by_messages(self):
    config = make_config()
    variables = make_variables(config)
    abstract = make_config(mesh=MESH.abstract_mesh)

    def step(config):
      def run(variables):
        inputs = _raw_ids.convert(config, _raw_ids.read(config, IDS))
        activations, _ = _lookups.lookup(config, inputs, variables)
        new = _lookups.update(config, activations, inputs, variables, None)
        return activations, new

      return jax.jit(run)(variables)

    jax.tree.map(np.testing.assert_array_equal, step(abstract), step(config))

  def test_wrong_ids_by_messages_are_nan_on_their_device(self):
    config = make_config()
    variables = make_variables(config)
    abstract = make_config(mesh=MESH.abstract_mesh)
    ids = {"f": IDS["f"].copy()}
    ids["f"][5, 0] = VOCAB
    out = jax.jit(
        lambda v: _lookups.lookup(
            abstract,
            _raw_ids.convert(abstract, _raw_ids.read(abstract, ids)),
            v,
        )
    )(variables)[0]["f"]
    # The samples of the third of four devices.
    np.testing.assert_array_equal(
        np.isnan(out).all(axis=1), np.arange(BATCH) // 2 == 2
    )

  def test_an_impossible_number_of_minibatches_changes_nothing(self):
    config = make_config(enable_minibatching=True)
    variables = make_variables(config)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        IDS,
        None,
        config.feature_specs,
        4,
        4,
        num_sc_per_device=1,
        enable_minibatching=True,
    )
    inputs = inputs.replace(num_minibatches=np.int32(65))
    activations, has_failed = _lookups.lookup(config, inputs, variables)
    self.assertTrue(np.isnan(activations["f"]).all())
    self.assertEqual(has_failed.tolist(), [True] * 4)
    for found in (has_failed, None):
      new = _lookups.update(config, activations, inputs, variables, None, found)
      jax.tree.map(np.testing.assert_array_equal, new, dict(variables))
    with self.assertRaisesRegex(ValueError, "num_minibatches is 65, expected"):
      embedding.raise_errors()


if __name__ == "__main__":
  absltest.main()
