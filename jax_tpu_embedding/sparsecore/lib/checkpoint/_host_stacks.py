# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Stacks in files of the host: rows in and out of them without a device.

A stacked array in a checkpoint is cut as its writer's devices were, and packed:
a few rows of every shard, which is what consecutive rows of a table are, would
unpack all of it. So a stack is laid down once, in the order of the checkpoint,
in a file without a name, and its pages are the system's to keep or drop.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import math
import os
import tempfile

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
import numpy as np


def scratch_array(
    shape: Sequence[int], dtype: np.dtype, directory: str | None
) -> np.ndarray:
  """Zeros in a file, which is gone with the array.

  Args:
    shape: its shape.
    dtype: its type.
    directory: of the file; None: that of temporary files.

  Raises:
    CheckpointError: the file cannot be made, or the disk has no room for it.
  """
  num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
  try:
    with tempfile.TemporaryFile(dir=directory) as file:
      # A map of a file with holes ends the process, by SIGBUS, when the disk is
      # full; so the disk gives the room now, or this is an error. macOS has no
      # such call.
      if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
      # A map has a hold of the file of its own.
      return np.memmap(file, dtype, "w+", shape=tuple(shape))
  except OSError as error:
    raise _row_blocks.CheckpointError(
        f"Cannot keep a stack of {num_bytes} bytes in"
        f" {directory or tempfile.gettempdir()}: {error.strerror}. Pass scratch"
        " (--scratch), a directory with room for some stacks."
    ) from error


class HostStackRows:
  """The rows of one table in a stack: a source and a sink.

  Args:
    stack: [num_rows, D'], or the same with more dimensions.
    placement: of the stack.
    table: one of its tables.
  """

  def __init__(
      self,
      stack: np.ndarray,
      placement: _placement.StackPlacement,
      table: _placement.TablePlacement,
  ):
    self._shards = stack.reshape(
        placement.num_shards, placement.rows_in_shard, placement.embedding_dim
    )
    self._table = table
    self.rows = table.vocabulary_size
    self.columns = table.embedding_dim
    self.dtype = stack.dtype
    self.block_rows = _row_blocks.rows_per_block(
        self.rows, self.columns * self.dtype.itemsize, _row_blocks.BLOCK_BYTES
    )

  def blocks(
      self, ranges: Sequence[_row_blocks.Range]
  ) -> Iterator[tuple[int, np.ndarray]]:
    for first, end in ranges:
      values = np.empty((end - first, self.columns), self.dtype)
      for rows, in_shard in self._places(first, end):
        values[rows] = in_shard
      yield first, values

  def write(self, first: int, values: np.ndarray) -> None:
    for rows, in_shard in self._places(first, first + len(values)):
      in_shard[...] = values[rows]

  def _places(self, first: int, end: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Which rows of a block are in a shard, and where."""
    num_shards = len(self._shards)
    for begin in range(first, min(first + num_shards, end)):
      shard = (begin + self._table.shard_rotation) % num_shards
      local = begin // num_shards + self._table.row_offset_in_shard
      count = len(range(begin, end, num_shards))
      in_shard = self._shards[shard, local : local + count, : self.columns]
      yield slice(begin - first, None, num_shards), in_shard
