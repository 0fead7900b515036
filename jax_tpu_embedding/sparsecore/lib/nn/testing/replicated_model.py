# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Features over a small and a large table; the small one may be replicated.

Tests compare programs whose small table is replicated with those whose small
table is split over devices.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

P = jax.sharding.PartitionSpec
BATCH = 32
ROWS = 30  # of the small table
CLOSE = dict(rtol=1e-6, atol=1e-6)


def specs(placement: str, **of_table: Any) -> dict[str, Any]:
  """Two features over the table in question, and one over another one."""
  of_table = {
      "optimizer": embedding_spec.AdagradOptimizerSpec(0.1),
      "combiner": "sum",
  } | of_table
  small = embedding_spec.TableSpec(
      name="small",
      vocabulary_size=ROWS,
      embedding_dim=6,
      placement=placement,
      max_ids_per_partition=512,
      max_unique_ids_per_partition=512,
      **of_table,
  )
  large = embedding_spec.TableSpec(
      name="large",
      vocabulary_size=100,
      embedding_dim=6,
      optimizer=embedding_spec.SGDOptimizerSpec(0.1),
      max_ids_per_partition=512,
      max_unique_ids_per_partition=512,
  )

  def feature(name, table, valency, **policies):
    return embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(BATCH, valency),
        output_shape=(BATCH, 6),
        **policies,
    )

  return {
      "a": feature("a", small, 3),
      "b": feature("b", small, 1, out_of_range_ids="drop"),
      "c": feature("c", large, 2),
  }


def batch() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  return {
      # Rows 20 and later are in no sample.
      "a": rng.integers(20, size=(BATCH, 3), dtype=np.int32),
      "b": np.where(np.arange(BATCH) % 5, 7, -1).astype(np.int32)[:, None],
      "c": rng.integers(100, size=(BATCH, 2), dtype=np.int32),
  }


@dataclasses.dataclass(frozen=True)
class Model:
  """Prepared specs on some devices."""

  specs: dict[str, Any]
  num_devices: int
  num_sc: int = 1

  def __post_init__(self):
    embedding.prepare_feature_specs_for_training(
        self.specs, self.num_devices, self.num_sc
    )

  @property
  def mesh(self) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(jax.devices()[: self.num_devices], ("x",))

  @functools.cached_property
  def variables(self) -> dict[str, embedding.EmbeddingVariables]:
    return embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(self.specs),
        jax.sharding.NamedSharding(self.mesh, P("x", None)),
        self.num_sc,
    )

  def preprocess(self, ids, weights=None, **options):
    return embedding.preprocess_sparse_dense_matmul_input(
        ids,
        weights,
        self.specs,
        self.num_devices,
        self.num_devices,
        num_sc_per_device=self.num_sc,
        **options,
    )

  def partition(self) -> dict[str, P]:
    return {
        name: P() if stack.is_replicated else P("x", None)
        for name, stack in embedding.get_stacked_table_specs(self.specs).items()
    }

  def over_mesh(self, function, *, tables_out=False, check_vma=False):
    """`function` of a batch and tables, on each device."""
    of_tables = self.partition()
    return jax.jit(
        jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(P("x"), of_tables),
            out_specs=(P("x"), of_tables) if tables_out else P("x"),
            check_vma=check_vma,
        )
    )

  def step(self, inputs, variables, *, check_vma=False, **options):
    """Activations, and new variables for gradients that are their sines."""

    def step(inputs, variables):
      activations = embedding.tpu_sparse_dense_matmul(
          inputs, variables, self.specs
      )
      gradients = jax.tree.map(lambda x: jnp.sin(3 * x), activations)
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, self.specs, step=2, **options
      )

    return self.over_mesh(step, tables_out=True, check_vma=check_vma)(
        inputs, variables
    )

  def tables(self, variables) -> dict[str, Any]:
    """Table and slots of each table, without padding."""
    return jax.tree.map(
        np.asarray,
        table_stacking.unshard_and_unstack_tables(
            embedding.get_table_specs(self.specs),
            variables,
            self.num_devices * self.num_sc,
        ),
    )


def assert_close(test, a, b, **tolerance):
  test.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
    np.testing.assert_allclose(
        np.asarray(x, np.float32), np.asarray(y, np.float32), **tolerance
    )
