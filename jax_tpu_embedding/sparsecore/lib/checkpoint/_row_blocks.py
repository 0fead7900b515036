# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A variable of a table as a stream of blocks of rows in logical order.

Whatever holds rows is a source, a sink or both: a stack on devices, a zarr
array, an array of NumPy. Saving, restoring and converting are `copy`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
from typing import Any
from typing import Protocol

import jax.numpy as jnp
import numpy as np

# Of one block: what one chunk of a file is cut to, and one read of an array.
# Larger blocks save little time and cost memory (benchmarks/checkpoint).
BLOCK_BYTES = 4 * 2**20

# Of the arrays of XLA on CPU, which takes memory so aligned without a copy.
_ALIGNMENT = 64

# First row and the one after the last.
Range = tuple[int, int]


class CheckpointError(Exception):
  """A checkpoint is damaged, incomplete, or none that can be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
  """Which array of which table: the table itself, or one of its slots."""

  table: str
  # Name of the slot; None for the table itself.
  slot: str | None = None

  @property
  def keys(self) -> tuple[str, ...]:
    """Where it is in the tree {table: {"table": .., "slot": {name: ..}}}."""
    if self.slot is None:
      return (self.table, "table")
    return (self.table, "slot", self.slot)

  def __str__(self) -> str:
    if self.slot is None:
      return f"table {self.table!r}"
    return f"slot {self.slot!r} of table {self.table!r}"


class Pending(Protocol):
  """A write that was begun."""

  def result(self) -> Any:
    """Waits for its end, and raises what went wrong."""


class RowSource(Protocol):
  """Rows [rows, columns] that can be read."""

  rows: int
  columns: int
  dtype: np.dtype
  # Rows that are best read at a time.
  block_rows: int

  def blocks(self, ranges: Sequence[Range]) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, [n, columns]) of each range that this process is to write.

    A block is the caller's once it is yielded: nobody else changes it. Of
    several processes each yields some of the ranges, all of them together each
    range once.
    """


class RowSink(Protocol):
  """Rows [rows, columns] that can be written."""

  def write(self, first: int, values: np.ndarray) -> Pending | None:
    """Begins to write rows from `first` on; `values` must not change.

    None: it is done.
    """


class Window:
  """Writes that were begun, of a limited number of bytes at a time.

  Args:
    max_bytes: what may wait to be written; None: anything.
    keeps_errors: whether `wait` alone raises: for processes that read together,
      of which none may stop before the others.

  Attributes:
    error: of the first write that failed, if it is kept; nothing is written
      from then on.
  """

  def __init__(self, max_bytes: int | None, keeps_errors: bool = False):
    self._max_bytes = max_bytes
    self._keeps_errors = keeps_errors
    self.error = None
    self._pending = collections.deque()
    self._num_bytes = 0

  def add(self, pending: Pending | None, num_bytes: int) -> None:
    """Takes note of a write; waits for earlier ones until it fits."""
    if pending is None:
      return
    self._pending.append((pending, num_bytes))
    self._num_bytes += num_bytes
    while self._max_bytes is not None and self._num_bytes > self._max_bytes:
      self._wait_for_oldest()

  def wait(self) -> None:
    """Waits for all writes; raises the error of the first that failed."""
    while self._pending:
      self._wait_for_oldest()
    if self.error is not None:
      raise self.error

  def _wait_for_oldest(self) -> None:
    pending, num_bytes = self._pending.popleft()
    self._num_bytes -= num_bytes
    try:
      pending.result()
    except CheckpointError as error:
      self.keep(error)

  def keep(self, error: CheckpointError) -> None:
    """Keeps an error for `wait`, or raises it."""
    if not self._keeps_errors:
      raise error
    self.error = self.error or error


def copy(
    source: RowSource,
    sink: RowSink | None,
    ranges: Sequence[Range],
    window: Window,
) -> None:
  """Begins to write the rows of `ranges` to `sink`; `window` ends it.

  When this returns every row has been read. A window that keeps an error needs
  no sink.
  """
  for first, values in source.blocks(ranges):
    if window.error is None:
      window.add(sink.write(first, values), values.nbytes)


