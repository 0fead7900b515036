# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model with the functions below the layers, under jax.pmap.

For programs that still use it. The step is written for one device: arrays have
a leading dimension of devices outside of it, and what devices must agree on is
summed by hand.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np
import optax


class PmapState(train_state.TreeState):
  """Saved without the dimension of devices, all of which have the same."""

  def arrays(self):
    return {name: array[0] for name, array in super().arrays().items()}

  def assign(self, arrays):
    num_devices = next(iter(super().arrays().values())).shape[0]
    super().assign(
        {
            name: np.stack([array] * num_devices)
            for name, array in arrays.items()
        }
    )


class PmapTrainer(training.Trainer):
  """All arrays are [devices, ...]; each device has the dense parameters."""

  api = "pmap"
  takes_several_processes = False

  def __init__(self, *args):
    super().__init__(*args)
    embedding.prepare_feature_specs_for_training(
        self.feature_specs, self.config.num_devices
    )
    by_device = functools.partial(
        jax.pmap,
        axis_name=training.AXIS,
        devices=list(self.mesh.devices.flat),
    )
    self._step = by_device(
        self._device_step,
        in_axes=(0, 0, 0, 0, 0, None),
        donate_argnums=(0, 1, 2),
    )
    self._logits = by_device(self._device_logits)

  def init(self):
    tables = embedding.init_embedding_variables(
        self.tables_key,
        embedding.get_table_specs(self.feature_specs),
        jax.sharding.NamedSharding(self.mesh, P(training.AXIS, None, None)),
        bypass_mesh_check=True,  # --num_devices may leave devices out.
    )
    copies = lambda tree: self.by_sample(
        jax.tree.map(lambda x: np.stack([x] * self.config.num_devices), tree)
    )
    return PmapState(
        step=0,
        feature_specs=self.feature_specs,
        dense=copies(self.initial_parameters),
        optimizer_state=copies(self.optimizer.init(self.initial_parameters)),
        tables=tables,
    )

  def _preprocess(self, features):
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        features,
        None,
        self.feature_specs,
        self.config.num_devices,
        self.config.num_devices,
        has_leading_dimension=True,
    )
    return inputs

  def update(self, state, batch):
    state.dense, state.optimizer_state, state.tables, loss = self._step(
        state.dense,
        state.optimizer_state,
        state.tables,
        self._preprocess(batch.features),
        batch.labels.reshape(self.config.num_devices, -1),
        np.int32(state.step),
    )
    return loss[0]

  def _device_step(self, dense, optimizer_state, tables, inputs, labels, step):
    """Everything is one device's; the loss is that of the whole batch."""
    keys = model_lib.dropout_keys(
        self.config.seed,
        step,
        labels.size,
        first=jax.lax.axis_index(training.AXIS) * labels.size,
    )

    def loss_fn(dense, activations):
      """This device's share of the mean loss, whose sum is the mean."""
      scores = model_lib.logits(
          model_lib.apply_layers(dense), activations, self.config.dropout, keys
      )
      losses = model_lib.losses(scores, labels)
      return jnp.sum(losses) / self.config.batch_size

    activations = embedding.tpu_sparse_dense_matmul(
        inputs, tables, self.feature_specs
    )
    loss, (gradients, activation_gradients) = jax.value_and_grad(
        loss_fn, argnums=(0, 1)
    )(dense, activations)
    tables = embedding.tpu_sparse_dense_matmul_grad(
        activation_gradients, inputs, tables, self.feature_specs
    )
    loss, gradients = jax.lax.psum((loss, gradients), training.AXIS)
    updates, optimizer_state = self.optimizer.update(
        gradients, optimizer_state, dense
    )
    return optax.apply_updates(dense, updates), optimizer_state, tables, loss

  def logits(self, state, features):
    logits = self._logits(state.dense, state.tables, self._preprocess(features))
    return logits.reshape(self.config.batch_size, -1)

  def _device_logits(self, dense, tables, inputs):
    return model_lib.logits(
        model_lib.apply_layers(dense),
        embedding.tpu_sparse_dense_matmul(inputs, tables, self.feature_specs),
        self.config.dropout,
        keys=None,
    )


if __name__ == "__main__":
  program.start(PmapTrainer)
