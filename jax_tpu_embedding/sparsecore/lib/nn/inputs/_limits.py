# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits of all stacks as a value: what buffers have room for, or need."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import dataclasses
import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

# What padding cells hold, see cc/layout/constants.h.
_PADDING_ID = np.iinfo(np.int32).max
_PADDING_GAIN = np.nan


@dataclasses.dataclass(frozen=True)
class StackLimits:
  """What the buffers of a stack have room for, or what a batch needs of them.

  Attributes:
    max_ids_per_partition: entries that a SparseCore sends to another.
    max_unique_ids_per_partition: distinct rows among them.
    coo_cells_per_sc: cells of the buffer of a SparseCore.
  """

  max_ids_per_partition: int
  max_unique_ids_per_partition: int
  coo_cells_per_sc: int

  def __post_init__(self):
    for name, value in vars(self).items():
      if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")

  def covers(self, other: StackLimits) -> bool:
    return (
        self.max_ids_per_partition >= other.max_ids_per_partition
        and self.max_unique_ids_per_partition
        >= other.max_unique_ids_per_partition
        and self.coo_cells_per_sc >= other.coo_cells_per_sc
    )

  def union(self, other: StackLimits) -> StackLimits:
    """The least that covers both."""
    if self.covers(other):  # as nearly always, for every batch
      return self
    return StackLimits(
        *map(max, dataclasses.astuple(self), dataclasses.astuple(other))
    )


# Held while the tables of stacks get other limits.
_CHANGES = threading.Lock()
_num_changes = 0

