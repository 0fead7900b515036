# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A Linen layer that looks embeddings up and trains their tables."""

from __future__ import annotations

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.flax import _bridge
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

Nested = embedding.Nested
EmbeddingLookupInput = embedding.PreprocessedInput

# The collection in which a model finds its tables.
EMBEDDING_COLLECTION = "embedding"


class SparseCoreEmbed(nn.Module):
  """Looks ids up; the backward pass updates the tables in place.

  Tables are not parameters: create_embedding_variables makes them, and they are
  passed to `model.apply` as the collection "embedding", whatever the place of
  the layer in the model. Differentiating the loss by the model's parameters
  also updates the tables; applying the model without differentiating only
  reads them.

      tables = SparseCoreEmbed.create_embedding_variables(feature_specs, key)
      params = model.init(key, ids)["params"]
      model.apply({"params": params, "embedding": tables}, ids)

  The layer owns one scalar parameter, "update_anchor". It is always zero and so
  is its gradient: it is what makes JAX run the layer's backward pass. Tables
  are not updated when the loss is not differentiated by it.
  """

  # The features to look up, any tree. Specs that are not prepared are prepared
  # by the layer, without stacking.
  feature_specs: Nested[embedding_spec.FeatureSpec]

  @nn.compact
  def __call__(
      self,
      inputs: EmbeddingLookupInput | Nested[jax.typing.ArrayLike],
      weights: Nested[jax.typing.ArrayLike] | None = None,
      *,
      step: jax.typing.ArrayLike | None = None,
  ) -> Nested[jax.Array]:
    """Looks up a batch.

    Args:
      inputs: what preprocess_sparse_dense_matmul_input returned, or the tree of
        `feature_specs` with integer arrays of raw ids, which are converted
        inside the program. A feature with output_shape (*lead, D) takes ids of
        shape `lead`, one per vector, or `(*lead, valency)`, pooled by the
        table's combiner.
      weights: with raw ids, a weight per id, or None for ones.
      step: the training step, from 0, for learning rates that are schedules
        and for the bias correction of Adam, which without it stays that of
        step 0.

    Returns:
      The tree of `feature_specs` with activations f32[*output_shape].

    Raises:
      ValueError: if inputs do not fit the specs, or the collection "embedding"
        is missing.
      NotImplementedError: on more than one device.
    """
    config = _lookup_config(flax.core.unfreeze(self.feature_specs))
    anchor = self.param("update_anchor", nn.initializers.zeros, (), jnp.float32)
    tables = self.scope.root.variables().get(EMBEDDING_COLLECTION)
    if tables is None:
      if self.is_initializing():
        return _zero_activations(config.feature_specs)
      raise ValueError(
          f"The model was applied without the collection"
          f" {EMBEDDING_COLLECTION!r}. Make its tables with"
          " SparseCoreEmbed.create_embedding_variables and pass"
          f" {{'params': ..., {EMBEDDING_COLLECTION!r}: tables}}."
      )
    if isinstance(inputs, embedding.PreprocessedInput):
      if weights is not None:
        raise ValueError(
            "weights go with raw ids. Preprocessed inputs contain theirs: pass"
            " them to preprocess_sparse_dense_matmul_input."
        )
    else:
      inputs = embedding.convert_ids(
          flax.core.unfreeze(inputs),
          weights,
          config.feature_specs,
          config.topology,
      )
    stacks = embedding.get_stacked_table_specs(config.feature_specs)
    missing = sorted(set(stacks) - set(tables))
    if missing:
      raise ValueError(
          f"The collection {EMBEDDING_COLLECTION!r} lacks the stacks {missing};"
          f" it has {sorted(tables)}. Make it with create_embedding_variables"
          " for the feature specs of this layer."
      )
    return _bridge.lookup_with_update(
        config,
        anchor,
        inputs,
        {name: tables[name] for name in stacks},
        step,
    )

  @staticmethod
  def create_embedding_variables(
      feature_specs: Nested[embedding_spec.FeatureSpec],
      rng: jax.Array,
  ) -> dict[str, embedding.EmbeddingVariables]:
    """Initializes the tables and slots that the layer reads and updates.

    Specs that are not prepared are prepared, in place and without stacking.
    Tables are laid out over the mesh of jax.set_mesh, or else over all devices.

    Args:
      feature_specs: the features, any tree.
      rng: a key.

    Returns:
      Stack name -> EmbeddingVariables whose leaves are jax.Ref of
      f32[stack_vocab_size, D].

    Raises:
      NotImplementedError: on more than one device.
    """
    specs = flax.core.unfreeze(feature_specs)
    config = _lookup_config(specs)
    mesh = _mesh()
    variables = embedding.init_embedding_variables(
        rng,
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec(mesh.axis_names, None)
        ),
        config.topology.num_sc_per_device,
        # A mesh that the user set may have some of the devices, in any order.
        bypass_mesh_check=True,
    )
    return jax.tree.map(jax.new_ref, variables)


def _lookup_config(
    feature_specs: Nested[embedding_spec.FeatureSpec],
) -> _bridge.LookupConfig:
  """Prepares the specs for this process's devices."""
  # get_mesh is not for traced code, get_abstract_mesh is.
  mesh = jax.sharding.get_abstract_mesh()
  num_devices = jax.device_count() if mesh.empty else mesh.size
  if num_devices != 1:
    raise NotImplementedError(
        f"SparseCoreEmbed runs on one device, and the mesh has {num_devices}."
        " Set a mesh of one device:"
        " jax.set_mesh(jax.sharding.Mesh(jax.devices()[:1], ('device',)))."
    )
  topology = layout.Topology(
      local_device_count=num_devices,
      global_device_count=num_devices,
      num_sc_per_device=hardware.num_sparsecores_per_device(),
  )
  embedding.prepare_feature_specs_for_training(
      feature_specs,
      topology.global_device_count,
      topology.num_sc_per_device,
  )
  return _bridge.LookupConfig(feature_specs=feature_specs, topology=topology)


def _mesh() -> jax.sharding.Mesh:
  """The mesh that the user set, or all devices on one axis."""
  mesh = jax.sharding.get_mesh()
  if mesh.empty:
    return jax.sharding.Mesh(jax.devices(), ("device",))
  return mesh


def _zero_activations(
    feature_specs: Nested[embedding_spec.FeatureSpec],
) -> Nested[jax.Array]:
  """What the layer returns while parameters are initialized: only shapes."""
  return jax.tree.map(
      lambda feature: jnp.zeros(feature.output_shape, jnp.float32),
      feature_specs,
  )
