# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the converter computes, in readable and slow Python.

`convert_stack` and `convert_in_minibatches` define what is correct for
cc/convert, stage by stage:

  ids of one SparseCore -> entries -> sort and merge -> [buckets] -> drop
  -> cells

and the converter is tested against them byte for byte.

Shapes use S = num_sc_per_device, L and G = local and global devices,
N = G * S, R and B = row pointers and COO cells per device.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from jax_tpu_embedding.sparsecore.lib.core import _one_device_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import coo_entries
from jax_tpu_embedding.sparsecore.lib.core import feature_samples
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import minibatch_split
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
import numpy as np

preprocess_sparse_dense_matmul_input = (
    _one_device_preprocessing.preprocess_sparse_dense_matmul_input
)

COMBINERS = raw_ids.COMBINERS
Feature = feature_samples.Feature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
  """What all features of a stack share."""

  combiner: str
  max_ids_per_partition: int
  max_unique_ids_per_partition: int
  suggested_coo_buffer_size_per_device: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertedStack:
  """The buffers of a stack, and what the batch needs before dropping."""

  row_pointers: np.ndarray  # i32[L, R]
  embedding_ids: np.ndarray  # i32[L, B]
  sample_ids: np.ndarray  # i32[L, B]
  gains: np.ndarray  # f32[L, B]
  max_ids_per_partition: np.ndarray  # i32[L * N]
  max_unique_ids_per_partition: np.ndarray  # i32[L * N]
  required_buffer_size_per_sc: np.ndarray  # i32[L * S], of one minibatch
  minibatch_alignment_per_sc: np.ndarray  # i32[L * S], what others add to it
  dropped_id_count: int


