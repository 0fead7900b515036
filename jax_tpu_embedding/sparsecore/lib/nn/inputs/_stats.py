# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a batch needed of the buffers, and how specs learn from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _counts
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def _stat(suffix: str, **kwargs) -> Any:
  # The suffix tells the statistics apart in files that store them flat.
  return dataclasses.field(metadata={"suffix": suffix}, **kwargs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseDenseMatmulInputStats:
  """Statistics of one preprocessed batch, each a dict by stack name.

  They count what the batch needed, before anything was dropped: L local
  devices, N SparseCores in the job, S per device. Each is by stack name.

  Attributes:
    max_ids_per_partition: i32[L * N]: for each local device and target
      SparseCore, the largest number of entries that one SparseCore of the
      device sends.
    max_unique_ids_per_partition: i32[L * N]: the same for distinct rows.
    required_buffer_size_per_sc: i32[L * S]: cells that the entries of each
      SparseCore take.
    minibatch_alignment_per_sc: i32[L * S]: cells that the alignment of several
      minibatches takes on top of that; zeros when the batch needed one. Not
      recorded without minibatching.
    id_drop_counters: ids left out of the buffers, all local devices together:
      beyond a limit or the end of a buffer, or by a feature's policy.
    counts: what the batch was, of features too; None unless it was counted.
  """

  max_ids_per_partition: dict[str, np.ndarray] = _stat("_max_ids")
  max_unique_ids_per_partition: dict[str, np.ndarray] = _stat("_max_unique_ids")
  required_buffer_size_per_sc: dict[str, np.ndarray] = _stat(
      "_required_buffer_size", default_factory=dict
  )
  minibatch_alignment_per_sc: dict[str, np.ndarray] = _stat(
      "_minibatch_alignment", default_factory=dict
  )
  id_drop_counters: dict[str, int] = _stat(
      "_id_drop_counters", default_factory=dict
  )
  counts: _counts.BatchCounts | None = None

  @classmethod
  def from_cc(cls, stats: Any) -> SparseDenseMatmulInputStats:
    """Takes over the statistics of the native converter, dicts included."""
    return cls(
        stats.max_ids_per_partition,
        stats.max_unique_ids_per_partition,
        stats.required_buffer_sizes,
        # A later member, which other converters do not have.
        getattr(stats, "minibatch_alignment", {}),
        stats.dropped_id_count,
    )

  def replace(self, **changes: Any) -> SparseDenseMatmulInputStats:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)

  def to_scalars(self, prefix: str = "embedding/") -> dict[str, float]:
    """The statistics as named numbers, for TensorBoard and its like.

    Of arrays the largest number. The counts, if there are any, as they are.

    Args:
      prefix: of all names.

    Returns:
      prefix + "stack/<stack>/<number>" or "feature/<feature>/<number>" -> it.
    """
    scalars = {
        f"{prefix}stack/{name}/{number}": float(np.max(value))
        for number, by_stack in (
            ("max_ids_per_partition", self.max_ids_per_partition),
            ("max_unique_ids_per_partition", self.max_unique_ids_per_partition),
            ("coo_cells_per_sc", self.required_buffer_size_per_sc),
            ("dropped_ids", self.id_drop_counters),
        )
        for name, value in by_stack.items()
    }
    if self.counts is not None:
      for kind, by_name in (
          ("feature", self.counts.features),
          ("stack", self.counts.stacks),
      ):
        for name, counts in by_name.items():
          for number, value in dataclasses.asdict(counts).items():
            scalars[f"{prefix}{kind}/{name}/{number}"] = float(value)
    return scalars

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
    return int(np.max(aligned) * (num_sc_per_device or per_sc.size))

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
) -> None:
  """Sets the limits and buffer sizes of stacks to what statistics say.

  A stack, or a statistic, that `updated_params` does not mention keeps its
  value.

  Args:
    feature_specs: prepared specs; the stacked_table_spec of each feature's
      table is replaced.
    updated_params: the statistics. Values may be scalars or arrays.
    num_sc_per_device: SparseCores per device.

  Raises:
    AssertionError: if a table is not stacked.
  """
  for feature in jax.tree.leaves(feature_specs):
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
    feature.table_spec.stacked_table_spec = dataclasses.replace(
        stack, **changes
    )
