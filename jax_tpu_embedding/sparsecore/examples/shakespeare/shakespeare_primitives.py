# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model with the functions below the layers, under shard_map.

Ids are preprocessed on the host, while the steps before run. One jitted program
looks up, differentiates the dense layers, and updates; lookup and update are in
shard_map, where each device has its part.
"""

from __future__ import annotations

import functools

import jax
from jax.sharding import PartitionSpec as P
from jax_tpu_embedding.sparsecore.examples.common import device_sums
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
    # Of evaluations: those of training are the pipeline's, which is ahead.
    self._limits = embedding.AdaptiveLimits(
        self.feature_specs,
        self.mesh.local_mesh.size,
        self.mesh.size,
        all_reduce_interface=embedding.all_reduce_interface_of_job(),
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

  def next_batch(self, state):
    if self._next_step != state.step:  # the first one, or of another state
      self._batches = self._pipeline(state.step)
    self._next_step = state.step + 1
    return next(self._batches)

  def _pipeline(self, first_step):
    batches = (
        self._own_samples(
            self.data.train_batch(
                self.config.seed, step, self.config.batch_size
            )
        )
        for step in range(first_step, self.config.num_steps)
    )
    return input_pipeline.InputPipeline(
        batches,
        self.feature_specs,
        ids=lambda batch: batch.features,
        rest=lambda batch: batch.labels,
        mesh=self.mesh,
        sharding_axis=training.AXIS,
    )

  def update(self, state, batch):
    with jax.set_mesh(self.mesh):
      state.dense, state.optimizer_state, state.tables, loss = self._step(
          state.dense,
          state.optimizer_state,
          state.tables,
          batch.inputs,
          batch.rest,
          np.int32(state.step),
      )
    return loss

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2, 3))
  def _step(self, dense, optimizer_state, tables, inputs, labels, step):
    keys = model_lib.dropout_keys(
        self.config.seed, step, self.config.batch_size
    )

    def loss_fn(dense, activations):
      scores = device_sums.apply(self._scores, dense, activations, keys)
      return device_sums.mean(model_lib.losses(scores, labels))

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
    inputs, _ = self._limits.preprocess(self._own_samples(features))
    inputs = jax.make_array_from_process_local_data(
        jax.sharding.NamedSharding(self.mesh, P(training.AXIS)), inputs
    )
    return self._logits(state.dense, state.tables, inputs)

  @functools.partial(jax.jit, static_argnums=0)
  def _logits(self, dense, tables, inputs):
    return self._scores(dense, self._look_up(inputs, tables), keys=None)

  def _scores(self, dense, activations, keys):
    layers = model_lib.apply_layers(dense)
    return model_lib.logits(layers, activations, self.config.dropout, keys)

  def _own_samples(self, tree):
    """The samples of this process's devices, of arrays that all processes have."""
    return jax.tree.map(
        lambda x: np.split(x, jax.process_count())[jax.process_index()], tree
    )


if __name__ == "__main__":
  program.start(PrimitivesTrainer)
