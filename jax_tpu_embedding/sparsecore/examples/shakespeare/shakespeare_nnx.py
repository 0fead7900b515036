# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model in Flax NNX.

Tables are parameters of the layer. Their "gradient" is the new tables, and the
optimizer puts it into the model; with the model donated, that is in place.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools

from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.examples.common import device_sums
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
import numpy as np


class NextWord(nnx.Module):
  """Ids of the previous words to the logits of the next one, f32[B, V]."""

  def __init__(
      self, lookup: embed.SparseCoreEmbed, layers: nnx.Dict, dropout: float
  ):
    self.lookup = lookup
    self.layers = layers
    self.dropout = dropout

  def __call__(
      self,
      features: Mapping[str, jax.Array],
      dropout_keys: jax.Array | None = None,
  ) -> jax.Array:
    layers, parameters = nnx.split(self.layers)

    def logits(parameters, activations, keys):
      return model_lib.logits(
          nnx.merge(layers, parameters), activations, self.dropout, keys
      )

    return device_sums.apply(
        logits, parameters, self.lookup(features), dropout_keys
    )


@dataclasses.dataclass(kw_only=True)
class NnxState(train_state.State):
  """Objects, which a step changes."""

  model: NextWord
  optimizer: embed.PartitionedOptimizer

  def _dense(self) -> nnx.State:
    """The parameters, and what the optimizer keeps of them."""
    return nnx.state(
        (self.model.layers, self.optimizer.opt_state),
        nnx.Any(nnx.Param, nnx.OptState),
    )

  def arrays(self):
    # As the other programs name them.
    return {
        _name(path): leaf
        for path, leaf in jax.tree.leaves_with_path(self._dense())
    }

  def assign(self, arrays):
    state = jax.tree.map_with_path(
        lambda path, leaf: train_state.put_like(leaf, arrays[_name(path)]),
        self._dense(),
    )
    nnx.update((self.model.layers, self.optimizer.opt_state), state)
    # It counts steps, as Adam does.
    step = self.optimizer.step.get_value()
    self.optimizer.step.set_value(
        train_state.put_like(step, np.asarray(self.step, step.dtype))
    )

  def table_variables(self):
    return self.model.lookup.table_variables()

  def assign_tables(self, variables):
    self.model.lookup.set_table_variables(variables)


def _name(path) -> str:
  part, *names = jax.tree_util.keystr(path, simple=True, separator=".").split(
      "."
  )
  names = [name for name in names if name not in ("layers", "value")]
  return ".".join([("dense", "optimizer_state")[int(part)], *names])


class NnxTrainer(training.Trainer):
  """Steps change the objects of the state."""

  api = "nnx"

  def init(self):
    # Its first key is the one that the other programs make tables with.
    rngs = nnx.Rngs(params=self.params_key)
    lookup = embed.SparseCoreEmbed(
        self.feature_specs, training.AXIS, self.mesh, rngs, tables="param"
    )
    layers = nnx.Dict(
        {
            name: nnx.Linear(size.inputs, size.outputs, rngs=rngs)
            for name, size in self.layer_sizes.items()
        }
    )
    # Every program starts from these values.
    nnx.update(layers, self.initial_parameters)
    model = NextWord(lookup, layers, self.config.dropout)
    optimizer = embed.PartitionedOptimizer(model, self.optimizer)
    # The tables are where they belong; all else is on one device so far.
    others = nnx.state(
        (model, optimizer), lambda path, _: "embedding_table" not in path
    )
    nnx.update((model, optimizer), self.on_every_device(others))
    return NnxState(
        step=0,
        feature_specs=self.feature_specs,
        model=model,
        optimizer=optimizer,
    )

  def update(self, state, batch):
    with jax.set_mesh(self.mesh):
      return self._step(
          state.model,
          state.optimizer,
          self.by_sample(batch),
          np.int32(state.step),
      )

  @functools.partial(nnx.jit, static_argnums=0, donate_argnums=(1, 2))
  def _step(self, model, optimizer, batch, step):
    keys = model_lib.dropout_keys(
        self.config.seed, step, self.config.batch_size
    )

    def loss_fn(model):
      scores = model(batch.features, keys)
      return device_sums.mean(model_lib.losses(scores, batch.labels))

    loss, gradients = nnx.value_and_grad(loss_fn, allow_int=True)(model)
    optimizer.update(model, gradients)
    return loss

  def logits(self, state, features):
    with jax.set_mesh(self.mesh):
      return self._logits(state.model, self.by_sample(features))

  @functools.partial(nnx.jit, static_argnums=0)
  def _logits(self, model, features):
    # No gradient is taken, so the tables stay as they are.
    return model(features)


if __name__ == "__main__":
  program.start(NnxTrainer)
