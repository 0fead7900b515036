# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""DLRM-DCNv2: 26 embedding tables, cross layers, and two stacks of layers.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization
and Recommendation Systems", arXiv:1906.00091, figure 1; Wang et al., "DCN V2",
arXiv:2008.13535, equations 1 and 2 (low-rank), in place of its interaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import device_sums
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

# Of the normal distribution that tables start from.
_INITIAL_SCALE = 0.01


def feature_specs(
    config: config_lib.Config,
) -> dict[str, embedding_spec.FeatureSpec]:
  """What is looked up where: C1 to C26, i32[B, 1] -> f32[B, D] each.

  Tables are stacked as far as the activations of a stack stay small, which
  takes fewer lookups and updates per step than 26.
  """
  optimizer = embedding_spec.AdagradOptimizerSpec(
      learning_rate=config.learning_rate
  )
  specs = {
      name: embedding_spec.FeatureSpec(
          name=name,
          table_spec=embedding_spec.TableSpec(
              name=name,
              vocabulary_size=config.table_rows,
              embedding_dim=config.embedding_dim,
              initializer=jax.nn.initializers.normal(_INITIAL_SCALE),
              optimizer=optimizer,
              combiner="sum",
          ),
          input_shape=(config.batch_size, 1),
          output_shape=(config.batch_size, config.embedding_dim),
      )
      for name in samples_lib.CATEGORY_NAMES
  }
  embedding.auto_stack_tables(
      specs,
      global_device_count=config.num_devices,
      num_sc_per_device=hardware.num_sparsecores_per_device(),
  )
  return specs


class Mlp(nn.Module):
  """Dense layers, each followed by ReLU."""

  widths: Sequence[int]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for width in self.widths:
      x = nn.relu(nn.Dense(width)(x))
    return x


class CrossLayers(nn.Module):
  """Products of inputs of ever higher degree, f32[B, d] -> f32[B, d].

  x_{l+1} = x_0 * (U V^T x_l + b) + x_l, with U and V of shape [d, rank].
  """

  num_layers: int
  rank: int

  @nn.compact
  def __call__(self, x0: jax.Array) -> jax.Array:
    x = x0
    for _ in range(self.num_layers):
      narrow = nn.Dense(self.rank, use_bias=False)(x)
      x += x0 * nn.Dense(x0.shape[1])(narrow)
    return x


class DenseLayers(nn.Module):
  """Everything behind the tables: to the logit of a click, f32[B]."""

  bottom_mlp: Sequence[int]
  cross_layers: int
  cross_rank: int
  top_mlp: Sequence[int]

  @nn.compact
  def __call__(
      self, dense: jax.Array, activations: Sequence[jax.Array]
  ) -> jax.Array:
    """`dense` f32[B, 13], `activations` 26 times f32[B, D]."""
    bottom = Mlp(self.bottom_mlp, name="bottom_mlp")(dense)
    x = jnp.concatenate([bottom, *activations], axis=1)
    x = CrossLayers(self.cross_layers, self.cross_rank, name="cross")(x)
    x = Mlp(self.top_mlp, name="top_mlp")(x)
    return nn.Dense(1, name="logit")(x)[:, 0]


def _dense_layers(config: config_lib.Config) -> DenseLayers:
  return DenseLayers(
      bottom_mlp=config.bottom_mlp,
      cross_layers=config.cross_layers,
      cross_rank=config.cross_rank,
      top_mlp=config.top_mlp,
  )


def num_dense_parameters(config: config_lib.Config) -> int:
  """How many numbers the dense layers of a run have; makes none of them."""

  def count(cross_layers):
    layers = _dense_layers(
        dataclasses.replace(config, cross_layers=cross_layers)
    )
    sample, activation = (
        jax.ShapeDtypeStruct((1, width), jnp.float32)
        for width in (samples_lib.NUM_DENSE, config.embedding_dim)
    )
    parameters = jax.eval_shape(
        layers.init,
        jax.random.key(0),
        sample,
        [activation] * samples_lib.NUM_CATEGORIES,
    )
    return sum(x.size for x in jax.tree.leaves(parameters))

  # All cross layers have one size, and there may be too many to look at.
  without, with_one = count(0), count(1)
  return without + config.cross_layers * (with_one - without)


def ids_by_name(rows: Any) -> dict[str, Any]:
  """The tree of feature_specs with ids, of rows i32[B, 26]."""
  names = samples_lib.CATEGORY_NAMES
  return {name: rows[:, i : i + 1] for i, name in enumerate(names)}


class DlrmDcnV2(nn.Module):
  """Dense features and rows of tables to the logit of a click, f32[B]."""

  feature_specs: Mapping[str, embedding_spec.FeatureSpec]
  dense_layers: DenseLayers

  @nn.compact
  def __call__(
      self, dense: jax.Array, rows: jax.Array | embedding.PreprocessedInput
  ) -> jax.Array:
    """`dense` f32[B, 13], `rows` i32[B, 26] or what they were converted to."""
    if not isinstance(rows, embedding.PreprocessedInput):
      rows = ids_by_name(rows)
    activations = embed.SparseCoreEmbed(feature_specs=self.feature_specs)(rows)
    names = samples_lib.CATEGORY_NAMES
    activations = [activations[name] for name in names]
    if self.is_initializing():
      return self.dense_layers(dense, activations)
    layers, parameters = self.dense_layers.unbind()
    return device_sums.apply(layers.apply, parameters, dense, activations)


def make(config: config_lib.Config) -> DlrmDcnV2:
  """The model of a run."""
  return DlrmDcnV2(
      feature_specs=feature_specs(config),
      dense_layers=_dense_layers(config),
  )
