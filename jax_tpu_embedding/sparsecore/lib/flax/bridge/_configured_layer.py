# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a layer's fields make of its specs and mesh, the same for both layers."""

from __future__ import annotations

from collections.abc import Collection
import math
import numbers
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _devices
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes
import numpy as np


def check_fields(tables: str, activation_dtype: jax.typing.DTypeLike) -> None:
  """Checks what a config does not have.

  Raises:
    ValueError: if `tables` is another word, or the type is not one of floats.
    TypeError: if it is no type.
  """
  if tables not in ("auto", "param", "ref"):
    raise ValueError(
        f"tables must be one of 'auto', 'param' and 'ref', got {tables!r}."
    )
  expected = "activation_dtype must be a type of floats, got"
  try:
    is_of_floats = jnp.issubdtype(activation_dtype, jnp.floating)
  except TypeError as error:
    raise TypeError(f"{expected} {activation_dtype!r}.") from error
  if not is_of_floats:
    # Gradients would not reach the tables.
    raise ValueError(f"{expected} {jnp.dtype(activation_dtype).name}.")


def check_numbers(step: Any | None, gradient_scale: Any | None) -> None:
  """Checks what a layer is called with beside its inputs.

  Of arrays of JAX, which programs would have to wait for, only shapes.
  Impossible numbers are NaN in the rows of the batch.

  Raises:
    ValueError: if they are not single numbers, the step is negative or more
      than int32 can hold, or the scale is zero, infinite or NaN.
    TypeError: if they are no numbers.
  """
  for name, number, is_possible, expected in (
      ("step", step, lambda x: 0 <= x < 2**31, "from 0 to 2^31 - 1"),
      (
          "gradient_scale",
          gradient_scale,
          lambda x: x != 0 and math.isfinite(x),
          "finite and not zero",
      ),
  ):
    if number is None:
      continue
    if isinstance(number, str):
      raise TypeError(f"{name} must be a number, got {number!r}.")
    if jnp.shape(number):
      raise ValueError(
          f"{name} must be one number, got shape {jnp.shape(number)}."
      )
    is_known = isinstance(number, numbers.Real | np.ndarray)
    if is_known and not is_possible(float(number)):
      raise ValueError(f"{name} must be {expected}, got {number!r}.")


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
