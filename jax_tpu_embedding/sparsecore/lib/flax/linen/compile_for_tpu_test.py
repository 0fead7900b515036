# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A training step with the layer compiles for a TPU slice, in place."""

import importlib.util

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.testing import kept_programs
from jax_tpu_embedding.sparsecore.lib.core.tpu import memory_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

_DEVICES, _BATCH, _ROWS, _DIM = 4, 2048, 2_000_000, 32
P = jax.sharding.PartitionSpec


def _feature_specs():
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=_ROWS,
      embedding_dim=_DIM,
      optimizer=embedding_spec.AdagradOptimizerSpec(
          learning_rate=lambda step: 0.1 / (1 + step)
      ),
  )
  return {
      "items": embedding_spec.FeatureSpec(
          name="items",
          table_spec=table,
          input_shape=(_BATCH, 4),
          output_shape=(_BATCH, _DIM),
      )
  }


def _parameters(layer):
  """Shapes and layouts of the layer's parameters."""
  stack = embedding.get_stacked_table_specs(layer.feature_specs)["items"]
  partition = layer.embedding_table_partition
  box = embed.WithSparseCoreLayout(None, tuple(partition), layer.mesh)
  table = jax.ShapeDtypeStruct(
      (stack.stack_vocab_size, stack.stack_embedding_dim),
      jnp.float32,
      sharding=box.get_sharding(layer.mesh),
  )
  seal = jax.ShapeDtypeStruct(
      (5,), jnp.float32, sharding=jax.sharding.NamedSharding(layer.mesh, P())
  )
  variables = embedding.EmbeddingVariables(table, (table,))
  return {
      "sc_embedding_variables": box.replace(value={"items": variables}),
      "update_seal": {"sc_embedding_variables": seal},
  }


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileForTpuTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_a_step_updates_the_tables_in_place(self, is_preprocessed):
    mesh = topology.topology_mesh("v5p:2x2x1")
    layer = embed.SparseCoreEmbed(
        _feature_specs(), mesh=mesh, sharding_axis="x"
    )
    embedding.prepare_feature_specs_for_training(
        layer.feature_specs, _DEVICES, num_sc_per_device=4
    )
    params = _parameters(layer)
    sharding = jax.sharding.NamedSharding(mesh, layer.data_partition)
    if is_preprocessed:
      inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
          layer.feature_specs, _DEVICES, _DEVICES, num_sc_per_device=4
      )
    else:
      inputs = {"items": jax.ShapeDtypeStruct((_BATCH, 4), jnp.int32)}
    inputs = jax.tree.map(lambda x: x.update(sharding=sharding), inputs)

    def step(params, inputs, number):
      def loss(params):
        out = layer.apply({"params": params}, inputs, step=number)
        return jnp.mean(jnp.tanh(out["items"]) ** 2)

      value, gradients = jax.value_and_grad(loss)(params)
      new = embed_optimizer.apply_updates_for_sc_model(params, gradients)
      return new, value

    number = jax.ShapeDtypeStruct((), jnp.int32)
    lowered = jax.jit(
        step,
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda x: x.format, params), None),
    ).lower(params, inputs, number)
    table_bytes = params["sc_embedding_variables"].value["items"].table.size * 4
    device_bytes = table_bytes // _DEVICES
    report = memory_report.memory_report(
        kept_programs.compile_for(mesh, lowered),
        min_move_bytes=device_bytes // 4,
    )
    self.assertIn(report.moves, ((), None), str(report))
    self.assertLess(report.temporary_bytes, device_bytes, str(report))
    self.assertGreaterEqual(report.aliased_bytes, 2 * device_bytes)


if __name__ == "__main__":
  absltest.main()
