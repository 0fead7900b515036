# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The calls of keras-rs in the forms in which it makes them, without Keras.

For what its own layer does not reach: other meshes, statistics made by the
caller, FTRL, versions after 0.4.0.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

P = jax.sharding.PartitionSpec
BATCH = 32


def make_specs(optimizer, num_devices, num_sc):
  make = functools.partial(
      two_table_model.table, optimizer=optimizer, combiner="mean"
  )
  items = make("items", 70, 6)
  feature = functools.partial(two_table_model.feature, batch=BATCH)
  specs = {
      "user": feature("user", make("users", 50, 8)),
      "item": feature("item", items, valency=1),
      "last": feature("last", items, valency=4),
  }
  table_stacking.auto_stack_tables(specs, num_devices, num_sc)
  embedding.prepare_feature_specs_for_training(specs, num_devices, num_sc)
  return specs


def random_ids(specs):
  rng = np.random.default_rng(3)
  return {
      name: rng.integers(
          spec.table_spec.vocabulary_size, size=spec.input_shape, dtype="i4"
      )
      for name, spec in specs.items()
  }


def preprocess(specs, ids, num_devices, num_sc, weights=None):
  """With flat lists for all three trees."""
  return embedding.preprocess_sparse_dense_matmul_input(
      jax.tree.leaves(ids),
      weights and jax.tree.leaves(weights),
      jax.tree.leaves(specs),
      local_device_count=num_devices,
      global_device_count=num_devices,
      num_sc_per_device=num_sc,
      sharding_strategy="MOD",
      has_leading_dimension=False,
      allow_id_dropping=True,
  )


def random_variables(specs, num_shards, put):
  """Stacks of random tables as the client keeps them, and the tables."""
  tables = {
      name: np.random.default_rng(len(name))
      .normal(size=(spec.vocabulary_size, spec.embedding_dim))
      .astype(np.float32)
      for name, spec in embedding.get_table_specs(specs).items()
  }
  stacks = table_stacking.stack_and_shard_tables(
      embedding.get_table_specs(specs), tables, num_shards
  )
  variables = {}
  for name, stack in embedding.get_stacked_table_specs(specs).items():
    shape = (stack.stack_vocab_size, stack.stack_embedding_dim)
    initializers = stack.optimizer.slot_variables_initializers()
    slots = [
        put(initializer(jax.random.key(0), shape, jnp.float32))
        for initializer in initializers
    ]
    variables[name] = embedding.EmbeddingVariables(
        put(stacks[name].reshape((-1, shape[1]))), type(initializers)(*slots)
    )
  return variables, tables


def update(specs, mesh):
  """A function of gradients, inputs, variables and the step or None."""
  split, whole = P(mesh.axis_names[0]), P()
  return jax.shard_map(
      lambda gradients, inputs, variables, step: (
          embedding.tpu_sparse_dense_matmul_grad(
              gradients,
              inputs,
              variables,
              feature_specs=specs,
              sharding_strategy="MOD",
              step=step,
          )
      ),
      mesh=mesh,
      in_specs=(split, split, split, whole),
      out_specs=split,
      check_vma=False,
  )


def lookup_that_updates(specs, mesh):
  """A function whose gradient for the variables is the new variables."""
  axis = mesh.axis_names[0]

  @jax.custom_vjp
  def lookup(buffers, variables, step):
    del step
    return jax.shard_map(
        functools.partial(
            embedding.tpu_sparse_dense_matmul,
            global_device_count=mesh.shape[axis],
            feature_specs=specs,
            sharding_strategy="MOD",
        ),
        mesh=mesh,
        in_specs=(P(axis), P(axis)),
        out_specs=P(axis),
        check_vma=False,
    )(embedding.SparseDenseMatmulInput(*buffers), variables)

  def forward(buffers, variables, step):
    return lookup(buffers, variables, step), (buffers, variables, step)

  def backward(saved, gradients):
    buffers, variables, step = saved
    new = update(specs, mesh)(
        gradients, embedding.SparseDenseMatmulInput(*buffers), variables, step
    )
    new = jax.tree.unflatten(
        jax.tree.structure(variables), jax.tree.leaves(new)
    )
    return None, new, step + 1

  lookup.defvjp(forward, backward)
  return lookup