def convert_stack(
    stack: Stack,
    features: Sequence[Feature],
    topology: layout.Topology,
    *,
    allow_id_dropping: bool = False,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> ConvertedStack:
  """Returns the buffers of one stack for all local devices.

  Raises:
    ValueError: if ids or samples are not as declared, or without
      `allow_id_dropping` if a partition or a buffer is too small.

  Source: docs/reference/buffer_format.md.
  """
  merged = _merge(stack, features, topology, feature_stacking_strategy)
  buffers = [
      coo_entries.CooBuffers(_coo_cells_per_device(stack, topology), topology)
      for _ in range(topology.local_device_count)
  ]
  dropped = 0
  for local_sc, partitions in enumerate(merged.partitions):
    device, sc = divmod(local_sc, topology.num_sc_per_device)
    kept = [_within_limits(entries, stack) for entries in partitions]
    dropped += _num_ids(partitions) - _num_ids(kept)
    dropped += buffers[device].write_region(sc, kept)
  if dropped and not allow_id_dropping:
    raise ValueError(f"{dropped} ids exceed a limit or the buffer.")
  return _converted(
      merged,
      topology,
      buffers,
      minibatch_alignment=[0] * len(merged.partitions),
      dropped=dropped,
  )


def convert_in_minibatches(
    hosts: Sequence[Sequence[tuple[Stack, Sequence[Feature]]]],
    topology: layout.Topology,
    *,
    allow_id_dropping: bool = False,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> tuple[list[list[ConvertedStack]], int]:
  """Returns what all hosts of a step convert their stacks to.

  Args:
    hosts: the stacks of each host, with its part of the batch.
    topology: of the job; every host has the same number of devices.
    allow_id_dropping: see `convert_stack`.
    feature_stacking_strategy: see `convert_stack`.

  Returns:
    The stacks of each host, and the number of minibatches, which is the same
    for all of them.

  Raises:
    ValueError: as `convert_stack` does.

  Source: docs/reference/buffer_format.md.
  """
  merged = [
      (h, stack, _merge(stack, features, topology, feature_stacking_strategy))
      for h, stacks in enumerate(hosts)
      for stack, features in stacks
  ]
  minibatches = _minibatches([(stack, m) for _, stack, m in merged], topology)
  converted = [[] for _ in hosts]
  for h, stack, merged_stack in merged:
    converted[h].append(
        _convert_minibatches(
            stack, merged_stack, topology, minibatches, allow_id_dropping
        )
    )
  return converted, 1 if minibatches is None else len(minibatches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Merged:
  """The entries of a stack, before any is dropped."""

  # [local SparseCore][partition]: by row and sample
  partitions: list[list[list[coo_entries.Entry]]]
  dropped_by_policies: int


def _merge(
    stack: Stack,
    features: Sequence[Feature],
    topology: layout.Topology,
    feature_stacking_strategy: str,
) -> _Merged:
  feature_samples.check_num_samples(
      features, topology, feature_stacking_strategy
  )
  features = sorted(features, key=lambda feature: feature.row_offset)
  partitions = []
  dropped = 0
  for local_sc in range(
      topology.local_device_count * topology.num_sc_per_device
  ):
    entries, num_dropped = coo_entries.entries(
        features, stack.combiner, topology, local_sc, feature_stacking_strategy
    )
    dropped += num_dropped
    partitions.append(coo_entries.merge(entries, topology.num_scs))
  return _Merged(partitions=partitions, dropped_by_policies=dropped)


def _converted(
    merged: _Merged,
    topology: layout.Topology,
    buffers: Sequence[coo_entries.CooBuffers],
    *,
    minibatch_alignment: Sequence[int],
    dropped: int,
) -> ConvertedStack:
  """Buffers, with statistics of what there was before anything was dropped."""
  max_ids = np.zeros((topology.local_device_count, topology.num_scs), np.int32)
  max_unique_ids = np.zeros_like(max_ids)
  for local_sc, partitions in enumerate(merged.partitions):
    device = local_sc // topology.num_sc_per_device
    for t, entries in enumerate(partitions):
      max_ids[device, t] = max(max_ids[device, t], len(entries))
      max_unique_ids[device, t] = max(
          max_unique_ids[device, t], _num_rows(entries)
      )
  return ConvertedStack(
      row_pointers=np.stack([b.row_pointers for b in buffers]),
      embedding_ids=np.stack([b.embedding_ids for b in buffers]),
      sample_ids=np.stack([b.sample_ids for b in buffers]),
      gains=np.stack([b.gains for b in buffers]),
      max_ids_per_partition=max_ids.reshape(-1),
      max_unique_ids_per_partition=max_unique_ids.reshape(-1),
      required_buffer_size_per_sc=np.array(
          [_num_cells(partitions) for partitions in merged.partitions], np.int32
      ),
      minibatch_alignment_per_sc=np.array(minibatch_alignment, np.int32),
      dropped_id_count=dropped + merged.dropped_by_policies,
  )


def _minibatches(
    stacks: Sequence[tuple[Stack, _Merged]], topology: layout.Topology
) -> list[range] | None:
  """The buckets of each minibatch; None if no partition exceeds a limit."""
  partitions = [
      (stack, entries)
      for stack, merged in stacks
      for of_sc in merged.partitions
      for entries in of_sc
  ]
  if all(
      _within_limits(entries, stack) == entries for stack, entries in partitions
  ):
    return None
  bits = 0
  for stack, entries in partitions:
    buckets = _buckets(entries, topology)
    bits |= minibatch_split.split_bits(
        [len(bucket) for bucket in buckets], stack.max_ids_per_partition
    )
    bits |= minibatch_split.split_bits(
        [_num_rows(bucket) for bucket in buckets],
        stack.max_unique_ids_per_partition,
    )
  return minibatch_split.minibatches(bits)


def _buckets(
    entries: Sequence[coo_entries.Entry], topology: layout.Topology
) -> list[list[coo_entries.Entry]]:
  buckets = [[] for _ in range(minibatch_split.NUM_BUCKETS)]
  for entry in entries:
    stack_row = entry.row * topology.num_scs + entry.partition
    buckets[minibatch_split.bucket_of(stack_row)].append(entry)
  return buckets


def _split(
    entries: list[coo_entries.Entry],
    topology: layout.Topology,
    minibatches: list[range] | None,
) -> list[list[list[coo_entries.Entry]]]:
  """The buckets of each minibatch of one partition, with their entries."""
  if minibatches is None:
    return [[entries]]
  buckets = _buckets(entries, topology)
  return [[buckets[b] for b in minibatch] for minibatch in minibatches]


def _convert_minibatches(
    stack: Stack,
    merged: _Merged,
    topology: layout.Topology,
    minibatches: list[range] | None,
    allow_id_dropping: bool,
) -> ConvertedStack:
  num_cells = _coo_cells_per_device(stack, topology, enable_minibatching=True)
  buffers = [
      coo_entries.CooBuffers(num_cells, topology, constants.MAX_MINIBATCHES)
      for _ in range(topology.local_device_count)
  ]
  next_cell = [0] * topology.local_device_count
  alignment = []
  dropped = 0
  for local_sc, partitions in enumerate(merged.partitions):
    device, sc = divmod(local_sc, topology.num_sc_per_device)
    split = [_split(entries, topology, minibatches) for entries in partitions]
    cells = 0
    # From [partition][minibatch] to [minibatch][partition].
    for m, buckets_of_partition in enumerate(zip(*split, strict=True)):
      joined = [sum(buckets, []) for buckets in buckets_of_partition]
      kept = [
          sum((_within_limits(bucket, stack) for bucket in buckets), [])
          for buckets in buckets_of_partition
      ]
      cells += _num_cells(joined)
      dropped += _num_ids(joined) - _num_ids(kept)
      next_cell[device], lost = buffers[device].write_block(
          sc * len(split[0]) + m, kept, next_cell[device], num_cells
      )
      dropped += lost
    alignment.append(cells - _num_cells(partitions))
  if dropped and not allow_id_dropping:
    raise ValueError(f"{dropped} ids exceed a limit or the buffer.")
  return _converted(
      merged,
      topology,
      buffers,
      minibatch_alignment=alignment,
      dropped=dropped,
  )


def _num_ids(partitions: Sequence[Sequence[coo_entries.Entry]]) -> int:
  """Ids that were merged into the entries of some partitions."""
  return sum(entry.num_ids for entries in partitions for entry in entries)


def _num_cells(partitions: Sequence[Sequence[coo_entries.Entry]]) -> int:
  """Cells that partitions need."""
  return sum(
      layout.round_up(len(entries), constants.ALIGNMENT)
      for entries in partitions
  )


def _num_rows(entries: Sequence[coo_entries.Entry]) -> int:
  return len({entry.row for entry in entries})


def _coo_cells_per_device(
    stack: Stack, topology: layout.Topology, enable_minibatching: bool = False
) -> int:
  if stack.suggested_coo_buffer_size_per_device is None:
    return layout.max_coo_cells_per_device(
        stack.max_ids_per_partition, topology, enable_minibatching
    )
  return layout.round_up(
      stack.suggested_coo_buffer_size_per_device,
      constants.ALIGNMENT * topology.num_sc_per_device,
  )


def _within_limits(
    entries: list[coo_entries.Entry], stack: Stack
) -> list[coo_entries.Entry]:
  """The longest prefix that both limits allow."""
  rows = set()
  for count, entry in enumerate(entries):
    rows.add(entry.row)
    if (
        count == stack.max_ids_per_partition
        or len(rows) > stack.max_unique_ids_per_partition
    ):
      return entries[:count]
  return entries
