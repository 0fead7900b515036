# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Entries, and the buffers that hold them; in readable and slow Python.

The later stages of the reference converter, input_preprocessing.py. The layout
is that of cc/layout/csr_layout.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import itertools
import operator

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One cell: a row that a sample reads, and how much of it."""

  partition: int  # the SparseCore that owns the row
  row: int  # inside of that SparseCore's shard
  sample: int  # inside of the SparseCore that reads
  gain: np.floating
  num_ids: int = 1  # merged into this entry


def merge(entries: Iterable[Entry], num_scs: int) -> list[list[Entry]]:
  """The entries of each partition by row and sample, equal ones added up."""
  partitions: list[list[Entry]] = [[] for _ in range(num_scs)]
  key = operator.attrgetter("partition", "row", "sample")
  # Stable: equal entries stay, and add up, in order of occurrence.
  for (partition, row, sample), group in itertools.groupby(
      sorted(entries, key=key), key
  ):
    gains = [entry.gain for entry in group]
    with np.errstate(all="ignore"):
      gain = sum(gains[1:], start=gains[0])
    partitions[partition].append(
        Entry(
            partition=partition,
            row=row,
            sample=sample,
            gain=gain,
            num_ids=len(gains),
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
