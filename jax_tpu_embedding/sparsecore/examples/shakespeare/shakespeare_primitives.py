# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model with the functions below the layers, under shard_map.

Ids are preprocessed on the host. One jitted program looks up, differentiates
the dense layers as on one device, and updates; only lookup and update, which
need to know each device's part, are in shard_map.
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
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        features,
        None,
        self.feature_specs,
        self.config.num_devices,
        self.config.num_devices,
    )
    return self.by_sample(inputs)

  def update(self, state, batch):
    state.dense, state.optimizer_state, state.tables, loss = self._step(
        state.dense,
        state.optimizer_state,
        state.tables,
        self._preprocess(batch.features),
        self.by_sample(batch.labels),
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
