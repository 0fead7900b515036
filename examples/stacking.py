# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Two tables, three features: stack, preprocess, look up and update under shard_map."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

BATCH = 16


def table(name, vocabulary_size, dim):
  return embedding_spec.TableSpec(
      vocabulary_size=vocabulary_size,
      embedding_dim=dim,
      initializer=lambda: jnp.ones((vocabulary_size, dim), jnp.float32),
      optimizer=embedding_spec.SGDOptimizerSpec(),
      combiner="sum",
      name=name,
  )


def feature(name, table_spec):
  return embedding_spec.FeatureSpec(
      table_spec=table_spec,
      input_shape=(BATCH, 1),
      output_shape=(BATCH, table_spec.embedding_dim),
      name=name,
  )


users, items = table("users", 64, 12), table("items", 120, 10)
specs = [
    feature("user", users),
    feature("item", items),
    feature("last_item", items),
]

devices = jax.devices()
topology = dict(global_device_count=len(devices), num_sc_per_device=4)
# What one SparseCore may send to another, for all tables of a stack.
limit = lambda stack_name, batch_size: 16
embedding.auto_stack_tables(
    specs,
    stack_to_max_ids_per_partition=limit,
    stack_to_max_unique_ids_per_partition=limit,
    **topology,
)
embedding.prepare_feature_specs_for_training(specs, **topology)

rng = np.random.default_rng(0)
ids = [
    rng.integers(0, s.table_spec.vocabulary_size, (BATCH, 1), dtype=np.int32)
    for s in specs
]
inputs, stats = embedding.preprocess_sparse_dense_matmul_input(
    ids, None, specs, local_device_count=len(devices), **topology
)

mesh = Mesh(np.array(devices), ("x",))
tables = embedding.init_embedding_variables(
    jax.random.key(0),
    embedding.get_table_specs(specs),
    NamedSharding(mesh, P("x", None)),
    num_sparsecore_per_device=topology["num_sc_per_device"],
)


def step(inputs, tables):
  activations = embedding.tpu_sparse_dense_matmul(
      inputs,
      tables,
      feature_specs=specs,
      global_device_count=len(devices),
      sharding_strategy="MOD",
  )
  gradients = [jnp.ones_like(a) for a in activations]
  return activations, embedding.tpu_sparse_dense_matmul_grad(
      gradients, inputs, tables, feature_specs=specs, sharding_strategy="MOD"
  )


step = jax.jit(
    jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P("x"), P("x", None)),
        out_specs=(P("x"), P("x", None)),
        check_vma=False,
    ),
    donate_argnums=1,
)
activations, tables = step(inputs, tables)
for spec, activation in zip(specs, activations):
  assert activation.shape == (BATCH, spec.table_spec.embedding_dim)
  np.testing.assert_allclose(activation, 1.0)
activations, tables = step(inputs, tables)
assert all(
    float(a.max()) < 1.0 for a in activations
), "the update lowered every row that was looked up"
print(
    {k: v.table.shape for k, v in tables.items()},
    {k: v.tolist() for k, v in stats.max_ids_per_partition.items()},
)
