# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a batch was: how many ids, what policies made of them, and rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _samples
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

Number = int | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureCounts:
  """What policies made of the ids of a feature, in this part of a batch.

  Attributes:
    num_ids: before anything was dropped.
    dropped_by_policy: left out, because of the id or of its weight.
    clamped: ids that the nearest id of the table took the place of.
    wrapped: ids that their remainder took the place of.
    bad_weights: weights that are not finite, of ids that were not left out.
  """

  num_ids: Number
  dropped_by_policy: Number = 0
  clamped: Number = 0
  wrapped: Number = 0
  bad_weights: Number = 0


def count_ids(
    features: Any,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    features_weights: Any | None = None,
) -> dict[str, FeatureCounts]:
  """Counts ids and what policies make of them, by feature name.

  Inside `jit`, of the arrays that a layer is given, the numbers are i32[]; what
  is after the last row split does not count. On the host it takes every form of
  preprocess_sparse_dense_matmul_input; it reads all ids of features whose
  policy is not "error", at about 1 ns each. What the policy "error" raises for
  is not counted.

  Args:
    features: the tree of `feature_specs` with ids.
    feature_specs: any tree.
    features_weights: the same tree with weights, or None.

  Raises:
    TypeError: on the host, if row splits are no integers.
    ValueError: on the host, if they are not those of the ids, or what is given
      is a masked array.
  """
  specs = _tables.features_of(feature_specs)
  structure = jax.tree.structure(feature_specs)
  return {
      spec.name: _count(ids, weights, spec)
      for ids, weights, spec in zip(
          _structure.flatten_as(
              features, structure, "features", "feature_specs"
          ),
          _structure.flatten_weights(features_weights, structure),
          specs,
      )
  }


def count_batch(
    features: Any,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    features_weights: Any | None,
    inputs: _buffers.PreprocessedInput,
    stats: _stats.SparseDenseMatmulInputStats,
) -> _stats.SparseDenseMatmulInputStats:
  """The statistics of a batch with what it was: their fields from entries on.

  Args:
    features: as in count_ids, like the next two.
    feature_specs: prepared.
    features_weights: or None.
    inputs: what preprocessing made of them: NumPy arrays of this process.
    stats: what it returned beside. Not changed.
  """
  of_features = count_ids(features, feature_specs, features_weights)
  dropped_by_limit = {
      name: int(dropped) for name, dropped in stats.id_drop_counters.items()
  }
  for spec in jax.tree.leaves(feature_specs):
    stack = spec.table_spec.stacked_table_spec.stack_name
    dropped_by_limit[stack] -= of_features[spec.name].dropped_by_policy
  num_minibatches = int(np.max(inputs.num_minibatches))
  entries, distinct_rows = {}, {}
  for name, row_pointers in inputs.lhs_row_pointers.items():
    entries[name], distinct_rows[name] = _count_entries(
        row_pointers,
        inputs.lhs_embedding_ids[name],
        inputs.settings,
        num_minibatches,
    )
  return stats.replace(
      entries=entries,
      distinct_rows=distinct_rows,
      dropped_by_limit=dropped_by_limit,
      num_minibatches=dict.fromkeys(entries, num_minibatches),
      **{
          field.name: {
              name: getattr(counts, field.name)
              for name, counts in of_features.items()
          }
          for field in dataclasses.fields(FeatureCounts)
      },
  )


def sample_ids(
    features: Any,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    max_ids: int,
) -> dict[str, np.ndarray]:
  """Rows that a batch asks for, by table, before policies: a sample of them.

  Args:
    features: the tree of `feature_specs` with ids, in any form of preprocessing.
    feature_specs: any tree.
    max_ids: of a feature, evenly over all of its ids.

  Returns:
    Table name -> i64[n], without ids outside of the table.
  """
  by_table = {}
  all_ids = _structure.flatten_like(
      features, feature_specs, "features", "feature_specs"
  )
  for ids, spec in zip(all_ids, _tables.features_of(feature_specs)):
    values = np.asarray(_values_of(ids, spec))
    if values.size > max_ids:
      # One of each equally long piece, at random: a stride would see the same
      # columns of every sample.
      ends = np.linspace(0, values.size, max_ids + 1).astype(np.int64)
      values = values[np.random.default_rng(0).integers(ends[:-1], ends[1:])]
    table = spec.table_spec
    is_row = (values >= 0) & (values < table.vocabulary_size)
    by_table.setdefault(table.name, []).append(values[is_row].astype(np.int64))
  return {name: np.concatenate(parts) for name, parts in by_table.items()}


