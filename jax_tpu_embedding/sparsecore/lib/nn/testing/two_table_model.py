# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Three features over two tables, with inputs and values, for tests."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

BATCH = 24  # divisible by 1, 2, 3 and 4 SparseCores


def sgd(learning_rate=0.5):
  return embedding_spec.SGDOptimizerSpec(learning_rate=learning_rate)


def distinct_values(unused_key, shape, dtype=jnp.float32):
  """An initializer that compiles faster than random numbers do."""
  return jnp.sin(jnp.arange(math.prod(shape))).reshape(shape).astype(dtype)


def table(name="t", vocabulary_size=40, embedding_dim=6, **kwargs):
  return embedding_spec.TableSpec(
      name=name,
      vocabulary_size=vocabulary_size,
      embedding_dim=embedding_dim,
      **(dict(optimizer=sgd(), initializer=distinct_values) | kwargs),
  )


def feature(name, table_spec, valency=3, batch=BATCH):
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table_spec,
      input_shape=(batch, valency),
      output_shape=(batch, table_spec.embedding_dim),
  )


def one_device_sharding():
  return jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      jax.sharding.PartitionSpec("x", None),
  )


@dataclasses.dataclass
class TwoTableModel:
  """Three features over two tables, with their inputs and variables."""

  num_sc: int
  stacked: bool = True
  combiner: str = "sum"
  optimizer: embedding_spec.OptimizerSpec = dataclasses.field(
      default_factory=sgd
  )

  def __post_init__(self):
    rng = np.random.default_rng(self.num_sc)
    make = functools.partial(
        table, combiner=self.combiner, optimizer=self.optimizer
    )
    users, items = make("users"), make("items", 70, 8)
    self.specs = {
        "user": feature("user", users),
        "item": feature("item", items, valency=1),
        "last": feature("last", items, valency=5),
    }
    if self.stacked:
      embedding.auto_stack_tables(self.specs, 1, self.num_sc)
    embedding.prepare_feature_specs_for_training(self.specs, 1, self.num_sc)
    self.ids = {
        name: rng.integers(
            0, spec.table_spec.vocabulary_size, spec.input_shape, np.int32
        )
        for name, spec in self.specs.items()
    }
    self.weights = {
        name: rng.uniform(0.5, 2, ids.shape).astype(np.float32)
        for name, ids in self.ids.items()
    }
    self.inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        self.ids, self.weights, self.specs, 1, 1, num_sc_per_device=self.num_sc
    )
    self.variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        one_device_sharding(),
        self.num_sc,
    )

  def gains(self, name):
    """f64[batch, vocabulary]: the matrix that a lookup multiplies with."""
    spec = self.specs[name]
    ids, weights = self.ids[name], self.weights[name].astype(np.float64)
    matrix = np.zeros((BATCH, spec.table_spec.vocabulary_size))
    for sample in range(BATCH):
      np.add.at(matrix[sample], ids[sample], weights[sample])
    if self.combiner == "mean":
      matrix /= weights.sum(1, keepdims=True)
    elif self.combiner == "sqrtn":
      matrix /= np.sqrt((weights**2).sum(1, keepdims=True))
    return matrix

  def logical_tables(self, variables):
    """Table name -> f32[vocabulary_size, embedding_dim]."""
    specs = embedding.get_table_specs(self.specs)
    return table_stacking.unshard_and_unstack_tables(
        specs,
        {name: variable.table for name, variable in variables.items()},
        self.num_sc,
    )

  def lookup(self, inputs, variables):
    return embedding.tpu_sparse_dense_matmul(
        inputs, variables, self.specs, global_device_count=1
    )
