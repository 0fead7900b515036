# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One small model in every form of the layers, for tests of all of them.

A row of the table "t" per sample, plus a bias, is to be a target.
"""

from __future__ import annotations

import functools
from typing import Any

from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen_embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

BATCH, VOCAB, DIM, RATE = 16, 16, 8, 0.1
IDS = {"f": np.arange(BATCH, dtype=np.int32)[:, None]}
TARGET = np.linspace(-1, 1, BATCH * DIM, dtype=np.float32).reshape(BATCH, DIM)


def make_specs(optimizer, **table_fields):
  defaults = dict(name="t", vocabulary_size=VOCAB, embedding_dim=DIM)
  table = embedding_spec.TableSpec(
      optimizer=optimizer, **(defaults | table_fields)
  )
  return {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(BATCH, 1),
          output_shape=(BATCH, DIM),
      )
  }


def squares(out):
  return 0.5 * ((out - TARGET) ** 2).sum()


class _LinenModel(nn.Module):
  specs: Any
  options: Any

  @nn.compact
  def __call__(self, ids, **kwargs):
    layer = linen_embed.SparseCoreEmbed(
        self.specs, name="embed", **dict(self.options)
    )
    bias = self.param("bias", nn.initializers.zeros, (DIM,))
    return layer(ids, **kwargs)["f"] + bias


class _NnxModel(nnx.Module):

  def __init__(self, specs, options):
    rngs = nnx.Rngs(0)
    self.embed = nnx_embed.SparseCoreEmbed(specs, rngs=rngs, **options)
    self.bias = nnx.Param(jnp.zeros(DIM))

  def __call__(self, ids, **kwargs):
    return self.embed(ids, **kwargs)["f"] + self.bias[...]


class LinenRefs:
  """Tables in mutable arrays that are no part of the model."""

  def __init__(self, specs, **options):
    self.traces = 0
    self.model = _LinenModel(specs, (("tables", "ref"), *options.items()))
    self.tables = linen_embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0), **options
    )
    self.params = self.model.init(jax.random.key(1), IDS)["params"]
    self.jitted = jax.jit(self._step)

  def _step(self, params, tables, ids, kwargs):
    self.traces += 1

    def loss(params):
      variables = {"params": params, "embedding": tables}
      return squares(self.model.apply(variables, ids, **kwargs))

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)

  def step(self, **kwargs):
    self.params = self.jitted(self.params, self.tables, IDS, kwargs)

  def look_up(self):
    return self.model.apply(
        {"params": self.params, "embedding": self.tables}, IDS
    )

  def take_tables(self, other):
    self.tables = other.tables

  def forget_state(self):
    self.tables = {
        name: embedding.EmbeddingVariables(table, slot)
        for name, (table, slot, _) in self.tables.items()
    }

  @property
  def table(self):
    return np.array(self.tables["t"].table[...])


class LinenParameters:
  """Tables among the parameters of the model."""

  def __init__(self, specs, **options):
    self.traces = 0
    self.model = _LinenModel(specs, (("tables", "param"), *options.items()))
    self.params = self.model.init(jax.random.key(0), IDS)["params"]
    self._make_optimizer()
    self.jitted = jax.jit(self._step, donate_argnums=(0, 1))

  def _step(self, params, state, ids, kwargs):
    self.traces += 1
    gradients = jax.grad(
        lambda p: squares(self.model.apply({"params": p}, ids, **kwargs))
    )(params)
    updates, state = self.optimizer.update(gradients, state, params)
    return embed_optimizer.apply_updates_for_sc_model(params, updates), state

  def step(self, **kwargs):
    self.params, self.state = self.jitted(self.params, self.state, IDS, kwargs)

  def look_up(self):
    return self.model.apply({"params": self.params}, IDS)

  def take_tables(self, other):
    self.params = other.params

  def forget_state(self):
    del self.params["embed"]["update_seal"]
    self._make_optimizer()

  def _make_optimizer(self):
    self.optimizer = embed_optimizer.create_optimizer_for_sc_model(
        self.params, optax.sgd(RATE)
    )
    self.state = self.optimizer.init(self.params)

  @property
  def table(self):
    variables = nn.meta.unbox(self.params["embed"]["sc_embedding_variables"])
    return np.array(variables["t"].table)


class _Nnx:
  """An NNX model with its optimizer."""

  def __init__(self, tables, specs, **options):
    self.traces = 0
    self.model = _NnxModel(specs, options | {"tables": tables})
    self.optimizer = nnx_embed.PartitionedOptimizer(self.model, optax.sgd(RATE))
    # Refs cannot be donated.
    donated = (0, 1) if tables == "param" else ()
    self.jitted = nnx.jit(self._step, donate_argnums=donated)

  def _step(self, model, optimizer, ids, kwargs):
    self.traces += 1
    gradients = nnx.grad(lambda model: squares(model(ids, **kwargs)))(model)
    optimizer.update(model, gradients)

  def step(self, **kwargs):
    self.jitted(self.model, self.optimizer, IDS, kwargs)

  def look_up(self):
    return self.model(IDS)

  def take_tables(self, other):
    self.model.embed.embedding_table = other.model.embed.embedding_table
    if hasattr(other.model.embed, "update_seal"):
      self.model.embed.update_seal = other.model.embed.update_seal

  def forget_state(self):
    layer = self.model.embed
    if hasattr(layer, "update_seal"):
      del layer.update_seal
    else:
      layer.embedding_table = nnx.data(
          {
              name: embedding.EmbeddingVariables(table, slot)
              for name, (table, slot, _) in layer.embedding_table.items()
          }
      )

  @property
  def table(self):
    variables = self.model.embed.embedding_table
    if not isinstance(variables, dict):
      variables = variables.get_value()
    return np.array(variables["t"].table[...])


# Name -> class, called with specs and options of the layer. `step` trains one
# step by `jitted` and counts its `traces`.
FORMS = {
    "linen_ref": LinenRefs,
    "linen_param": LinenParameters,
    "nnx_ref": functools.partial(_Nnx, "ref"),
    "nnx_param": functools.partial(_Nnx, "param"),
}
