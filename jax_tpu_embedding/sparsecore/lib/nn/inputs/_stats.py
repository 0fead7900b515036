# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a batch needed of the buffers, and how specs learn from it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def _stat(suffix: str, kind: str = "stack", **kwargs) -> Any:
  # The suffix tells the statistics apart in files that store them flat, the
  # kind says whose names the dict has.
  return dataclasses.field(metadata={"suffix": suffix, "kind": kind}, **kwargs)


def _count(suffix: str, kind: str = "stack") -> Any:
  return _stat(suffix, kind, default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseDenseMatmulInputStats:
  """Statistics of one preprocessed batch, each a dict by name.

  They count what the batch needed, before anything was dropped: L local
  devices, N SparseCores in the job, S per device. Each is by stack name, and
  from `num_ids` on by feature name. Those from `entries` on are there if
  count_batch added them.

  Attributes:
    max_ids_per_partition: i32[L * N]: for each local device and target
      SparseCore, the largest number of entries that one SparseCore of the
      device sends.
    max_unique_ids_per_partition: i32[L * N]: the same for distinct rows.
    required_buffer_size_per_sc: i32[L * S]: cells that the entries of each
      SparseCore take.
    id_drop_counters: ids left out of the buffers, all local devices together:
      beyond a limit, or by a feature's policy; and entries beyond the end of a
      buffer, where equal ids of a sample count once.
    minibatch_alignment_per_sc: i32[L * S]: cells that the alignment of several
      minibatches takes on top of the required ones; zeros when the batch needed
      one. Not recorded without minibatching.
    entries: in the buffers of all local devices; equal ids of a sample are one.
    distinct_rows: that each SparseCore asks each other for, added up.
    dropped_by_limit: the dropped ids that no policy dropped.
    num_minibatches: passes that the batch takes.
    num_ids: of a feature, before anything was dropped.
    dropped_by_policy: ids left out, because of the id or of its weight.
    clamped: ids that the nearest id of the table took the place of.
    wrapped: ids that their remainder took the place of.
    bad_weights: weights that are not finite, of ids that were not left out.
  """

  max_ids_per_partition: dict[str, np.ndarray] = _stat("_max_ids")
  max_unique_ids_per_partition: dict[str, np.ndarray] = _stat("_max_unique_ids")
  required_buffer_size_per_sc: dict[str, np.ndarray] = _stat(
      "_required_buffer_size", default_factory=dict
  )
  id_drop_counters: dict[str, int] = _stat(
      "_id_drop_counters", default_factory=dict
  )
  # Behind the four that programs for the reference pass by position.
  minibatch_alignment_per_sc: dict[str, np.ndarray] = _stat(
      "_minibatch_alignment", default_factory=dict
  )
  entries: dict[str, int] = _count("_entries")
  distinct_rows: dict[str, int] = _count("_distinct_rows")
  dropped_by_limit: dict[str, int] = _count("_dropped_by_limit")
  num_minibatches: dict[str, int] = _count("_num_minibatches")
  num_ids: dict[str, int] = _count("_num_ids", "feature")
  dropped_by_policy: dict[str, int] = _count("_dropped_by_policy", "feature")
  clamped: dict[str, int] = _count("_clamped", "feature")
  wrapped: dict[str, int] = _count("_wrapped", "feature")
  bad_weights: dict[str, int] = _count("_bad_weights", "feature")

  @classmethod
  def from_cc(cls, stats: Any) -> SparseDenseMatmulInputStats:
    """Takes over the statistics of the native converter, dicts included."""
    new = object.__new__(cls)
    # For every batch: __init__ of a frozen class sets one field after another.
    new.__dict__.update(
        max_ids_per_partition=stats.max_ids_per_partition,
        max_unique_ids_per_partition=stats.max_unique_ids_per_partition,
        required_buffer_size_per_sc=stats.required_buffer_sizes,
        id_drop_counters=stats.dropped_id_count,
        # A later member, which other converters do not have.
        minibatch_alignment_per_sc=getattr(stats, "minibatch_alignment", {}),
        entries={},
        distinct_rows={},
        dropped_by_limit={},
        num_minibatches={},
        num_ids={},
        dropped_by_policy={},
        clamped={},
        wrapped={},
        bad_weights={},
    )
    return new

  def replace(self, **changes: Any) -> SparseDenseMatmulInputStats:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)

  def to_scalars(self, prefix: str = "embedding/") -> dict[str, float]:
    """The statistics as named numbers, for TensorBoard and its like.

    Of arrays the largest number.

    Args:
      prefix: of all names.

    Returns:
      prefix + "stack/<stack>/<field>" or "feature/<feature>/<field>" -> it.
    """
    return {
        f"{prefix}{field.metadata['kind']}/{name}/{field.name}": float(
            np.max(value)
        )
        for field in dataclasses.fields(self)
        for name, value in getattr(self, field.name).items()
    }

  def get_required_buffer_size_per_device(
      self, table_name: str, num_sc_per_device: int | None = None
  ) -> int | None:
    """Cells that a device needs for a stack, or None if it is not recorded.

    The alignment of minibatches is included.

    Args:
      table_name: the stack's name.
      num_sc_per_device: the number of SparseCores to provide for; default: as
        many as were recorded.
    """
    if table_name not in self.required_buffer_size_per_sc:
      return None
    per_sc = np.asarray(self.required_buffer_size_per_sc[table_name])
    aligned = per_sc + self.minibatch_alignment_per_sc.get(table_name, 0)
    # A record of several batches has a row for each.
    recorded = np.atleast_1d(per_sc).shape[-1]
    return int(np.max(aligned) * (num_sc_per_device or recorded))

  def set_required_buffer_size_per_device(
      self,
      table_name: str,
      required_buffer_size_per_device: int,
      num_sc_per_device: int | None = None,
  ) -> None:
    """Records what a device needs for a stack. Changes the dict in place.

    Args:
      table_name: the stack's name.
      required_buffer_size_per_device: cells, split evenly over SparseCores.
      num_sc_per_device: SparseCores per device; default: as many as are
        recorded for the stack now.

    Raises:
      ValueError: if the number of SparseCores is neither given nor recorded.
    """
    if num_sc_per_device is None:
      if table_name not in self.required_buffer_size_per_sc:
        raise ValueError(
            "num_sc_per_device must be provided if the table is not present."
            f" No required buffer size is recorded for {table_name!r}."
        )
      num_sc_per_device = np.size(self.required_buffer_size_per_sc[table_name])
    self.required_buffer_size_per_sc[table_name] = np.full(
        num_sc_per_device, required_buffer_size_per_device / num_sc_per_device
    )
    self.minibatch_alignment_per_sc.pop(table_name, None)


