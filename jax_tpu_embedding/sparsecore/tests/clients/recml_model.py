# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An embedding engine with the calls of RecML, written for these tests.

RecML is not on PyPI, so this stands for it: each call has the form in which
RecML makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools

import jax
from jax.experimental import shard_map
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np

P = jax.sharding.PartitionSpec


def make_mesh(num_devices: int) -> jax.sharding.Mesh:
  """Some of the devices, in one row."""
  return jax.make_mesh(
      (num_devices,),
      ("data",),
      axis_types=(jax.sharding.AxisType.Auto,),
      devices=jax.devices()[:num_devices],
  )


@dataclasses.dataclass
class Feature:
  """A feature with a table of its own."""

  vocabulary_size: int
  embedding_dim: int = 8
  length: int = 1  # ids per sample; of a sequence, positions
  combiner: str = "sum"  # "none": a sequence, of one vector per position


@dataclasses.dataclass
class Engine:
  """Stacks the tables of features, and looks up and updates them."""

  features: Mapping[str, Feature]
  batch_size: int
  mesh: jax.sharding.Mesh
  learning_rate: float = 0.1
  num_sc_per_device: int = dataclasses.field(
      default_factory=utils.num_sparsecores_per_device
  )

  def __post_init__(self):
    optimizer = embedding_spec.AdagradOptimizerSpec(
        learning_rate=self.learning_rate
    )
    self.feature_specs = {}
    for name, feature in self.features.items():
      is_sequence = feature.combiner == "none"
      samples = self.batch_size * (feature.length if is_sequence else 1)
      self.feature_specs[name] = embedding_spec.FeatureSpec(
          name=name,
          table_spec=embedding_spec.TableSpec(
              name=f"{name}_table",
              vocabulary_size=feature.vocabulary_size,
              embedding_dim=feature.embedding_dim,
              initializer=jax.nn.initializers.normal(1.0),
              optimizer=optimizer,
              combiner="sum" if is_sequence else feature.combiner,
          ),
          input_shape=(samples, 1 if is_sequence else feature.length),
          output_shape=(samples, feature.embedding_dim),
      )
    limit = lambda stack_name, batch_size: 2 * batch_size
    embedding.auto_stack_tables(
        self.feature_specs,
        self.mesh.size,
        self.num_sc_per_device,
        stack_to_max_ids_per_partition=limit,
        stack_to_max_unique_ids_per_partition=limit,
    )
    embedding.prepare_feature_specs_for_training(
        self.feature_specs, self.mesh.size, self.num_sc_per_device
    )
    self.lookup = self._differentiable_lookup()

  @property
  def sharding(self) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(self.mesh, P(self.mesh.axis_names[0]))

  @property
  def table_sharding(self) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(
        self.mesh, P(self.mesh.axis_names[0], None)
    )

  @property
  def num_sparsecores(self) -> int:
    return self.mesh.size * self.num_sc_per_device

  def init(self, rng: jax.Array) -> Mapping[str, embedding.EmbeddingVariables]:
    return embedding.init_embedding_variables(
        rng,
        table_specs=embedding.get_table_specs(self.feature_specs),
        global_sharding=self.table_sharding,
        num_sparsecore_per_device=self.num_sc_per_device,
        # The mesh of a test may have some of the devices.
        bypass_mesh_check=True,
    )

  def preprocess(
      self,
      inputs: Mapping[str, np.ndarray],
      weights: Mapping[str, np.ndarray] | None = None,
      batch_number: int = 0,
  ) -> embedding.PreprocessedInput:
    """Ids [batch_size, length] of any integer type."""
    features, feature_weights = {}, {}
    for name, spec in self.feature_specs.items():
      features[name] = inputs[name].reshape(spec.input_shape)
      given = (weights or {}).get(name, np.ones_like(inputs[name]))
      feature_weights[name] = given.reshape(spec.input_shape)
    processed, _ = embedding.preprocess_sparse_dense_matmul_input(
        features=features,
        features_weights=feature_weights,
        feature_specs=self.feature_specs,
        local_device_count=self.mesh.local_mesh.size,
        global_device_count=self.mesh.size,
        num_sc_per_device=self.num_sc_per_device,
        sharding_strategy="MOD",
        allow_id_dropping=False,
        batch_number=batch_number,
    )
    return processed

  def proto(self):
    return embedding.create_proto_from_feature_specs(
        feature_specs=self.feature_specs,
        global_device_count=self.mesh.size,
        num_sparsecore_per_device=self.num_sc_per_device,
    )

  def _differentiable_lookup(self):
    """(processed, variables) -> activations; gradient: the new variables."""
    split, tables = self.sharding.spec, self.table_sharding.spec
    map_over = functools.partial(
        shard_map.shard_map, mesh=self.mesh, check_rep=False
    )

    @jax.custom_vjp
    def lookup(processed, variables):
      return map_over(
          functools.partial(
              embedding.tpu_sparse_dense_matmul,
              global_device_count=self.mesh.size,
              feature_specs=self.feature_specs,
              sharding_strategy="MOD",
          ),
          in_specs=(split, tables),
          out_specs=split,
      )(processed, variables)

    def forward(processed, variables):
      return lookup(processed, variables), (processed, variables)

    def backward(saved, gradients):
      new = map_over(
          functools.partial(
              embedding.tpu_sparse_dense_matmul_grad,
              feature_specs=self.feature_specs,
              sharding_strategy="MOD",
          ),
          in_specs=(split, split, tables),
          out_specs=tables,
      )(gradients, *saved)
      return None, new

    lookup.defvjp(forward, backward)
    return lookup