def _values_of(
    ids: Any, feature: _tables.FeatureSpec, name: str = "ids"
) -> np.ndarray | jax.Array:
  """The numbers of a feature's ids or weights, [n], in any form.

  Raises:
    TypeError: if row splits are no integers.
    ValueError: if they are a masked array, or have row splits that are none.
  """

  def as_array(x):
    _samples.refuse_masked(x, feature, name)
    return np.asarray(x)

  if isinstance(ids, tuple) and not hasattr(ids, "indices"):
    values, row_splits = ids
    if _are_traced(ids):
      return jnp.asarray(values)
    values, row_splits = as_array(values), np.asarray(row_splits)
    _check_row_splits(row_splits, len(values), feature, name)
    return values[int(row_splits[0]) : int(row_splits[-1])]
  if hasattr(ids, "tocoo"):  # SciPy: columns are ids
    return _entries_of(ids)[0]
  if hasattr(ids, "dense_shape"):  # a sparse tensor
    return as_array(ids.values)
  if hasattr(ids, "combine_chunks"):  # a ChunkedArray of pyarrow
    ids = ids.combine_chunks()
  if hasattr(ids, "to_numpy"):  # an Array of pyarrow, of numbers or lists
    numbers = ids.flatten() if hasattr(ids, "flatten") else ids
    return numbers.to_numpy(zero_copy_only=False)
  if isinstance(ids, jax.Array):
    return ids.reshape(-1)
  ids = as_array(ids)
  if ids.dtype == object:
    rows = [as_array(row).reshape(-1) for row in ids.reshape(-1)]
    return np.concatenate(rows or [[]])
  return ids.reshape(-1)


def _check_row_splits(
    row_splits: np.ndarray, most: int, feature: _tables.FeatureSpec, name: str
) -> None:
  if row_splits.dtype.kind not in "iu":
    raise TypeError(
        f"Feature {feature.name!r}: its row_splits must be integers, got dtype"
        f" {row_splits.dtype}. Convert them, for example with"
        " row_splits.astype(np.int32)."
    )
  # Compared, and not subtracted: a difference may not fit its type.
  if (
      row_splits.ndim != 1
      or not row_splits.size
      or not 0 <= row_splits[0] <= row_splits[-1] <= most
      or np.any(row_splits[1:] < row_splits[:-1])
  ):
    raise ValueError(
        f"Feature {feature.name!r}: its row_splits must be numbers that ascend"
        f" from 0 to the number of {name}, {most}, got {row_splits!r}."
    )


