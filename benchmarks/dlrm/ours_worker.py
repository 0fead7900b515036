# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""This package: the model of examples/dlrm, as that program trains it."""

from __future__ import annotations

from collections.abc import Sequence
import os

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import samples
from jax_tpu_embedding.sparsecore.examples.dlrm import training
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.flax import embed
import optax

from benchmarks.dlrm import cases
from benchmarks.dlrm import model_worker

# The environment variable that says how much freed memory malloc shall keep.
KEPT_BYTES = "DLRM_KEPT_BYTES"


def _parameters(
    layers: Sequence[cases.Layer],
) -> dict[str, dict[str, jax.Array]]:
  """Flax's names for layers that follow each other."""
  return {
      f"Dense_{i}": {
          name: jnp.array(value)
          for name, value in layer._asdict().items()
          if value is not None
      }
      for i, layer in enumerate(layers)
  }


def make_config(case: cases.Case) -> config_lib.Config:
  """The settings of examples/dlrm that make it train `case`."""
  return config_lib.Config(
      batch_size=case.batch_size,
      table_rows=case.table_rows,
      embedding_dim=case.embedding_dim,
      bottom_mlp=tuple(case.bottom_mlp),
      cross_layers=case.cross_layers,
      cross_rank=case.cross_rank,
      top_mlp=tuple(case.top_mlp),
      learning_rate=cases.TABLE_LEARNING_RATE,
      dense_learning_rate=cases.DENSE_LEARNING_RATE,
  )


class _Ours(model_worker.Model):
  """Ids are converted in every step, inside jit; tables are in jax.Refs."""

  def __init__(self, case: cases.Case):
    self._batches = [
        features.Batch(*batch) for batch in cases.make_batches(case)
    ]
    self._trainer = training.Trainer(make_config(case))
    self._state = self._trainer.init()
    layers = {
        name: _parameters(of_name)
        for name, of_name in cases.make_layers(case).items()
    }
    layers["logit"] = layers["logit"]["Dense_0"]
    self._state.dense = {**self._state.dense, "dense_layers": layers}
    for variables in self._state.tables.values():
      variables.table[...] = jnp.zeros_like(variables.table[...])
    self._make_parts(case)

  def _make_parts(self, case: cases.Case) -> None:
    model = self._trainer.model
    optimizer = optax.adam(cases.DENSE_LEARNING_RATE)
    self._layers = jax.tree.map(jnp.copy, self._state.dense["dense_layers"])
    self._optimizer_state = optimizer.init(self._layers)
    # One array each, as PyTorch has them: XLA would copy parts of a larger one.
    self._given = [jnp.array(g) for g in cases.make_gradients(case)]
    embedding_layer = embed.SparseCoreEmbed(feature_specs=model.feature_specs)

    def tables(refs, rows, gradients):
      def look_up(parameters):
        return embedding_layer.apply(
            {"params": parameters, "embedding": refs},
            {
                name: rows[:, i : i + 1]
                for i, name in enumerate(samples.CATEGORY_NAMES)
            },
        )

      activations, update = jax.vjp(look_up, {"update_anchor": jnp.zeros(())})
      update(dict(zip(samples.CATEGORY_NAMES, gradients)))
      return activations

    def dense(layers, optimizer_state, batch, activations):
      def loss(layers, activations):
        logits = model.dense_layers.apply(
            {"params": layers}, batch.dense, activations
        )
        return jnp.mean(
            optax.sigmoid_binary_cross_entropy(logits, batch.labels)
        )

      of_layers, of_activations = jax.grad(loss, (0, 1))(layers, activations)
      updates, optimizer_state = optimizer.update(of_layers, optimizer_state)
      layers = optax.apply_updates(layers, updates)
      return layers, optimizer_state, of_activations

    self._tables = jax.jit(tables)
    self._dense = jax.jit(dense, donate_argnums=(0, 1))

  def step(self, batch_number: int) -> float:
    batch = self._batches[batch_number]
    return float(self._trainer.train_step(self._state, batch))

  def tables(self, batch_number: int) -> None:
    rows = self._batches[batch_number].rows
    jax.block_until_ready(self._tables(self._state.tables, rows, self._given))

  def dense(self, batch_number: int) -> None:
    self._layers, self._optimizer_state, gradients = self._dense(
        self._layers,
        self._optimizer_state,
        self._batches[batch_number],
        self._given,
    )
    jax.block_until_ready((self._layers, gradients))


class Worker(model_worker.ModelWorker):
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory(int(os.environ[KEPT_BYTES]))
    jax.set_mesh(jax.sharding.Mesh(jax.devices()[:1], ("data",)))

  def make(self, case: cases.Case) -> model_worker.Model:
    return _Ours(case)

  def versions(self) -> dict[str, str]:
    return {"jax": jax.__version__}
