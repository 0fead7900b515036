# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Everything that runs under `jit`, and the state it works on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.lib.flax import embed
import numpy as np
import optax


@dataclasses.dataclass(kw_only=True)
class State:
  """What training changes, and what a checkpoint has to hold.

  There is no random number generator in it: every random number of a step is a
  function of the seed and the step.
  """

  step: int  # Steps taken so far.
  dense: Any  # Parameters of the dense layers.
  optimizer_state: optax.OptState  # Of the dense layers.
  # {stack name: EmbeddingVariables of jax.Ref}. A step updates them in place:
  # the tables, unlike the dense parameters, are never returned.
  tables: dict[str, Any]


class Trainer:
  """The model of one run with its compiled functions."""

  def __init__(
      self,
      config: config_lib.Config,
      data: dataset.Dataset,
      unigram_log_probs: np.ndarray,
  ):
    self._config = config
    self._data = data
    self._feature_specs = model_lib.feature_specs(config, len(data.words))
    self._model = model_lib.NextWord(
        feature_specs=self._feature_specs,
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
        unigram_log_probs=unigram_log_probs,
    )
    self._optimizer = optax.adam(config.dense_learning_rate)

  def init(self) -> State:
    """The state before the first step."""
    tables_key, dense_key = jax.random.split(jax.random.key(self._config.seed))
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        self._feature_specs, tables_key
    )
    features = {
        name: jnp.zeros(spec.input_shape, jnp.int32)
        for name, spec in self._feature_specs.items()
    }
    dense = self._model.init(dense_key, features, training=False)["params"]
    return State(
        step=0,
        dense=dense,
        optimizer_state=self._optimizer.init(dense),
        tables=tables,
    )

  def train_step(self, state: State) -> jax.Array:
    """Takes one step: changes `state`, returns the mean loss, f32[]."""
    batch = self._data.train_batch(
        self._config.seed, state.step, self._config.batch_size
    )
    state.dense, state.optimizer_state, loss = self._train_step(
        state.dense,
        state.optimizer_state,
        state.tables,
        batch,
        np.int32(state.step),
    )
    state.step += 1
    return loss

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
  def _train_step(self, dense, optimizer_state, tables, batch, step):
    dropout_key = jax.random.fold_in(jax.random.key(self._config.seed), step)

    def loss_fn(dense):
      logits = self._model.apply(
          {"params": dense, "embedding": tables},
          batch.features,
          training=True,
          rngs={"dropout": dropout_key},
      )
      return jnp.mean(
          optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
      )

    # The backward pass also updates the tables: they need no gradient here.
    loss, gradients = jax.value_and_grad(loss_fn)(dense)
    updates, optimizer_state = self._optimizer.update(
        gradients, optimizer_state, dense
    )
    return optax.apply_updates(dense, updates), optimizer_state, loss

  def logits(self, state: State, features: dict[str, np.ndarray]) -> jax.Array:
    """Scores of the next word, f32[B, V], for a full batch of `features`."""
    return self._logits(state.dense, state.tables, features)

  @functools.partial(jax.jit, static_argnums=0)
  def _logits(self, dense, tables, features):
    # No gradient is taken, so the tables stay as they are.
    return self._model.apply(
        {"params": dense, "embedding": tables}, features, training=False
    )

  def heldout_loss(self, state: State) -> float:
    """Mean loss per held-out word, in nats; changes nothing."""
    total = 0.0
    for batch, count in self._data.heldout_batches(self._config.batch_size):
      losses = optax.softmax_cross_entropy_with_integer_labels(
          self.logits(state, batch.features), batch.labels
      )
      total += float(np.sum(np.asarray(losses[:count], np.float64)))
    return total / len(self._data.heldout_ids)
