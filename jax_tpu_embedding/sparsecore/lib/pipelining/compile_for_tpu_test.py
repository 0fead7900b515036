# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What overlaps in pipelined steps that are compiled for a TPU."""

import dataclasses
import importlib.util

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining

P = jax.sharding.PartitionSpec
_BATCH, _DIM, _ROWS, _DEVICES, _WIDTH = 4096, 128, 80_000, 4, 2048


def _specs():
  def feature(name):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=_ROWS,
        embedding_dim=_DIM,
        optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
        combiner="sum",
        max_ids_per_partition=1024,
        max_unique_ids_per_partition=1024,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(_BATCH, 8),
        output_shape=(_BATCH, _DIM),
    )

  return {"users": feature("users"), "items": feature("items")}


def _report(mode):
  """Of a step with two tables and an MLP of two layers."""
  mesh = topology.topology_mesh("v5p:2x2x1")
  everywhere = jax.sharding.NamedSharding(mesh, P())
  split = jax.sharding.NamedSharding(mesh, P("x"))
  layer = embed.SparseCoreEmbed(
      _specs(), mesh=mesh, sharding_axis="x", tables="param"
  )
  embedding.prepare_feature_specs_for_training(
      layer.feature_specs, _DEVICES, num_sc_per_device=4
  )

  def lay_out(x):
    return x.update(sharding=split if x.ndim else everywhere)

  def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)

  inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
      layer.feature_specs, _DEVICES, _DEVICES, num_sc_per_device=4
  )
  labels = jax.ShapeDtypeStruct((_BATCH, 1), jnp.float32)
  batch = jax.tree.map(lay_out, (inputs, labels))
  weights = (array(2 * _DIM, _WIDTH), array(_WIDTH, _WIDTH), array(_WIDTH, 1))
  params = _table_parameters(layer, mesh, array(5)), weights

  def train_step(params, batch):
    def loss_fn(params):
      out = layer.apply({"params": params[0]}, batch[0])
      x = jnp.concatenate(list(out.values()), axis=1)
      first, second, last = params[1]
      x = jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last
      return jnp.mean((x - batch[1]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    tables = embed_optimizer.apply_updates_for_sc_model(params[0], gradients[0])
    weights = jax.tree.map(lambda p, g: p - 0.1 * g, params[1], gradients[1])
    return (tables, weights), loss

  step = pipelining.pipelined(
      train_step,
      batch_argnums=1,
      mode=mode,
      donate_argnums=0,
      out_shardings=(jax.tree.map(lambda x: x.format, params), None),
  )
  # Shapes alone do not say on which devices the activations are.
  flight = jax.tree.map(lay_out, jax.eval_shape(step.start, params, batch))
  flight = dataclasses.replace(flight, batch=(batch,))
  lowered = step.lower(flight, params, batch)
  return overlap_report.overlap_report(lowered.compile())


def _table_parameters(layer, mesh, seal):
  tables = {}
  partition = tuple(layer.embedding_table_partition)
  box = embed.WithSparseCoreLayout(None, partition, mesh)
  for stack in embedding.get_stacked_table_specs(layer.feature_specs).values():
    table = jax.ShapeDtypeStruct(
        (stack.stack_vocab_size, stack.stack_embedding_dim),
        jnp.float32,
        sharding=box.get_sharding(mesh),
    )
    variables = embedding.EmbeddingVariables(table, (table,))
    tables[stack.stack_name] = variables
  return {
      "sc_embedding_variables": box.replace(value=tables),
      "update_seal": {"sc_embedding_variables": seal},
  }


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class CompileForTpuTest(absltest.TestCase):

  def test_exact_step_has_one_call_beside_the_weight_gradients(self):
    report = _report("exact")
    self.assertLen(report.calls, 1, str(report))
    self.assertEmpty(report.exposed_calls, str(report))

  def test_lookup_of_the_plain_step_is_exposed(self):
    report = _report("off")
    self.assertLen(report.calls, 2, str(report))
    self.assertLen(report.exposed_calls, 1, str(report))


if __name__ == "__main__":
  absltest.main()
