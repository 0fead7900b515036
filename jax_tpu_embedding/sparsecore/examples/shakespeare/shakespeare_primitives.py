# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model with the functions below the layers, under shard_map.

Ids are preprocessed on the host, while the steps before run. One jitted program looks up, differentiates
the dense layers as on one device, and updates; only lookup and update, which
need to know each device's part, are in shard_map.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np
import optax


class PrimitivesTrainer(training.Trainer):
  """Tables are arrays; every step returns new ones, in the same memory."""

  api = "primitives"
  # Limits, which buffers are made by, would have to be agreed on.
  takes_several_processes = False

  def __init__(self, *args):
    super().__init__(*args)
    # Which table is in which stack, and what the limits of a stack are, is
    # written into the specs; all else reads it there.
    embedding.prepare_feature_specs_for_training(
        self.feature_specs, self.config.num_devices
    )
    by_device = functools.partial(
        jax.shard_map,
        mesh=self.mesh,
        in_specs=P(training.AXIS),
        out_specs=P(training.AXIS),
        check_vma=False,
    )
    self._limits = embedding.AdaptiveLimits(
        self.feature_specs, self.config.num_devices, self.config.num_devices
    )
    self._batches, self._next_step = None, None
    self._look_up = by_device(
        functools.partial(
            embedding.tpu_sparse_dense_matmul, feature_specs=self.feature_specs
        )
    )
    self._update_tables = by_device(
        functools.partial(
            embedding.tpu_sparse_dense_matmul_grad,
            feature_specs=self.feature_specs,
        )
    )

  def init(self):
    tables = embedding.init_embedding_variables(
        self.tables_key,
        embedding.get_table_specs(self.feature_specs),
        jax.sharding.NamedSharding(self.mesh, P(training.AXIS, None)),
        bypass_mesh_check=True,  # --num_devices may leave devices out.
    )
    dense = self.on_every_device(self.initial_parameters)
    return train_state.TreeState(
        step=0,
        feature_specs=self.feature_specs,
        dense=dense,
        optimizer_state=self.on_every_device(self.optimizer.init(dense)),
        tables=tables,
    )

  def _preprocess(self, features):
    inputs, _ = self._limits.preprocess(features)
    return self.by_sample(inputs)

  def train_step(self, state):
    if self._next_step != state.step:  # the first one, or of another state
      self._batches, self._next_step = self._pipeline(state.step), state.step
    batch = next(self._batches)
    loss = self._take_step(state, batch.inputs, batch.rest)
    state.step += 1
    self._next_step = state.step
    return loss

  def _pipeline(self, first_step):
    batches = (
        self.data.train_batch(self.config.seed, step, self.config.batch_size)
        for step in itertools.count(first_step)
    )
    return input_pipeline.InputPipeline(
        batches,
        self.feature_specs,
        ids=lambda batch: batch.features,
        rest=lambda batch: batch.labels,
        mesh=self.mesh,
        sharding_axis=training.AXIS,
        limits=self._limits,
    )

  def update(self, state, batch):
    inputs = self._preprocess(batch.features)
    return self._take_step(state, inputs, self.by_sample(batch.labels))

  def _take_step(self, state, inputs, labels):
    state.dense, state.optimizer_state, state.tables, loss = self._step(
        state.dense,
        state.optimizer_state,
        state.tables,
        inputs,
        labels,
        np.int32(state.step),
    )
    return loss

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2, 3))
  def _step(self, dense, optimizer_state, tables, inputs, labels, step):
    keys = model_lib.dropout_keys(
        self.config.seed, step, self.config.batch_size
    )

    def loss_fn(dense, activations):
      scores = model_lib.logits(
          model_lib.apply_layers(dense), activations, self.config.dropout, keys
      )
      return jnp.mean(model_lib.losses(scores, labels))

    activations = self._look_up(inputs, tables)
    loss, (gradients, activation_gradients) = jax.value_and_grad(
        loss_fn, argnums=(0, 1)
    )(dense, activations)
    tables = self._update_tables(activation_gradients, inputs, tables)
    updates, optimizer_state = self.optimizer.update(
        gradients, optimizer_state, dense
    )
    return optax.apply_updates(dense, updates), optimizer_state, tables, loss

  def logits(self, state, features):
    return self._logits(state.dense, state.tables, self._preprocess(features))

  @functools.partial(jax.jit, static_argnums=0)
  def _logits(self, dense, tables, inputs):
    return model_lib.logits(
        model_lib.apply_layers(dense),
        self._look_up(inputs, tables),
        self.config.dropout,
        keys=None,
    )


if __name__ == "__main__":
  program.start(PrimitivesTrainer)
