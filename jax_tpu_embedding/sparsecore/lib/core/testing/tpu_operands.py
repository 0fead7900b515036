# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Operands of lookup and update by shape, for tests that compile for TPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules

LIMITS = dict(max_ids_per_partition=16, max_unique_ids_per_partition=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Sizes of one device's operands that fit each other."""

  num_devices: int = 1
  num_sc_per_device: int = 4
  num_rows: int = 64
  embedding_dim: int | None = 16  # None: a table without columns
  num_cells: int = 256
  batch_size: int = 32
  enable_minibatching: bool = False
  num_row_pointers: int | None = None  # None: those of the topology
  table_dtype: Any = jnp.float32

  @property
  def table(self) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        (self.num_rows, *self._columns), self.table_dtype
    )

  @property
  def gradient(self) -> jax.ShapeDtypeStruct:
    return _f32(self.batch_size, *self._columns)

  @property
  def _columns(self) -> tuple[int, ...]:
    return () if self.embedding_dim is None else (self.embedding_dim,)

  def coo(self) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Row pointers, embedding ids, sample ids, gains, number of minibatches."""
    topology = layout.Topology(
        local_device_count=1,
        global_device_count=self.num_devices,
        num_sc_per_device=self.num_sc_per_device,
    )
    num_row_pointers = self.num_row_pointers
    if num_row_pointers is None:
      num_row_pointers = layout.row_pointers_per_device(
          topology, self.enable_minibatching
      )
    return (
        _i32(num_row_pointers),
        _i32(self.num_cells),
        _i32(self.num_cells),
        _f32(self.num_cells),
        _i32(),
    )

  def slots(
      self, rule: update_rules.UpdateRule
  ) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The slots of a rule."""
    return tuple(
        _f32(*rule.slot_shape(name, self.table.shape)) for name in rule.slots
    )


def hyperparameters(
    rule: update_rules.UpdateRule,
) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Those of a rule."""
  return tuple(
      jax.ShapeDtypeStruct(
          (), jnp.bool_ if name in rule.bool_hyperparameters else jnp.float32
      )
      for name in rule.hyperparameters
  )


def static_params(rule: update_rules.UpdateRule) -> dict[str, Any]:
  """Values for those of a rule, for tables of 12 columns and more."""
  values = dict(multiply_linear_by_learning_rate=True, embedding_dim=12)
  return {name: values[name] for name in rule.static_params}


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.int32)
