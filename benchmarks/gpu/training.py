# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs as users write them, on one device: what they compute.

The tables' steps have the same bits on every device; what a dense layer adds
has other last bits.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

_BATCH_SIZE = 64
_TOPOLOGY = dict(global_device_count=1, num_sc_per_device=1)
_Mesh = jax.sharding.Mesh
_ROWS = jax.P("x", None)
_SPEC = jax.P("x")


def _features() -> list[embedding_spec.FeatureSpec]:
  """Two tables that are stacked, one of another optimizer, and weights."""
  adagrad = embedding_spec.AdagradOptimizerSpec(learning_rate=0.05)
  tables = [
      embedding_spec.TableSpec(
          name=name,
          vocabulary_size=size,
          embedding_dim=dim,
          combiner=combiner,
          optimizer=optimizer,
          max_ids_per_partition=4096,
          max_unique_ids_per_partition=4096,
      )
      for name, size, dim, combiner, optimizer in (
          ("words", 3000, 32, "mean", adagrad),
          ("items", 1000, 24, "sum", adagrad),
          ("users", 500, 128, "sum", embedding_spec.AdamOptimizerSpec()),
      )
  ]
  features = [
      embedding_spec.FeatureSpec(
          name=name,
          table_spec=tables[table],
          input_shape=(_BATCH_SIZE, valency),
          output_shape=(_BATCH_SIZE, tables[table].embedding_dim),
      )
      for name, table, valency in (
          ("query", 0, 8),
          ("title", 0, 20),
          ("item", 1, 1),
          ("user", 2, 3),
      )
  ]
  embedding.auto_stack_tables(features, **_TOPOLOGY)
  embedding.prepare_feature_specs_for_training(features, **_TOPOLOGY)
  return features


def _inputs(features: Any, seed: int) -> Any:
  """A batch with weights, converted on the host."""
  rng = np.random.default_rng(seed)
  ids, weights = [], []
  for feature in features:
    shape = feature.input_shape
    # Squared, so that some rows are in many samples.
    spread = rng.random(shape) ** 2 * feature.table_spec.vocabulary_size
    ids.append(spread.astype(np.int32))
    weights.append(rng.random(shape, np.float32))
  inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
      ids, weights, features, local_device_count=1, **_TOPOLOGY
  )
  return inputs


def tables_after_steps(device: jax.Device, num_steps: int = 5) -> Any:
  """Activations, those of int8 codes, and tables with slots, after steps.

  Lookup and update under shard_map, from buffers that the host made. Gradients
  are half of the activations, which no device rounds.
  """
  features = _features()
  # The initial values are those of one device everywhere.
  cpu = _Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
  variables = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(features),
      jax.sharding.NamedSharding(cpu, _ROWS),
      num_sparsecore_per_device=1,
      bypass_mesh_check=True,  # these are not the default devices
  )
  mesh = _Mesh(np.array([device]), ("x",))
  sharding = jax.sharding.NamedSharding(mesh, _SPEC)
  variables = jax.device_put(variables, sharding)
  # What a jitted function donates may be what device_put returned as it was.
  variables = jax.tree.map(lambda x: x.copy(), variables)
  common = dict(feature_specs=features, sharding_strategy="MOD")

  def look_up(inputs, variables):
    return embedding.tpu_sparse_dense_matmul(
        inputs, variables, global_device_count=1, **common
    )

  def step(inputs, variables, number):
    activations = look_up(inputs, variables)
    gradients = jax.tree.map(lambda x: x / 2, activations)
    updated = embedding.tpu_sparse_dense_matmul_grad(
        gradients, inputs, variables, step=number, **common
    )
    return activations, updated

  sharded = lambda f, *in_specs: jax.shard_map(
      f, mesh=mesh, in_specs=in_specs, out_specs=_SPEC
  )
  train = jax.jit(sharded(step, _SPEC, _SPEC, jax.P()), donate_argnums=1)
  for number in range(num_steps):
    inputs = jax.device_put(_inputs(features, number), sharding)
    activations, variables = train(inputs, variables, np.int32(number))
  codes = embedding.int8_variables(variables)
  of_codes = jax.jit(sharded(look_up, _SPEC, _SPEC))(inputs, codes)
  return jax.tree.map(np.asarray, (activations, of_codes, variables))


class _NextWord(nn.Module):
  features: Any
  num_words: int

  @nn.compact
  def __call__(self, ids):
    x = embed.SparseCoreEmbed(feature_specs=self.features)(ids)["words"]
    return nn.Dense(self.num_words)(x.reshape((x.shape[0], -1)))


def losses_of_layer(device: jax.Device, num_steps: int = 10) -> list[float]:
  """Of a Flax layer that takes raw ids, and updates its tables in place."""
  batch_size, length, num_words, dim = 32, 16, 256, 32
  table = embedding_spec.TableSpec(
      name="words",
      vocabulary_size=num_words,
      embedding_dim=dim,
      optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.05),
  )
  features = {
      "words": embedding_spec.FeatureSpec(
          name="words",
          table_spec=table,
          input_shape=(batch_size, length),
          output_shape=(batch_size, length, dim),
      )
  }
  rng = np.random.default_rng(0)
  with jax.set_mesh(_Mesh(np.array([device]), ("x",))):
    ids = {"words": rng.integers(0, num_words, (batch_size, length), np.int32)}
    next_ids = rng.integers(0, num_words, batch_size, np.int32)
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        features, jax.random.key(0)
    )
    model = _NextWord(features, num_words)
    dense = embed.on_every_device(model.init(jax.random.key(1), ids)["params"])

    @jax.jit
    def train(dense, tables, ids, next_ids):
      def loss_of(dense):
        logits = model.apply({"params": dense, "embedding": tables}, ids)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, next_ids
        )
        return losses.mean()

      loss, gradients = jax.value_and_grad(loss_of)(dense)
      return jax.tree.map(lambda x, g: x - 0.5 * g, dense, gradients), loss

    losses = []
    for _ in range(num_steps):
      dense, loss = train(dense, tables, ids, next_ids)
      losses.append(float(loss))
  return losses
