# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocess, look up and update over devices, against matrices.

With another number of SparseCores the same sums are made in another order, so
devices agree as float32 numbers do: each sum here has at most 256 terms of
the size of one.
"""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

_BATCH = 32
_AXIS = jax.sharding.PartitionSpec("x")
_TOLERANCE = dict(rtol=1e-4, atol=1e-4)


def _specs(num_devices, num_sc, limit=512):
  make = functools.partial(
      two_table_model.table,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
      embedding_dim=8,
  )
  items = make("items", 70)
  feature = functools.partial(two_table_model.feature, batch=_BATCH)
  specs = {
      "user": feature("user", make("users", 40)),
      "item": feature("item", items, valency=1),
      "last": feature("last", items, valency=4),
  }
  limits = lambda name, batch_size: limit
  embedding.auto_stack_tables(specs, num_devices, num_sc, limits, limits)
  embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


class SeveralDevicesTest(parameterized.TestCase):

  @parameterized.product(
      topology=[(1, 1), (2, 1), (4, 1), (8, 1), (2, 4), (4, 2)],
      enable_minibatching=[False, True],
  )
  def test_step_is_that_of_matrices(self, topology, enable_minibatching):
    num_devices, num_sc = topology
    num_scs = num_devices * num_sc
    # With minibatching: too few for one.
    limit = max(8, 128 // num_scs**2) if enable_minibatching else 512
    specs = _specs(num_devices, num_sc, limit)
    rng = np.random.default_rng(0)
    ids = {
        name: rng.integers(
            spec.table_spec.vocabulary_size, size=spec.input_shape, dtype="i4"
        )
        for name, spec in specs.items()
    }
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        ids,
        None,
        specs,
        num_devices,
        num_devices,
        num_sc_per_device=num_sc,
        enable_minibatching=enable_minibatching,
    )
    if enable_minibatching and num_scs <= 4:
      self.assertGreater(np.max(inputs.num_minibatches), 1)
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        num_sc,
        bypass_mesh_check=True,
    )

    def tables(variables):
      return table_stacking.unshard_and_unstack_tables(
          embedding.get_table_specs(specs),
          {name: np.asarray(x.table) for name, x in variables.items()},
          num_scs,
      )

    options = dict(
        global_device_count=num_devices,
        enable_minibatching=enable_minibatching,
    )

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, specs, **options
      )
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, specs, **options
      )

    activations, updated = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=_AXIS,
            out_specs=_AXIS,
            check_vma=False,
        )
    )(inputs, variables)

    before, after = tables(variables), tables(updated)
    expected = {name: np.float64(x) for name, x in before.items()}
    for name, spec in specs.items():
      table = spec.table_spec.name
      gains = np.zeros((_BATCH, spec.table_spec.vocabulary_size))
      for sample in range(_BATCH):
        np.add.at(gains[sample], ids[name][sample], 1)
      pooled = gains @ before[table]
      np.testing.assert_allclose(activations[name], pooled, **_TOLERANCE)
      expected[table] -= 0.1 * gains.T @ pooled
    for name, table in expected.items():
      np.testing.assert_allclose(after[name], table, **_TOLERANCE)

  @parameterized.product(way=["shared_memory", "processes"], num_tables=[1, 3])
  def test_stacks_share_messages_and_have_the_bits_of_each_by_itself(
      self, way, num_tables
  ):
    optimizers = [
        embedding_spec.SGDOptimizerSpec(0.1),
        embedding_spec.AdamOptimizerSpec(0.1),
        embedding_spec.AdagradOptimizerSpec(0.1),
    ]
    specs = {}
    for k, optimizer in enumerate(optimizers[:num_tables]):
      table = two_table_model.table(
          f"t{k}", 40 + 30 * k, optimizer=optimizer, embedding_dim=4 * (k + 1)
      )
      specs[f"f{k}"] = two_table_model.feature(f"f{k}", table, batch=_BATCH)
    embedding.prepare_feature_specs_for_training(specs, 4, 2)
    rng = np.random.default_rng(0)
    ids = {
        name: rng.integers(
            spec.table_spec.vocabulary_size, size=spec.input_shape, dtype="i4"
        )
        for name, spec in specs.items()
    }
    topology = layout.Topology(
        local_device_count=1, global_device_count=4, num_sc_per_device=2
    )
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("x",))
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        2,
        bypass_mesh_check=True,
    )

    def step(ids, variables):
      read = embedding.lookup_ids(ids, None, variables, specs, topology)
      inputs = embedding.convert_ids(ids, None, specs, topology)
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return (
          read,
          activations,
          embedding.sparse_gradients(activations, inputs, specs),
          embedding.tpu_sparse_dense_matmul_grad(
              activations, inputs, variables, specs, step=3
          ),
      )

    def run():
      jitted = jax.jit(
          jax.shard_map(
              step, mesh=mesh, in_specs=_AXIS, out_specs=_AXIS, check_vma=False
          )
      )
      with (
          mock.patch.object(
              mesh_axis, "_is_in_one_process", lambda _: way == "shared_memory"
          ),
          mock.patch.object(by_batches, "are_smaller", lambda *_: False),
      ):
        lowered = jitted.lower(ids, variables)
      text = lowered.as_text()
      return lowered.compile()(ids, variables), {
          name: text.count(f"stablehlo.{name}")
          for name in ("all_gather", "all_to_all", "collective_permute")
      }

    together, num_collectives = run()
    with mock.patch.object(of_stacks, "can_be_part", lambda _: False):
      apart, num_apart = run()
    jax.tree.map(np.testing.assert_array_equal, together, apart)
    # Two each of the lookup from ids, the lookup and the update; and of rows,
    # the gradients of rows. XLA sees later that requests are the same.
    expected = dict(all_gather=6, all_to_all=2, collective_permute=0)
    if way == "processes":
      expected = dict(all_gather=0, all_to_all=8, collective_permute=0)
    self.assertEqual(num_collectives, expected)
    self.assertEqual(
        num_apart, {k: num_tables * n for k, n in expected.items()}
    )

  def test_tables_of_another_number_of_devices_raise(self):
    specs = _specs(1, 1)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {name: np.zeros(x.input_shape, np.int32) for name, x in specs.items()},
        None,
        specs,
        1,
        1,
        num_sc_per_device=1,
        allow_id_dropping=True,
    )
    variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        two_table_model.one_device_sharding(),
        1,
        bypass_mesh_check=True,
    )
    variables = jax.tree.map(np.asarray, variables)

    def lookup(inputs):
      return embedding.tpu_sparse_dense_matmul(inputs, variables, specs)

    with self.assertRaisesRegex(
        ValueError, r"for 1 device.*mesh axes \{'x': 2\}"
    ):
      jax.jit(
          jax.shard_map(
              lookup,
              mesh=jax.sharding.Mesh(jax.devices()[:2], ("x",)),
              in_specs=jax.sharding.PartitionSpec(),
              out_specs=_AXIS,
              check_vma=False,
          )
      )(inputs)


if __name__ == "__main__":
  absltest.main()
