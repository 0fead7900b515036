# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The models that the curves are of: tables with one feature each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec


def features(
    sizes: Iterable[int],
    *,
    dim: int,
    batch_size: int,
    valency: int,
    optimizer: Any,
    limit: int,
) -> list[embedding_spec.FeatureSpec]:
  """A feature of a table of each size, neither stacked nor prepared.

  Args:
    sizes: rows of the tables.
    dim: columns of each.
    batch_size: samples of all devices.
    valency: ids per sample.
    optimizer: a spec.
    limit: ids, and distinct ids, per partition.
  """
  return [
      embedding_spec.FeatureSpec(
          name=f"t{i:04}",
          table_spec=embedding_spec.TableSpec(
              name=f"t{i:04}",
              vocabulary_size=size,
              embedding_dim=dim,
              initializer=jax.nn.initializers.truncated_normal(),
              optimizer=optimizer,
              combiner="sum",
              max_ids_per_partition=limit,
              max_unique_ids_per_partition=limit,
          ),
          input_shape=(batch_size, valency),
          output_shape=(batch_size, dim),
      )
      for i, size in enumerate(sizes)
  ]


def train_step(specs: list[embedding_spec.FeatureSpec], **topology: int):
  """A step that wants activations to be small; for jit and shard_map."""

  def step(inputs, variables):
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, variables, specs, **topology
    )
    gradients = jax.tree.map(lambda x: 1e-3 * jnp.tanh(x), activations)
    return embedding.tpu_sparse_dense_matmul_grad(
        gradients, inputs, variables, specs, **topology
    )

  return step


def variables(
    specs: list[embedding_spec.FeatureSpec],
) -> dict[str, embedding.EmbeddingVariables]:
  """Tables and slots on the first device."""
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  made = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      1,
  )
  return jax.block_until_ready(made)