class Buffers:
  """Memory for blocks, used again when no array has it any more.

  New pages take the system about as long as a block takes to be copied.
  """

  def __init__(self):
    self._free: list[np.ndarray] = []

  def take(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array with any contents, which JAX takes without a copy on a CPU."""
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    lease = _Lease(self._memory(num_bytes), self._free)
    return np.asarray(lease)[:num_bytes].view(dtype).reshape(shape)

  def _memory(self, num_bytes: int) -> np.ndarray:
    while self._free:
      # Of another thread's, too: lists are thread-safe.
      memory = self._free.pop()
      if memory.nbytes >= num_bytes:
        return memory
      # Blocks became larger; what is too small is not kept.
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + num_bytes]


class _Lease:
  """What arrays hold that have the memory, views and arrays of JAX included."""

  def __init__(self, memory: np.ndarray, free: list[np.ndarray]):
    self._memory = memory
    self._free = free
    self.__array_interface__ = memory.__array_interface__

  def __del__(self):
    self._free.append(self._memory)


def rows_per_block(rows: int, row_bytes: int, block_bytes: int) -> int:
  """How many rows a block has so that blocks are about equal.

  A multiple of 8, the rows to which tables are padded, unless there is only one
  block.
  """
  num_blocks = max(1, -(-rows * row_bytes // block_bytes))
  # Of no rows there are no blocks, however many rows one has.
  return max(1, min(rows, -(-(-(-rows // num_blocks)) // 8) * 8))


def ranges_of(rows: int, per_block: int) -> list[Range]:
  """[0, rows) in blocks; the last one may be smaller."""
  return [
      (first, min(first + per_block, rows))
      for first in range(0, rows, per_block)
  ]


class ArrayRows:
  """Rows of whatever has a shape and gives NumPy arrays for slices of rows.

  An array of NumPy, a memory map, a slice object of safetensors, an h5py
  dataset: what is not asked for is not read.

  Raises:
    TypeError: it is no array, or a masked one.
    ValueError: it is not [rows, columns] of floating point numbers.
  """

  def __init__(self, name: str, array: Any):
    if not hasattr(array, "shape") and not hasattr(array, "get_shape"):
      raise TypeError(
          f"Table {name!r}: there is a {type(array).__name__} in place of an"
          " array. Pass numpy.asarray of it."
      )
    if np.ma.isMaskedArray(array):
      raise TypeError(
          f"Table {name!r}: the array is masked, which rows of tables are not."
          " Pass array.filled(value)."
      )
    shape = array.shape if hasattr(array, "shape") else array.get_shape()
    if len(shape) != 2:
      raise ValueError(
          f"Table {name!r}: the array has shape {tuple(shape)}, not"
          " [vocabulary_size, embedding_dim]."
      )
    self._array = array
    self.rows, self.columns = (int(size) for size in shape)
    first = np.asarray(array[0:1])
    self.dtype = first.dtype
    # JAX, and not NumPy, knows that bfloat16 of ml_dtypes is a kind of float.
    if not jnp.issubdtype(self.dtype, jnp.floating):
      raise ValueError(
          f"Table {name!r}: the array is {self.dtype.name}, not of floating"
          " point numbers."
      )
    self.block_rows = rows_per_block(
        self.rows, max(first.nbytes, 1), BLOCK_BYTES
    )

  def blocks(self, ranges: Sequence[Range]) -> Iterator[tuple[int, np.ndarray]]:
    for first, end in ranges:
      yield first, np.array(self._array[first:end])

  def write(self, first: int, values: np.ndarray) -> None:
    self._array[first : first + len(values)] = values


class Converted:
  """A sink that converts rows to another type for the sink behind it.

  To nearest, ties to even. A finite number beyond the range of the type is an
  error.

  Args:
    sink: gets the converted rows.
    dtype: its type.
    variable: what the rows are of, for errors.
  """

  def __init__(self, sink: RowSink, dtype: np.dtype, variable: Variable):
    self._sink = sink
    self._dtype = dtype
    self._variable = variable

  def write(self, first: int, values: np.ndarray) -> Pending | None:
    if values.dtype == self._dtype:
      return self._sink.write(first, values)
    with np.errstate(over="ignore"):
      converted = values.astype(self._dtype)
    too_large = np.isinf(converted.astype(np.float32)) & np.isfinite(values)
    if too_large.any():
      row, column = np.argwhere(too_large)[0]
      raise ValueError(
          f"{self._variable}: row {first + row} has {values[row, column]} in"
          f" column {column}, which is not a {self._dtype.name}, the type of"
          " the table in the specs. Keep the type of the checkpoint,"
          f" {values.dtype.name}, or clip the table first."
      )
    return self._sink.write(first, converted)
