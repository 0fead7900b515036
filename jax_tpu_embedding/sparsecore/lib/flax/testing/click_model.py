# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A small model with an embedding layer, and its plain twin, for tests.

Three features over two tables, a dense layer and a squared error. The twin has
whole tables as arrays, and JAX's own gradients.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

BATCH = 16
LENGTH = 2  # of the feature with a vector per position
VALENCY = 3
AXIS = "data"


def adagrad():
  return embedding_spec.AdagradOptimizerSpec(
      learning_rate=0.1, initial_accumulator_value=0.1
  )


def make_specs(optimizer=None, **table_fields):
  """Two pooled features, and one with a vector per position."""
  make = lambda name, rows, dim: embedding_spec.TableSpec(
      name=name,
      vocabulary_size=rows,
      embedding_dim=dim,
      optimizer=optimizer or adagrad(),
      **(dict(combiner="sum") | table_fields),
  )
  users, items = make("users", 50, 6), make("items", 70, 8)
  feature = lambda name, table, ids, lead: embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=ids,
      output_shape=(*lead, table.embedding_dim),
  )
  return {
      "user": feature("user", users, (BATCH, 1), (BATCH,)),
      "item": feature("item", items, (BATCH, VALENCY), (BATCH,)),
      "last": feature("last", items, (BATCH, LENGTH), (BATCH, LENGTH)),
  }


def make_mesh(num_devices):
  return jax.sharding.Mesh(jax.devices()[:num_devices], (AXIS,))


@dataclasses.dataclass(frozen=True)
class Batch:
  ids: Any
  labels: Any


jax.tree_util.register_dataclass(Batch)


def make_batch(seed=0):
  rng = np.random.default_rng(seed)
  ids = {
      name: rng.integers(
          0, spec.table_spec.vocabulary_size, spec.input_shape, np.int32
      )
      for name, spec in make_specs().items()
  }
  return Batch(ids, rng.normal(size=(BATCH, 1)).astype(np.float32))


class Model(nnx.Module):
  """The embedding layer, and a dense one over all activations."""

  def __init__(self, specs, mesh, *, sharding_axis=AXIS, **embed_fields):
    rngs = nnx.Rngs(0)
    self.embed = embed.SparseCoreEmbed(
        specs, sharding_axis, mesh, rngs, **embed_fields
    )
    width = sum(
        np.prod(spec.output_shape[1:]) for spec in jax.tree.leaves(specs)
    )
    self.dense = nnx.Linear(width, 1, rngs=rngs)

  def __call__(self, ids, step=None):
    return self.dense(concatenate(self.embed(ids, step)))


def concatenate(activations):
  return jnp.concatenate(
      [a.reshape(a.shape[0], -1) for a in activations.values()], axis=1
  )


def loss_fn(model, batch, step=None):
  return jnp.mean((model(batch.ids, step) - batch.labels) ** 2)


def train_step(model, optimizer, batch, step=None):
  """One step as users write it."""
  loss, grads = nnx.value_and_grad(loss_fn, allow_int=True)(model, batch, step)
  optimizer.update(model, grads)
  return loss


def variables_of(model):
  """Stack name -> EmbeddingVariables of NumPy arrays, of either form."""
  variables = model.embed.embedding_table
  if isinstance(variables, embed.EmbeddingVariablesParam):
    variables = variables.get_value()
  return jax.tree.map(lambda x: np.array(x[...]), variables)


def logical_tables(model, part=lambda variables: variables.table):
  """Table name -> f32[vocabulary_size, embedding_dim], of tables or slots."""
  layer = model.embed
  return table_stacking.unshard_and_unstack_tables(
      embedding.get_table_specs(layer.feature_specs),
      {name: part(v) for name, v in variables_of(model).items()},
      layer.num_shards * layer.num_sc_per_device,
  )


def plain_step(tables, accumulators, kernel, bias, batch, dense_rate):
  """A step of the twin: Adagrad on tables, SGD on the dense layer.

  Returns:
    loss and new (tables, accumulators, kernel, bias).
  """
  specs = make_specs()

  def loss_fn(tables, kernel, bias):
    def look_up(spec, ids):
      rows = tables[spec.table_spec.name][ids]
      return rows.sum(1) if len(spec.output_shape) == 2 else rows

    activations = jax.tree.map(look_up, specs, dict(batch.ids))
    out = concatenate(activations) @ kernel + bias
    return jnp.mean((out - batch.labels) ** 2)

  loss, (tables_g, kernel_g, bias_g) = jax.value_and_grad(
      loss_fn, argnums=(0, 1, 2)
  )(tables, kernel, bias)
  accumulators = jax.tree.map(lambda a, g: a + g * g, accumulators, tables_g)
  tables = jax.tree.map(
      lambda row, g, a: row - 0.1 * g / jnp.sqrt(a),
      tables,
      tables_g,
      accumulators,
  )
  return loss, (
      tables,
      accumulators,
      kernel - dense_rate * kernel_g,
      bias - dense_rate * bias_g,
  )
