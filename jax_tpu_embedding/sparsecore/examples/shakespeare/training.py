# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What training is, whichever API it is written in."""

from __future__ import annotations

import abc
from typing import Any
from typing import ClassVar

import jax
from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
import numpy as np
import optax

# The only axis of the mesh: samples and the rows of tables are split along it.
AXIS = "device"


class Trainer(abc.ABC):
  """The model of one run on the run's devices.

  A program is a subclass: it says how tables and layers are made, and how a
  step and the logits are computed. All start from the same values and see the
  same batches.
  """

  # The name of the program among the others.
  api: ClassVar[str]
  # Whether its devices may be those of several processes.
  takes_several_processes: ClassVar[bool] = True

  def __init__(
      self,
      config: config_lib.Config,
      data: dataset.Dataset,
      unigram_log_probs: np.ndarray,
  ):
    self.config = config
    self.data = data
    self.mesh = jax.sharding.Mesh(jax.devices()[: config.num_devices], (AXIS,))
    self.feature_specs = model_lib.feature_specs(config, len(data.words))
    self.layer_sizes = model_lib.layer_sizes(config, len(data.words))
    launch.check_memory(
        sum(
            (size.inputs + 1) * size.outputs
            for size in self.layer_sizes.values()
        ),
        self.mesh.devices.flat,
        config,
        "hidden_dim",
        "embedding_dim",
        "context_length",
    )
    self.params_key, dense_key = jax.random.split(jax.random.key(config.seed))
    # The first key that nnx.Rngs(params=self.params_key) gives.
    self.tables_key = jax.random.fold_in(self.params_key, 0)
    self.initial_parameters = model_lib.initial_parameters(
        self.layer_sizes, dense_key, unigram_log_probs
    )
    self.optimizer = optax.adam(config.dense_learning_rate)

  @abc.abstractmethod
  def init(self) -> train_state.State:
    """The state before the first step."""

  def next_batch(self, state: train_state.State) -> Any:
    """The batch of the step that comes next, as `update` takes it."""
    return self.data.train_batch(
        self.config.seed, state.step, self.config.batch_size
    )

  @abc.abstractmethod
  def update(self, state: train_state.State, batch: Any) -> jax.Array:
    """Learns from a batch: changes all of `state` but its step.

    Returns: the mean loss of the batch before that, f32[].
    """

  @abc.abstractmethod
  def logits(
      self, state: train_state.State, features: dict[str, np.ndarray]
  ) -> jax.Array:
    """Scores of the next word, f32[B, V], for a full batch of `features`."""

  def by_sample(self, tree: Any) -> Any:
    """Arrays of samples, which all processes have, split over the devices."""
    sharding = jax.sharding.NamedSharding(
        self.mesh, jax.sharding.PartitionSpec(AXIS)
    )
    if jax.process_count() == 1:
      return jax.device_put(tree, sharding)
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(
            x.shape, sharding, x.__getitem__
        ),
        tree,
    )

  def on_every_device(self, tree: Any) -> Any:
    """A copy of `tree` on each device; nothing shares memory with `tree`."""
    return jax.device_put(
        jax.tree.map(np.asarray, tree),
        jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec()),
    )

  def train_step(self, state: train_state.State) -> jax.Array:
    """Takes one step: changes `state`, returns the mean loss, f32[]."""
    loss = self.update(state, self.next_batch(state))
    state.step += 1
    return loss

  def heldout_loss(self, state: train_state.State) -> float:
    """Mean loss per held-out word, in nats; changes nothing."""
    total = 0.0
    for batch, count in self.data.heldout_batches(self.config.batch_size):
      losses = job.on_host(
          model_lib.losses(self.logits(state, batch.features), batch.labels)
      )
      total += float(np.sum(losses[:count], dtype=np.float64))
    return total / len(self.data.heldout_ids)
