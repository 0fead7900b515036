# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Everything that runs under `jit`."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import device_sums
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import model as model_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
import optax


class Trainer:
  """The model of one run with its compiled functions.

  Batches are divided among the devices of the mesh of jax.set_mesh; tables are
  divided by the layer, and the dense layers are on every device.
  """

  def __init__(self, config: config_lib.Config):
    self._config = config
    mesh = jax.sharding.get_mesh()
    launch.check_memory(
        model_lib.num_dense_parameters(config),
        mesh.devices.flat,
        config,
        "bottom_mlp",
        "cross_layers",
        "cross_rank",
        "top_mlp",
        "embedding_dim",
    )
    self.model = model_lib.make(config)
    self.optimizer = optax.adam(config.dense_learning_rate)
    self.pipeline = pipelining.pipelined(
        self._step, 3, config.pipeline, donate_argnums=(0, 1)
    )
    self._flight = None  # of the pipeline, where the next batch is known
    self._divided = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(mesh.axis_names)
    )
    self._everywhere = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec()
    )

  def init(self) -> train_state.TreeState:
    """The state before the first step."""
    tables_key, dense_key = jax.random.split(jax.random.key(self._config.seed))
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        self.model.feature_specs, tables_key
    )
    dense = self._replicate(self.init_dense(dense_key))
    return train_state.TreeState(
        step=0,
        feature_specs=self.model.feature_specs,
        dense=dense,
        optimizer_state=self._replicate(self.optimizer.init(dense)),
        # References, which a step updates in place: the tables, unlike the
        # dense parameters, are never returned.
        tables=tables,
    )

  def init_dense(self, key: jax.Array) -> Any:
    """The dense parameters before the first step."""
    batch = self._config.batch_size
    return self.model.init(
        key,
        jnp.zeros((batch, samples_lib.NUM_DENSE)),
        jnp.zeros((batch, samples_lib.NUM_CATEGORIES), jnp.int32),
    )["params"]

  @contextlib.contextmanager
  def preprocessed(
      self, batches: Iterator[features.Batch]
  ) -> Iterator[Iterator[features.Batch]]:
    """The batches with ids converted on the host, ahead of the steps."""
    mesh = jax.sharding.get_mesh()
    with input_pipeline.InputPipeline(
        batches,
        self.model.feature_specs,
        ids=lambda batch: model_lib.ids_by_name(batch.rows),
        rest=lambda batch: (batch.labels, batch.dense),
        mesh=mesh,
        sharding_axis=mesh.axis_names,
    ) as pipeline:
      yield (features.Batch(*batch.rest, batch.inputs) for batch in pipeline)

  def _divide(self, batch: features.Batch) -> features.Batch:
    """A batch, of which this process has its samples, over all devices."""
    if jax.process_count() == 1:
      return jax.device_put(batch, self._divided)
    if isinstance(batch.labels, jax.Array):
      return batch  # of the input pipeline
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(self._divided, x),
        batch,
    )

  def _replicate(self, arrays: Any) -> Any:
    """A tree of arrays, copied to every device."""
    return jax.device_put(arrays, self._everywhere)

  def train_step(
      self,
      state: train_state.TreeState,
      batch: features.Batch,
      following: features.Batch | None = None,
  ) -> jax.Array:
    """Takes one step: changes `state`, returns the mean loss, f32[].

    With --pipeline=off, `following` is not looked at. Else it is the batch of
    the next call, which this one looks up. Without it the state is complete
    after the call, as it has to be where it is read.
    """
    if self._config.pipeline != "off":
      return self._pipelined_step(state, batch, following)
    state.dense, state.optimizer_state, loss = self._train_step(
        state.dense,
        state.optimizer_state,
        state.tables,
        self._divide(batch),
    )
    state.step += 1
    return loss

  def _pipelined_step(self, state, batch, following):
    others = state.dense, state.optimizer_state, state.tables
    if self._flight is None:
      batch = self._divide(batch)
      self._flight = self.pipeline.start(*others, batch)
    if following is not None:
      following = self._divide(following)
      self._flight, results = self.pipeline(self._flight, *others, following)
      state.dense, state.optimizer_state, loss = results
    else:
      flight, results = self.pipeline.finish(self._flight, *others)
      dense, optimizer_state, loss = results
      state.dense, state.optimizer_state, _ = self.pipeline.flush(
          flight, dense, optimizer_state, state.tables
      )
      self._flight = None
    state.step += 1
    return loss

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
  def _train_step(self, dense, optimizer_state, tables, batch):
    return self._step(dense, optimizer_state, tables, batch)

  def _step(self, dense, optimizer_state, tables, batch):
    def loss_fn(dense):
      logits = self.model.apply(
          {"params": dense, "embedding": tables}, batch.dense, batch.rows
      )
      return device_sums.mean(
          optax.sigmoid_binary_cross_entropy(logits, batch.labels)
      )

    # The backward pass also updates the tables: they need no gradient here.
    loss, gradients = jax.value_and_grad(loss_fn)(dense)
    updates, optimizer_state = self.optimizer.update(
        gradients, optimizer_state, dense
    )
    return optax.apply_updates(dense, updates), optimizer_state, loss

  def logits(
      self, state: train_state.TreeState, batch: features.Batch
  ) -> jax.Array:
    """The logits of a click, f32[B]; changes nothing."""
    return self._logits(state.dense, state.tables, self._divide(batch))

  @functools.partial(jax.jit, static_argnums=0)
  def _logits(self, dense, tables, batch):
    # No gradient is taken, so the tables stay as they are.
    return self.model.apply(
        {"params": dense, "embedding": tables}, batch.dense, batch.rows
    )
