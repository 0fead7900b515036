# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a layer's fields make of its specs and mesh, the same for both layers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import flax
import jax
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _devices
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes


class ConfiguredLayer:
  """A base of the layers, which have these fields; they say what each is."""

  feature_specs: embedding.Nested[embedding_spec.FeatureSpec]
  sharding_axis: str | tuple[str, ...]
  mesh: jax.sharding.Mesh | None
  table_sharding_strategy: str
  enable_minibatching: bool
  num_sc_per_device: int
  feature_stacking_strategy: str
  frozen: Collection[str]

  @property
  def embedding_table_partition(self) -> jax.sharding.PartitionSpec:
    """How tables and slots are split: by rows."""
    return self._config().table_partition

  @property
  def data_partition(self) -> jax.sharding.PartitionSpec:
    """How inputs and activations are split: on their first axis."""
    return self._config().data_partition

  @property
  def num_shards(self) -> int:
    """Devices that share the tables."""
    return self._config().num_shards

  @property
  def lookup_config(self) -> _lookup_config.LookupConfig:
    """Specs, mesh and settings, resolved, for who preprocesses for the layer.

    Raises:
      ValueError: if a feature lacks a size.
    """
    _partial_shapes.check_known(self.feature_specs)
    return self._config()

  def _config(self, ids: Any | None = None) -> _lookup_config.LookupConfig:
    """What a lookup needs besides arrays; for raw ids, of their sizes."""
    return _devices.lookup_config(
        # Linen freezes the dicts among its fields.
        flax.core.unfreeze(self.feature_specs),
        self.mesh,
        self.sharding_axis,
        self.num_sc_per_device,
        ids,
        table_sharding_strategy=self.table_sharding_strategy,
        enable_minibatching=self.enable_minibatching,
        feature_stacking_strategy=self.feature_stacking_strategy,
        frozen=self.frozen,
    )
