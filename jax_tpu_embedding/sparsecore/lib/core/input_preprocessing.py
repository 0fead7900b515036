# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the converter computes, in readable and slow Python.

`convert_stack` defines what is correct for cc/convert, stage by stage:

  ids of one SparseCore -> entries -> sort and merge -> drop -> cells

and the converter is tested against it byte for byte.

Shapes use S = num_sc_per_device, L and G = local and global devices,
N = G * S, R and B = row pointers and COO cells per device.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools

from jax_tpu_embedding.sparsecore.lib.core import _one_device_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import coo_entries
from jax_tpu_embedding.sparsecore.lib.core import layout
import numpy as np

preprocess_sparse_dense_matmul_input = (
    _one_device_preprocessing.preprocess_sparse_dense_matmul_input
)

COMBINERS = ("sum", "mean", "sqrtn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
  """A feature of a stack, with the samples of this process."""

  name: str
  ids: Sequence[np.ndarray]  # integers of each sample; a dense array has rows
  weights: Sequence[np.ndarray] | None = None  # f32, shaped like ids
  vocabulary_size: int
  row_offset: int = 0  # first sample in the stacked global batch
  col_offset: int = 0  # first row in each shard of the stack, times N
  col_shift: int = 0  # rotation of the shards


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
  required_buffer_size_per_sc: np.ndarray  # i32[L * S]
  dropped_id_count: int


def convert_stack(
    stack: Stack,
    features: Sequence[Feature],
    topology: layout.Topology,
    *,
    allow_id_dropping: bool = False,
) -> ConvertedStack:
  """Returns the buffers of one stack for all local devices.

  Raises:
    ValueError: if ids or samples are not as declared, or without
      `allow_id_dropping` if a partition or a buffer is too small.

  Source: docs/reference/buffer_format.md.
  """
  num_local_scs = topology.local_device_count * topology.num_sc_per_device
  _check_features(features, num_local_scs)
  features = sorted(features, key=lambda feature: feature.row_offset)
  buffers = [
      coo_entries.CooBuffers(_coo_cells_per_device(stack, topology), topology)
      for _ in range(topology.local_device_count)
  ]
  max_ids = np.zeros((topology.local_device_count, topology.num_scs), np.int32)
  max_unique_ids = np.zeros_like(max_ids)
  required = np.zeros(num_local_scs, np.int32)
  dropped = 0
  for local_sc in range(num_local_scs):
    device, sc = divmod(local_sc, topology.num_sc_per_device)
    partitions = coo_entries.merge(
        _entries(features, stack.combiner, topology, local_sc), topology.num_scs
    )
    for t, entries in enumerate(partitions):
      max_ids[device, t] = max(max_ids[device, t], len(entries))
      max_unique_ids[device, t] = max(
          max_unique_ids[device, t], len({entry.row for entry in entries})
      )
      required[local_sc] += layout.round_up(len(entries), constants.ALIGNMENT)
    kept = [_within_limits(entries, stack) for entries in partitions]
    dropped += sum(
        entry.num_ids
        for all_entries, kept_entries in zip(partitions, kept)
        for entry in all_entries[len(kept_entries) :]
    )
    dropped += buffers[device].write_region(sc, kept)
  if dropped and not allow_id_dropping:
    raise ValueError(f"{dropped} ids exceed a limit or the buffer.")
  return ConvertedStack(
      row_pointers=np.stack([b.row_pointers for b in buffers]),
      embedding_ids=np.stack([b.embedding_ids for b in buffers]),
      sample_ids=np.stack([b.sample_ids for b in buffers]),
      gains=np.stack([b.gains for b in buffers]),
      max_ids_per_partition=max_ids.reshape(-1),
      max_unique_ids_per_partition=max_unique_ids.reshape(-1),
      required_buffer_size_per_sc=required,
      dropped_id_count=dropped,
  )


def _check_features(features: Sequence[Feature], num_local_scs: int) -> None:
  for feature in features:
    if len(feature.ids) % num_local_scs:
      raise ValueError(
          f"Feature {feature.name!r}: {len(feature.ids)} samples cannot be"
          f" shared by {num_local_scs} SparseCores."
      )
    for i in itertools.chain.from_iterable(feature.ids):
      if not 0 <= i < feature.vocabulary_size:
        raise ValueError(
            f"Feature {feature.name!r}: id {i} is outside of [0,"
            f" {feature.vocabulary_size})."
        )


def _coo_cells_per_device(stack: Stack, topology: layout.Topology) -> int:
  if stack.suggested_coo_buffer_size_per_device is None:
    return layout.max_coo_cells_per_device(
        stack.max_ids_per_partition, topology
    )
  return layout.round_up(
      stack.suggested_coo_buffer_size_per_device,
      constants.ALIGNMENT * topology.num_sc_per_device,
  )


def _gains(
    combiner: str, num_ids: int, weights: np.ndarray | None
) -> Sequence[np.float32]:
  """Gains of the ids of one sample; every step is rounded to float32."""
  if combiner not in COMBINERS:
    raise ValueError(f"combiner must be one of {COMBINERS}, got {combiner!r}.")
  if not num_ids:
    return []
  if weights is None:
    divisor = {
        "sum": np.float32(1),
        "mean": np.float32(num_ids),
        "sqrtn": np.sqrt(np.float32(num_ids)),
    }[combiner]
    return [np.float32(1) / divisor] * num_ids
  if combiner == "sum":
    return [np.float32(weight) for weight in weights]
  total = np.float32(0)
  with np.errstate(all="ignore"):
    for weight in np.asarray(weights, np.float32):
      if combiner == "mean":
        total = total + weight
      else:
        # The square is not rounded to float32 before it is added.
        total = np.float32(np.float64(total) + np.float64(weight) ** 2)
    divisor = total if combiner == "mean" else np.sqrt(total)
    return [np.float32(weight) / divisor for weight in weights]


def _entries(
    features: Sequence[Feature],
    combiner: str,
    topology: layout.Topology,
    local_sc: int,
) -> Iterator[coo_entries.Entry]:
  """One entry per id that the SparseCore reads, in order of occurrence."""
  num_scs = topology.num_scs
  num_local_scs = topology.local_device_count * topology.num_sc_per_device
  for feature in features:
    samples_per_sc = len(feature.ids) // num_local_scs
    for r in range(samples_per_sc):
      ids = feature.ids[local_sc * samples_per_sc + r]
      weights = (
          feature.weights[local_sc * samples_per_sc + r]
          if feature.weights is not None
          else None
      )
      for i, gain in zip(ids, _gains(combiner, len(ids), weights)):
        i = int(i)
        column = (
            (i + feature.col_shift) % num_scs
            + (i - i % num_scs)
            + feature.col_offset
        )
        yield coo_entries.Entry(
            partition=column % num_scs,
            row=column // num_scs,
            sample=feature.row_offset // num_scs + r,
            gain=gain,
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
