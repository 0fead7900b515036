# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Trains a next-word model on Shakespeare, or on any other text.

README.md says how to run it and what to read first.

This is the program for Flax Linen. Raw ids go into the jitted step, and the
backward pass of the layer updates the tables in place.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import device_sums
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax


class NextWord(nn.Module):
  """Ids of the previous words to the logits of the next one, f32[B, V]."""

  feature_specs: embed.Nested[embedding_spec.FeatureSpec]
  layer_sizes: Mapping[str, model_lib.LayerSize]
  dropout: float

  @nn.compact
  def __call__(
      self,
      features: Mapping[str, jax.Array],
      dropout_keys: jax.Array | None = None,
  ) -> jax.Array:
    activations = embed.SparseCoreEmbed(feature_specs=self.feature_specs)(
        features
    )
    layers = {
        name: nn.Dense(size.outputs, name=name)
        for name, size in self.layer_sizes.items()
    }
    if self.is_initializing():
      return model_lib.logits(layers, activations, self.dropout, dropout_keys)
    unbound = {name: layer.unbind() for name, layer in layers.items()}

    def logits(parameters, activations, keys):
      return model_lib.logits(
          {
              name: functools.partial(layer.apply, parameters[name])
              for name, (layer, _) in unbound.items()
          },
          activations,
          self.dropout,
          keys,
      )

    parameters = {name: values for name, (_, values) in unbound.items()}
    return device_sums.apply(logits, parameters, activations, dropout_keys)


class LinenTrainer(training.Trainer):
  """Tables are references; the tables need no place in a step's results."""

  api = "linen"

  def __init__(self, *args):
    super().__init__(*args)
    self._model = NextWord(
        feature_specs=self.feature_specs,
        layer_sizes=self.layer_sizes,
        dropout=self.config.dropout,
    )

  def init_dense(self) -> dict[str, Any]:
    """Dense parameters. Every program starts from these values."""
    features = {
        name: jnp.zeros(spec.input_shape, jnp.int32)
        for name, spec in self.feature_specs.items()
    }
    dense = self._model.init(jax.random.key(0), features)["params"]
    return dense | self.initial_parameters

  def init(self):
    with jax.set_mesh(self.mesh):
      tables = embed.SparseCoreEmbed.create_embedding_variables(
          self.feature_specs, self.tables_key
      )
      dense = self.on_every_device(self.init_dense())
    return train_state.TreeState(
        step=0,
        feature_specs=self.feature_specs,
        dense=dense,
        optimizer_state=self.on_every_device(self.optimizer.init(dense)),
        tables=tables,
    )

  def update(self, state, batch):
    with jax.set_mesh(self.mesh):
      state.dense, state.optimizer_state, loss = self._step(
          state.dense,
          state.optimizer_state,
          state.tables,
          self.by_sample(batch),
          np.int32(state.step),
      )
    return loss

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
  def _step(self, dense, optimizer_state, tables, batch, step):
    keys = model_lib.dropout_keys(
        self.config.seed, step, self.config.batch_size
    )

    def loss_fn(dense):
      scores = self._model.apply(
          {"params": dense, "embedding": tables}, batch.features, keys
      )
      return device_sums.mean(model_lib.losses(scores, batch.labels))

    # The backward pass also updates the tables: they need no gradient here.
    loss, gradients = jax.value_and_grad(loss_fn)(dense)
    updates, optimizer_state = self.optimizer.update(
        gradients, optimizer_state, dense
    )
    return optax.apply_updates(dense, updates), optimizer_state, loss

  def logits(self, state, features):
    with jax.set_mesh(self.mesh):
      return self._logits(state.dense, state.tables, self.by_sample(features))

  @functools.partial(jax.jit, static_argnums=0)
  def _logits(self, dense, tables, features):
    # No gradient is taken, so the tables stay as they are.
    return self._model.apply({"params": dense, "embedding": tables}, features)


if __name__ == "__main__":
  program.start(LinenTrainer)
