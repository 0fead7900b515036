# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A small model with the layer in it, for tests.

One feature has a vector per position, the other one is pooled.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

BATCH, LENGTH, DIM, VOCAB = 16, 3, 8, 32
P = jax.sharding.PartitionSpec


def make_features(optimizer=None, batch=BATCH, dtype="float32", prefix=""):
  """The specs of both features, which have a table each."""
  make_table = lambda name, **kwargs: embedding_spec.TableSpec(
      name=prefix + name,
      vocabulary_size=VOCAB,
      embedding_dim=DIM,
      optimizer=optimizer or embedding_spec.SGDOptimizerSpec(0.5),
      dtype=dtype,
      **kwargs,
  )
  return {
      "words": embedding_spec.FeatureSpec(
          name=prefix + "words",
          table_spec=make_table("words"),
          input_shape=(batch, LENGTH),
          output_shape=(batch, LENGTH, DIM),
      ),
      "tags": embedding_spec.FeatureSpec(
          name=prefix + "tags",
          table_spec=make_table("tags", combiner="mean"),
          input_shape=(batch, 2),
          output_shape=(batch, DIM),
      ),
  }


def make_ids(seed=0, batch=BATCH):
  rng = np.random.default_rng(seed)
  return {
      "words": rng.integers(0, VOCAB, (batch, LENGTH), dtype=np.int32),
      "tags": rng.integers(0, VOCAB, (batch, 2), dtype=np.int32),
  }


class Model(nn.Module):
  """A vector per example; `num_calls` lookups of one layer, added."""

  feature_specs: Any
  options: Any = ()  # of the layer: a tuple of pairs
  num_calls: int = 1
  layer: Any = embed.SparseCoreEmbed

  @nn.compact
  def __call__(self, inputs, weights=None, step=None):
    lookup = self.layer(
        feature_specs=self.feature_specs, name="emb", **dict(self.options)
    )
    x = 0.0
    for _ in range(self.num_calls):
      out = lookup(inputs, weights, step=step)
      x += out["words"].mean(1) + out["tags"]
    return nn.Dense(4)(x)


def loss(model, params, ids, tables=None, **kwargs):
  """The mean square of the outputs."""
  variables = {"params": params}
  if tables is not None:
    variables["embedding"] = tables
  return (model.apply(variables, ids, **kwargs) ** 2).mean()


def with_refs(specs=None, **kwargs):
  """A model whose tables are mutable arrays, its parameters, and the tables."""
  specs = specs or make_features()
  options = kwargs.pop("options", {})
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0), **options
  )
  model = Model(specs, (*options.items(), ("tables", "ref")), **kwargs)
  params = model.init(jax.random.key(1), make_ids())["params"]
  return model, params, tables


def with_parameters(specs=None, **kwargs):
  """A model whose tables are parameters, and these."""
  specs = specs or make_features()
  options = kwargs.pop("options", {})
  model = Model(specs, (*options.items(), ("tables", "param")), **kwargs)
  return model, model.init(jax.random.key(1), make_ids())["params"]


def values(tables):
  """What mutable arrays hold now, as copies."""
  return jax.tree.map(lambda ref: np.array(ref[...]), tables)


def on_mesh(tree, mesh, *spec):
  """`tree` with every array split over the mesh in the same way."""
  sharding = jax.sharding.NamedSharding(mesh, P(*spec))
  return jax.tree.map(lambda x: jax.device_put(jnp.asarray(x), sharding), tree)