def _entries_of(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
  """Columns and values of a SciPy matrix, which may have room for more."""
  if matrix.format != "csr":
    matrix = matrix.tocoo(copy=False)
    return matrix.col, matrix.data
  num_entries = int(matrix.indptr[-1])
  return matrix.indices[:num_entries], matrix.data[:num_entries]


def _weights_of(
    ids: Any, weights: Any | None, feature: _tables.FeatureSpec
) -> np.ndarray | None:
  if weights is not None:
    if isinstance(ids, tuple) and not isinstance(weights, tuple):
      weights = weights, ids[1]  # weights of ragged ids may come without splits
    return _values_of(weights, feature, "weights")
  return _entries_of(ids)[1] if hasattr(ids, "tocoo") else None


def _count(ids, weights, spec) -> FeatureCounts:
  values = _values_of(ids, spec)
  counts, is_id = dict(num_ids=int(values.size)), True
  if isinstance(ids, tuple) and _are_traced(ids):
    is_id = _is_in_a_row(values, ids[1], spec)
    counts = dict(num_ids=_num_true(is_id))
  weights = _weights_of(ids, weights, spec)
  policy = spec.out_of_range_ids
  is_out = None
  if policy != "error":
    if values.dtype.itemsize < 4:  # JAX compares no number that it lacks
      values = values.astype(np.int32)
    is_out = (values < 0) | (values >= spec.table_spec.vocabulary_size)
    is_out &= is_id
    name = {
        "drop": "dropped_by_policy",
        "clamp": "clamped",
        "modulo": "wrapped",
    }[policy]
    counts[name] = _num_true(is_out)
  if weights is not None and spec.non_finite_weights != "error":
    is_bad = ~_numpy(weights).isfinite(weights) & is_id
    if policy == "drop":
      is_bad &= ~is_out
    num_bad = counts["bad_weights"] = _num_true(is_bad)
    if spec.non_finite_weights == "drop":
      counts["dropped_by_policy"] = counts.get("dropped_by_policy", 0) + num_bad
  return FeatureCounts(**counts)


def _are_traced(arrays: tuple[Any, ...]) -> bool:
  return any(isinstance(x, jax.core.Tracer) for x in arrays)


def _is_in_a_row(
    values: jax.Array, row_splits: jax.Array, spec: _tables.FeatureSpec
) -> jax.Array:
  """bool[n]: whether values are ids, and not what is after the last split.

  A layer of several devices may be given a pair for each, after one another.
  """
  num_pairs = _num_pairs(row_splits.size, spec)
  if row_splits.size % num_pairs or values.size % num_pairs:
    num_pairs = 1
  splits = row_splits.reshape(num_pairs, -1)
  place = jnp.arange(values.size // num_pairs)
  is_id = (place >= splits[:, :1]) & (place < splits[:, -1:])
  return is_id.reshape(-1)


def _num_pairs(num_splits: int, spec: _tables.FeatureSpec) -> int:
  """One, or that of devices: a pair has one split more than samples."""
  if jax.sharding.get_abstract_mesh().manual_axes:
    return 1  # one device's part
  lead = spec.output_shape[:-1]
  # Of the batch that the spec declares, where there are as many.
  as_declared = 0 if None in lead else num_splits - math.prod(lead)
  num_scs = spec.table_spec.setting_in_stack.num_shards
  if num_scs is None or spec.table_spec.is_replicated:
    return max(as_declared, 1)  # no plan tells how many devices there can be
  if as_declared > 0 and num_scs % as_declared == 0:
    return as_declared
  # Of another batch, which all SparseCores share evenly.
  return num_splits % num_scs or num_scs


def _numpy(x: Any) -> Any:
  return jnp if isinstance(x, jax.Array) else np


def _num_true(x: Any) -> Number:
  return x.sum() if isinstance(x, jax.Array) else int(np.count_nonzero(x))


def _count_entries(
    row_pointers: np.ndarray,
    rows: np.ndarray,
    settings: _buffers.BufferSettings,
    num_minibatches: int,
) -> tuple[int, int]:
  """Entries, and distinct rows of each partition, of all local devices.

  A partition begins where the one before ends, rounded up to 8.
  """
  topology = settings.topology
  num_scs = topology.global_device_count * topology.num_sc_per_device
  block = layout.row_pointers_per_block(num_scs)
  num_devices = row_pointers.size // layout.row_pointers_per_device(
      topology, settings.enable_minibatching
  )
  ends = row_pointers.reshape(num_devices, -1, block)[:, :, :num_scs]
  if settings.enable_minibatching:  # one run of cells over the whole device
    ends = ends[:, : topology.num_sc_per_device * num_minibatches]
    ends = ends.reshape(num_devices, -1)
  else:
    ends = ends.reshape(num_devices * topology.num_sc_per_device, -1)
  first_cells = np.arange(len(ends))[:, None] * (rows.size // len(ends))
  begins = np.zeros_like(ends)
  begins[:, 1:] = layout.round_up(ends[:, :-1], constants.ALIGNMENT)
  sizes = ends - begins
  is_used = sizes > 0
  # How often the row changed until a cell: rows of a partition are in order.
  rows = rows.reshape(-1)
  changes = np.zeros(rows.size, np.int32)
  np.cumsum(rows[1:] != rows[:-1], out=changes[1:])
  first = (begins + first_cells)[is_used]
  last = (ends + first_cells)[is_used] - 1
  distinct_rows = (changes[last] - changes[first]).sum() + is_used.sum()
  return int(sizes[is_used].sum()), int(distinct_rows)
