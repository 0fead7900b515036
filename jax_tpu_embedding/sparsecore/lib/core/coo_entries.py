# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Entries, and the buffers that hold them; in readable and slow Python.

The stages of the reference converter, input_preprocessing.py:

  entries      one entry per id of a SparseCore
  merge        entries by partition, row and sample, equal ones added up
  CooBuffers   the layout of cc/layout/csr_layout.h
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import itertools
import operator
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import feature_samples
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
import numpy as np


def gains(
    combiner: str, num_ids: int, weights: Sequence[Any] | None
) -> Sequence[np.float32]:
  """Gains of the ids of one sample; every step is rounded to float32.

  Where weights are divided by zero, as they are if all are zero, the gains are
  zero.
  """
  if combiner not in raw_ids.COMBINERS:
    raise ValueError(
        f"combiner must be one of {raw_ids.COMBINERS}, got {combiner!r}."
    )
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
  divisor = weight_divisor(combiner, weights)
  if divisor == 0:
    return [np.float32(0)] * num_ids
  with np.errstate(all="ignore"):
    return [np.float32(weight) / divisor for weight in weights]


def weight_divisor(combiner: str, weights: Sequence[Any]) -> np.float32:
  """What the weights of a sample are divided by, in "mean" and "sqrtn"."""
  total = np.float32(0)
  with np.errstate(all="ignore"):
    for weight in np.asarray(weights, np.float32):
      if combiner == "mean":
        total = total + weight
      else:
        # The square is not rounded to float32 before it is added.
        total = np.float32(np.float64(total) + np.float64(weight) ** 2)
    return total if combiner == "mean" else np.sqrt(total)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One cell: a row that a sample reads, and how much of it."""

  partition: int  # the SparseCore that owns the row
  row: int  # inside of that SparseCore's shard
  sample: int  # inside of the SparseCore that reads
  gain: np.floating
  num_ids: int = 1  # merged into this entry


def entries(
    features: Sequence[feature_samples.Feature],
    combiner: str,
    topology: layout.Topology,
    local_sc: int,
    strategy: str,
) -> tuple[list[Entry], int]:
  """One entry per id that a SparseCore reads, in order of occurrence.

  The arguments are those of `feature_samples.samples_of`.

  Returns:
    The entries, and how many ids policies dropped.
  """
  num_scs = topology.num_scs
  result = []
  num_dropped = 0
  for feature, i, sample_id in feature_samples.samples_of(
      features, topology, local_sc, strategy
  ):
    ids, weights = feature_samples.clean_sample(feature, i)
    num_dropped += len(feature.ids[i]) - len(ids)
    if (
        weights is not None
        and combiner != "sum"
        and feature.non_finite_weights == "error"
        and not np.isfinite(weight_divisor(combiner, weights))
    ):
      raise ValueError(
          f"Feature {feature.name!r}: what the weights of sample {i} are divided"
          f" by is not finite, with combiner {combiner!r}."
      )
    for id_, gain in zip(ids, gains(combiner, len(ids), weights)):
      column = (
          (id_ + feature.col_shift) % num_scs
          + (id_ - id_ % num_scs)
          + feature.col_offset
      )
      result.append(
          Entry(
              partition=column % num_scs,
              row=column // num_scs,
              sample=sample_id,
              gain=gain,
          )
      )
  return result, num_dropped


def merge(all_entries: Iterable[Entry], num_scs: int) -> list[list[Entry]]:
  """The entries of each partition by row and sample, equal ones added up."""
  partitions: list[list[Entry]] = [[] for _ in range(num_scs)]
  key = operator.attrgetter("partition", "row", "sample")
  # Stable: equal entries stay, and add up, in order of occurrence.
  for (partition, row, sample), group in itertools.groupby(
      sorted(all_entries, key=key), key
  ):
    parts = [entry.gain for entry in group]
    with np.errstate(all="ignore"):
      gain = sum(parts[1:], start=parts[0])
    partitions[partition].append(
        Entry(
            partition=partition,
            row=row,
            sample=sample,
            gain=gain,
            num_ids=len(parts),
        )
    )
  return partitions


class CooBuffers:
  """The buffers of one device, all padding until written."""

  def __init__(
      self,
      num_cells: int,
      topology: layout.Topology,
      num_minibatches: int = 1,
  ):
    self._topology = topology
    self.row_pointers = np.zeros(
        layout.row_pointers_per_device(topology) * num_minibatches, np.int32
    )
    self.embedding_ids = np.full(num_cells, constants.PADDING_VALUE, np.int32)
    self.sample_ids = np.full(num_cells, constants.PADDING_VALUE, np.int32)
    self.gains = np.full(num_cells, np.nan, np.float32)

  def write_region(self, sc: int, partitions: Sequence[Sequence[Entry]]) -> int:
    """Writes what SparseCore `sc` reads. Returns how many entries were lost."""
    region = self.gains.size // self._topology.num_sc_per_device
    begin = sc * region
    _, lost = self.write_block(
        sc, partitions, begin, begin + region, pointers_from=begin
    )
    return lost

  def write_block(
      self,
      block: int,
      partitions: Sequence[Sequence[Entry]],
      begin: int,
      end: int,
      pointers_from: int = 0,
  ) -> tuple[int, int]:
    """Writes partitions to the cells from `begin` on, as far as `end`.

    Args:
      block: which of the blocks of row pointers belongs to them.
      partitions: N lists of entries.
      begin: first cell, a multiple of 8.
      end: first cell that may not be written, a multiple of 8.
      pointers_from: the cell that row pointers count from.

    Returns:
      The first aligned cell behind them, and how many entries were lost.
    """
    cell = begin
    lost = 0
    ends = []
    for entries in partitions:
      for entry in entries:
        if cell == end:
          lost += 1
          continue
        self.embedding_ids[cell] = entry.row
        self.sample_ids[cell] = entry.sample
        self.gains[cell] = entry.gain
        cell += 1
      ends.append(cell - pointers_from)
      cell = layout.round_up(cell, constants.ALIGNMENT)
    size = layout.row_pointers_per_block(self._topology.num_scs)
    ends += [cell - pointers_from] * (size - len(ends))
    self.row_pointers[block * size : (block + 1) * size] = ends
    return cell, lost