NUMBERS = tuple(field.name for field in dataclasses.fields(StackLimits))


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits of all stacks of a model. Hashable.

  Attributes:
    stacks: stack name and limits of every stack.
    enable_minibatching: whether batches beyond them take several passes.
  """

  stacks: tuple[tuple[str, StackLimits], ...]
  enable_minibatching: bool = False

  def __getitem__(self, stack_name: str) -> StackLimits:
    return dict(self.stacks)[stack_name]

  @classmethod
  def least(
      cls, stack_names: Iterable[str], enable_minibatching: bool = False
  ) -> Limits:
    """Enough to count what a batch needs."""
    least = StackLimits(1, 1, constants.ALIGNMENT)
    return cls(
        tuple((name, least) for name in stack_names), enable_minibatching
    )

  @classmethod
  def of(
      cls,
      feature_specs: Any,
      global_device_count: int,
      num_sc_per_device: int | None = None,
      *,
      enable_minibatching: bool = False,
  ) -> Limits:
    """Those that prepared specs have now.

    Raises:
      ValueError: if specs are not prepared or have no valid limits.
    """
    num_sc_per_device = hardware.resolve_num_sc_per_device(num_sc_per_device)
    cells = _prepared.compute_coo_buffer_size_per_device(
        feature_specs,
        global_device_count,
        num_sc_per_device,
        enable_minibatching,
    )
    return cls(
        tuple(
            (
                name,
                StackLimits(
                    stack.max_ids_per_partition,
                    stack.max_unique_ids_per_partition,
                    cells[name] // num_sc_per_device,
                ),
            )
            for name, stack in _prepared.get_split_stacks(feature_specs).items()
        ),
        enable_minibatching,
    )

  def covers(self, stats: _stats.SparseDenseMatmulInputStats | Limits) -> bool:
    """Whether a batch with these statistics, or these needs, fits in one pass.

    Raises:
      KeyError: if there is a stack that has no limits here.
    """
    needs = stats if isinstance(stats, Limits) else needs_of(stats)
    limits = dict(self.stacks)
    for name, need in needs.stacks:  # for every batch: no generator
      if not limits[name].covers(need):
        return False
    return True

  def union(self, other: Limits) -> Limits:
    """The least that covers both, which have the same stacks."""
    others = dict(other.stacks)
    return dataclasses.replace(
        self,
        stacks=tuple(
            (name, limits.union(others[name])) for name, limits in self.stacks
        ),
    )

  def intersection(self, other: Limits) -> Limits:
    """The lower of each two numbers, of the same stacks."""
    others = dict(other.stacks)
    return dataclasses.replace(
        self,
        stacks=tuple(
            (
                name,
                StackLimits(
                    *map(
                        min,
                        dataclasses.astuple(limits),
                        dataclasses.astuple(others[name]),
                    )
                ),
            )
            for name, limits in self.stacks
        ),
    )

  def on_copies(self, feature_specs: Any, num_sc_per_device: int) -> Any:
    """Copies of the specs that have these limits."""
    features = _tables.features_of(feature_specs)
    tables = {}
    copies = []
    for feature in features:
      table = feature.table_spec
      if table.name not in tables:
        tables[table.name] = copy.copy(table)
      feature = copy.copy(feature)
      feature.table_spec = tables[table.name]
      copies.append(feature)
    _set_stacks(copies, self._stacks_of(copies, num_sc_per_device))
    return jax.tree.unflatten(jax.tree.structure(feature_specs), copies)

  def set_on(self, feature_specs: Any, num_sc_per_device: int) -> None:
    """Gives these limits to the specs, in place: to all of them, or none."""
    global _num_changes
    stacks = self._stacks_of(feature_specs, num_sc_per_device)
    with _CHANGES:
      _set_stacks(feature_specs, stacks)
      _num_changes += 1

  def _stacks_of(
      self, feature_specs: Any, num_sc_per_device: int
  ) -> dict[str, _tables.StackedTableSpec]:
    """The stacks of the specs with these limits, by name."""
    limits = dict(self.stacks)
    stacks = {}  # tables of a stack share one object
    for feature in _prepared.split_features(feature_specs):
      stack = feature.table_spec.stacked_table_spec
      name = stack.stack_name
      if name not in limits:
        raise ValueError(
            f"The limits have no stack {name!r} of feature {feature.name!r},"
            f" but {sorted(limits)}. Make them for these feature specs."
        )
      if name not in stacks:
        of_stack = limits[name]
        stacks[name] = stack.replace(
            max_ids_per_partition=of_stack.max_ids_per_partition,
            max_unique_ids_per_partition=of_stack.max_unique_ids_per_partition,
            suggested_coo_buffer_size_per_device=(
                of_stack.coo_cells_per_sc * num_sc_per_device
            ),
        )
    return stacks


def _set_stacks(
    feature_specs: Any, stacks: Mapping[str, _tables.StackedTableSpec]
) -> None:
  for feature in _prepared.split_features(feature_specs):
    table = feature.table_spec
    table.stacked_table_spec = stacks[table.stacked_table_spec.stack_name]


def needs_of(stats: _stats.SparseDenseMatmulInputStats) -> Limits:
  """What a batch with these statistics needs, in one pass."""
  stacks = []
  for name, ids in stats.max_ids_per_partition.items():
    cells = stats.required_buffer_size_per_sc[name]
    alignment = stats.minibatch_alignment_per_sc.get(name)
    if alignment is not None:
      cells = np.asarray(cells) + alignment
    stacks.append(
        (
            name,
            StackLimits(
                _largest(ids),
                _largest(stats.max_unique_ids_per_partition[name]),
                _largest(cells),
            ),
        )
    )
  return Limits(tuple(stacks))


def cover_partitions(limits: Limits, needs: Limits) -> bool:
  """Whether partitions have room for a batch, whatever buffers have room for."""
  of_stack = dict(limits.stacks)
  return all(
      of_stack[name].max_ids_per_partition >= need.max_ids_per_partition
      and of_stack[name].max_unique_ids_per_partition
      >= need.max_unique_ids_per_partition
      for name, need in needs.stacks
  )


def _largest(values: np.ndarray | Sequence[int] | int) -> int:
  """The largest, and at least 1."""
  values = np.asarray(values)
  # Of one number, as on one SparseCore, a reduction takes most of the time.
  return max(values.item() if values.size == 1 else int(values.max()), 1)


def num_changes() -> int:
  """How often limits of specs were changed in place, in this program.

  A batch that was converted while the number changed may have read some tables
  of a stack before, and some after: convert it again.
  """
  with _CHANGES:
    return _num_changes


def of_buffers(inputs: _buffers.PreprocessedInput) -> Limits:
  """Those that buffers were made for; they must have settings.

  Args:
    inputs: NumPy arrays of this process, global JAX arrays, or their shapes.
  """
  settings = inputs.settings
  num_row_pointers = layout.row_pointers_per_device(
      settings.topology, settings.enable_minibatching
  )
  stacks = []
  for name, limits in settings.limits:
    num_devices = inputs.lhs_row_pointers[name].size // num_row_pointers
    num_scs = num_devices * settings.num_sc_per_device
    cells = inputs.lhs_gains[name].size // num_scs
    stacks.append((name, StackLimits(*limits, coo_cells_per_sc=cells)))
  return Limits(tuple(stacks), settings.enable_minibatching)


def pad(
    inputs: _buffers.PreprocessedInput, limits: Limits
) -> _buffers.PreprocessedInput:
  """Buffers of smaller limits as preprocessing with larger ones makes them.

  Byte for byte, if the batch takes one pass. One of several passes keeps them.

  Args:
    inputs: NumPy arrays of this process or global JAX arrays.
    limits: at least those that the inputs were made for.

  Raises:
    ValueError: if the inputs have no settings, other stacks, another layout,
      or more room than the limits.
  """
  settings = inputs.settings
  if settings is None:
    raise ValueError(
        "The inputs do not say what they were made for: their settings are"
        " None. Preprocess the batch again."
    )
  new = dict(limits.stacks)
  old = dict(settings.limits)
  if set(new) != set(old):
    raise ValueError(
        f"The inputs have the stacks {sorted(old)}, and the limits are of"
        f" {sorted(new)}."
    )
  if settings.enable_minibatching != limits.enable_minibatching:
    raise ValueError(
        f"The inputs have enable_minibatching={settings.enable_minibatching},"
        f" and the limits {limits.enable_minibatching}. Preprocess again."
    )
  num_row_pointers = layout.row_pointers_per_device(
      settings.topology, settings.enable_minibatching
  )
  arrays = inputs.sparse_dense_matmul_input
  cells = {}
  for name, have in of_buffers(inputs).stacks:
    num_devices = arrays.lhs_row_pointers[name].size // num_row_pointers
    num_regions = num_devices * settings.num_sc_per_device
    if not new[name].covers(have):
      raise ValueError(
          f"Stack {name!r}: the inputs were made for {have}, more than"
          f" {new[name]}. Limits of a run only grow: pad with the later ones."
      )
    if settings.enable_minibatching:  # SparseCores share a device's cells
      cells[name] = (
          num_devices,
          new[name].coo_cells_per_sc * settings.num_sc_per_device,
      )
    else:
      cells[name] = num_regions, new[name].coo_cells_per_sc
  return inputs.replace(
      sparse_dense_matmul_input=_buffers.SparseDenseMatmulInput(
          arrays.lhs_row_pointers,
          _pad_all(arrays.lhs_embedding_ids, cells, _PADDING_ID),
          _pad_all(arrays.lhs_sample_ids, cells, _PADDING_ID),
          _pad_all(arrays.lhs_gains, cells, _PADDING_GAIN),
      ),
      settings=dataclasses.replace(
          settings,
          limits=tuple(
              (
                  name,
                  layout.PartitionLimits(
                      new[name].max_ids_per_partition,
                      new[name].max_unique_ids_per_partition,
                  ),
              )
              for name, _ in settings.limits
          ),
      ),
  )


def _pad_all(by_name, cells, value):
  padded = {}
  for name, x in by_name.items():
    num_regions, size = cells[name]
    if x.size == num_regions * size:
      padded[name] = x
    elif isinstance(x, jax.Array):
      padded[name] = _pad_on_devices(x.sharding)(x, num_regions, size, value)
    else:
      padded[name] = _pad_regions(np, x, num_regions, size, value)
  return padded


def _pad_regions(xp, x, num_regions, size, value):
  regions = x.reshape(num_regions, -1)
  regions = xp.pad(
      regions,
      ((0, 0), (0, size - regions.shape[1])),
      constant_values=x.dtype.type(value),
  )
  return regions.reshape(x.shape[0], -1) if x.ndim > 1 else regions.reshape(-1)


@functools.cache
def _pad_on_devices(sharding):
  return jax.jit(
      functools.partial(_pad_regions, jnp),
      static_argnums=(1, 2, 3),
      out_shardings=sharding,
  )
