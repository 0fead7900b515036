# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A step with two tables and an MLP, for devices that need not be there."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining

P = jax.sharding.PartitionSpec
# Large enough for products beside which a call fits.
BATCH, DIM, ROWS, _WIDTH = 2048, 128, 80_000, 1024


def _specs():
  def feature(name):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=ROWS,
        embedding_dim=DIM,
        optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
        combiner="sum",
        max_ids_per_partition=512,
        max_unique_ids_per_partition=512,
    )
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(BATCH, 8),
        output_shape=(BATCH, DIM),
    )

  return {"users": feature("users"), "items": feature("items")}


def lower_step(mode: str, mesh: jax.sharding.Mesh) -> jax.stages.Lowered:
  """A pipelined step on a mesh of axis "x", with an MLP of two layers."""
  num_devices = mesh.size
  num_scs = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  everywhere = jax.sharding.NamedSharding(mesh, P())
  split = jax.sharding.NamedSharding(mesh, P("x"))
  layer = embed.SparseCoreEmbed(
      _specs(), mesh=mesh, sharding_axis="x", tables="param"
  )
  embedding.prepare_feature_specs_for_training(
      layer.feature_specs, num_devices, num_sc_per_device=num_scs
  )

  def lay_out(x):
    return x.update(sharding=split if x.ndim else everywhere)

  def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=everywhere)

  inputs = embedding.eval_preprocess_sparse_dense_matmul_input_shape(
      layer.feature_specs,
      num_devices,
      num_devices,
      num_sc_per_device=num_scs,
  )
  labels = jax.ShapeDtypeStruct((BATCH, 1), jnp.float32)
  batch = jax.tree.map(lay_out, (inputs, labels))
  weights = (array(2 * DIM, _WIDTH), array(_WIDTH, _WIDTH), array(_WIDTH, 1))
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
  if mode == "stale":
    # The first call has nothing pending.
    flight, _ = jax.eval_shape(step, flight, params, batch)
    flight = jax.tree.map(lay_out, flight)
    flight = dataclasses.replace(flight, batch=(batch,))
  return step.lower(flight, params, batch)


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
