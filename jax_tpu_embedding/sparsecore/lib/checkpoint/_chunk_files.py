# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Chunks of rows in files, one file each, in two ways that give equal files.

Natively (cc/files), where files are on this machine and not compressed: in one
pass, into and out of the memory of arrays. And by tensorstore, which knows what
else there is.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from concurrent import futures
import functools
import os
from typing import Protocol

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import pybind_checked_files
import numpy as np
import tensorstore

# Reads and writes at a time: each is a block in memory.
_CONCURRENCY = 2


class Chunks(Protocol):
  """Of an array [rows, columns]."""

  def read(self, first: int, values: np.ndarray) -> _row_blocks.Pending:
    """Begins to read a chunk, or its first rows, into `values`.

    Args:
      first: the row of the array where the chunk begins.
      values: [n, columns], contiguous.

    Returns:
      Raises OSError or ValueError, naming the file, if the chunk is damaged or
      missing.
    """

  def write(self, first: int, values: np.ndarray) -> _row_blocks.Pending:
    """Begins to write a chunk, which has the rows `values`."""


def name_of(chunk: int) -> str:
  """The file of a chunk, as the chunk grid of zarr.json says."""
  return f"c.{chunk}.0"


class NativeChunks:
  """In a directory of this machine.

  Args:
    directory: of the array.
    chunk_rows: of every chunk; the last one is filled with zeros, as zarr has
      it.
    row_bytes: of a row.
  """

  def __init__(self, directory: str, chunk_rows: int, row_bytes: int):
    self._directory = directory
    self._chunk_rows = chunk_rows
    self._num_bytes = chunk_rows * row_bytes

  def read(self, first: int, values: np.ndarray) -> futures.Future[None]:
    return self._begin(pybind_checked_files.read_checked, first, values)

  def write(self, first: int, values: np.ndarray) -> futures.Future[None]:
    return self._begin(
        pybind_checked_files.write_checked, first, np.ascontiguousarray(values)
    )

  def _begin(
      self, run: Callable[..., None], first: int, values: np.ndarray
  ) -> futures.Future[None]:
    chunk, within = divmod(first, self._chunk_rows)
    if within or len(values) > self._chunk_rows:
      raise ValueError(
          f"{self._directory}: rows [{first}, {first + len(values)}) are not of"
          f" one chunk from its first row on; chunks have {self._chunk_rows}."
      )
    path = f"{self._directory}/{name_of(chunk)}"
    return _threads().submit(run, path, values.view(np.uint8), self._num_bytes)


@functools.cache
def _threads() -> futures.Executor:
  return futures.ThreadPoolExecutor(_CONCURRENCY, "checkpoint files")


class StoreChunks:
  """In an array of tensorstore's.

  Args:
    store: the array.
  """

  def __init__(self, store: tensorstore.TensorStore):
    self._store = store

  def read(self, first: int, values: np.ndarray) -> tensorstore.Future:
    # Not read(), whose new memory JAX would mostly have to copy.
    target = tensorstore.array(values, context=context())
    source = self._store[first : first + len(values)].translate_to[0, 0]
    return target.write(source).commit

  def write(self, first: int, values: np.ndarray) -> tensorstore.Future:
    future = self._store[first : first + len(values)].write(
        values, can_reference_source_data_indefinitely=True
    )
    # Chunks are written when someone waits for them, unless this is said.
    future.commit.force()
    return future.commit


def sync(directories: Iterable[str]) -> None:
  """Waits until the disk has the names of the files in them.

  Raises:
    OSError: it cannot be written.
  """
  for directory in sorted(directories):
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


@functools.cache
def context() -> tensorstore.Context:
  """What tensorstore may do at a time."""
  return tensorstore.Context(
      {
          "cache_pool": {"total_bytes_limit": 0},
          "file_io_concurrency": {"limit": _CONCURRENCY},
          "data_copy_concurrency": {"limit": _CONCURRENCY},
      }
  )