def update_preprocessing_parameters(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    updated_params: SparseDenseMatmulInputStats,
    num_sc_per_device: int,
    *,
    headroom: float = 1.0,
    keep_larger: bool = False,
) -> None:
  """Sets the limits and buffer sizes of stacks to what statistics say.

  A stack, or a statistic, that `updated_params` does not mention keeps its
  value.

  Args:
    feature_specs: prepared specs; the stacked_table_spec of each feature's
      table is replaced.
    updated_params: the statistics. Values may be scalars or arrays.
    num_sc_per_device: SparseCores per device.
    headroom: limits are this many times what the statistics say, rounded up.
      Batches to come need a little more than those that were seen: with 1.0,
      some do not fit.
    keep_larger: leave numbers that are larger already, so that statistics of a
      few batches do not take back those of many.

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if headroom is no number of at least 1.
  """
  if not 1 <= headroom < math.inf:
    raise ValueError(
        f"headroom must be a number of at least 1, got {headroom!r}."
    )
  for feature in _tables.features_of(feature_specs):
    stack = feature.table_spec.stacked_table_spec
    name = stack.stack_name
    changes = {}
    for field in ("max_ids_per_partition", "max_unique_ids_per_partition"):
      observed = getattr(updated_params, field)
      if name in observed:
        changes[field] = int(np.max(observed[name]))
    required = updated_params.get_required_buffer_size_per_device(
        name, num_sc_per_device
    )
    if required is not None:
      changes["suggested_coo_buffer_size_per_device"] = required
    for field, needed in changes.items():
      # Where no batch had an id, buffers are as small as can be.
      value = max(math.ceil(headroom * needed), 1)
      if field == "suggested_coo_buffer_size_per_device":
        # Preprocessing refuses more cells than partitions can fill.
        most_ids = changes.get(
            "max_ids_per_partition", stack.max_ids_per_partition
        )
        most = _most_cells(most_ids, feature, updated_params, num_sc_per_device)
        value = min(value, max(needed, most))
      if keep_larger:
        value = max(value, getattr(stack, field) or 0)
      changes[field] = value
    feature.table_spec.stacked_table_spec = dataclasses.replace(
        stack, **changes
    )


def _most_cells(
    max_ids: int,
    feature: _tables.FeatureSpec,
    stats: SparseDenseMatmulInputStats,
    num_sc_per_device: int,
) -> float:
  """Cells of a device that partitions of so many ids can fill."""
  setting = feature.table_spec.setting_in_stack
  if setting.num_shards is None:
    return math.inf
  has_passes = setting.stack_name in stats.minibatch_alignment_per_sc
  passes = constants.MAX_MINIBATCHES if has_passes else 1
  cells_per_partition = layout.round_up(max_ids, constants.ALIGNMENT) * passes
  return cells_per_partition * setting.num_shards * num_sc_per_device
