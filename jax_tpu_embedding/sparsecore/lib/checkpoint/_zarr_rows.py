# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows in files: zarr arrays [rows, columns] in chunks of rows.

Zarr version 3, one directory per variable, every chunk with a CRC-32C. A chunk
is there even if it is zero: one that is missing is an error, never zeros.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import json
import os
import stat
from typing import Any

from jax_tpu_embedding.sparsecore.lib.checkpoint import _chunk_files
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
import numpy as np
import tensorstore

# Chunks that are read ahead: one is used while another one is read.
_READ_AHEAD = 2

COMPRESSIONS = (None, "zstd")


def absolute(path: str | os.PathLike[str], argument: str = "path") -> str:
  """An absolute path, or a URL, as Directory takes it.

  Args:
    path: what a user gave.
    argument: as what, for the message.

  Raises:
    TypeError: it is something else, such as bytes.
    ValueError: nothing can have this name.
  """
  found = os.fspath(path) if isinstance(path, os.PathLike) else path
  if not isinstance(found, str):
    raise TypeError(
        f"{argument} must be a str or a pathlib.Path, got {path!r}."
    )
  try:
    is_name = b"\0" not in os.fsencode(found)
  except UnicodeEncodeError:
    is_name = False
  if not is_name:
    raise ValueError(f"{argument} {found!r} is no name of a directory.")
  return found if "://" in found else os.path.abspath(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayFormat:
  """What the metadata of an array follows from."""

  rows: int
  columns: int
  dtype: str
  chunk_rows: int
  compression: str | None = None

  def metadata(self) -> dict[str, Any]:
    """Its zarr.json."""
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if self.compression is not None:
      codecs.append({"name": self.compression, "configuration": {"level": 1}})
    codecs.append({"name": "crc32c"})
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [self.rows, self.columns],
        "data_type": self.dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [self.chunk_rows, self.columns]},
        },
        "chunk_key_encoding": {
            "name": "default",
            "configuration": {"separator": "."},
        },
        "fill_value": 0.0,
        "codecs": codecs,
    }

  @property
  def numpy_dtype(self) -> np.dtype:
    return np.dtype(tensorstore.dtype(self.dtype).numpy_dtype)

  def ranges(self) -> list[_row_blocks.Range]:
    return _row_blocks.ranges_of(self.rows, self.chunk_rows)


class Directory:
  """A directory of files and arrays, local or of an object store.

  Args:
    path: a path, or a URL that tensorstore knows, such as gs://bucket/path.

  Raises:
    CheckpointError: it does not know the URL.
  """

  def __init__(self, path: str):
    if "://" in path:
      try:
        spec = tensorstore.KvStore.Spec(path.rstrip("/") + "/")
      except ValueError as error:
        raise _row_blocks.CheckpointError(
            f"There can be no checkpoint at {path}: {error}"
        ) from error
      self._spec = spec.to_json()
    else:
      # Not as a URL: names may have any character.
      self._spec = {"driver": "file", "path": path.rstrip("/") + "/"}
    self.path = path
    self._buffers = _row_blocks.Buffers()
    # Directory -> the files in it that were written here. Tensorstore, which
    # would see to directories, does not write all of them.
    self._written: dict[str, set[str]] = {}

  @property
  def _is_local(self) -> bool:
    return "://" not in self.path

  @property
  def kvstore_spec(self) -> dict[str, Any]:
    """As tensorstore describes it; its "path" ends in a slash."""
    return self._spec

  def __truediv__(self, name: str) -> Directory:
    return Directory(f"{self.path.rstrip('/')}/{name}")

  @functools.cached_property
  def _files(self) -> tensorstore.KvStore:
    return tensorstore.KvStore.open(
        self._spec, context=_chunk_files.context()
    ).result()

  def read_file(self, name: str) -> bytes | None:
    """The contents; None if there is no such file.

    Raises:
      CheckpointError: it cannot be read.
    """
    try:
      if self._is_local:
        _refuse_pipe(f"{self.path}/{name}")
      found = self._files.read(name).result()
    except (OSError, ValueError) as error:
      raise _row_blocks.CheckpointError(
          f"Cannot read {self.path}/{name}: {error}"
      ) from error
    return found.value if found.state == "value" else None

  def file_names(self) -> list[str]:
    """Of the files in it, without those in directories in it."""
    return [name for name in self.all_file_names() if "/" not in name]

  def directory_names(self) -> list[str]:
    """Of the directories in it that have files."""
    return sorted({n.split("/")[0] for n in self.all_file_names() if "/" in n})

  def all_file_names(self) -> list[str]:
    """Of files in it, and in directories in it."""
    try:
      return sorted(name.decode() for name in self._files.list().result())
    except (OSError, ValueError) as error:
      raise _row_blocks.CheckpointError(
          f"Cannot list {self.path}: {error}"
      ) from error

  def write_file(self, name: str, contents: bytes) -> None:
    """Writes a file.

    Raises:
      CheckpointError: it cannot be written.
    """
    try:
      self._files.write(name, contents).result()
    except (OSError, ValueError) as error:
      raise _row_blocks.CheckpointError(
          f"Cannot write {self.path}/{name}: {error}"
      ) from error

  def create_array(
      self,
      name: str,
      array: ArrayFormat,
      variable: _row_blocks.Variable,
      *,
      with_metadata: bool = True,
  ) -> ZarrRows:
    """A new array.

    Args:
      name: its directory.
      array: its format.
      variable: what it is for, for errors.
      with_metadata: whether to write zarr.json: one of several processes does.

    Raises:
      CheckpointError: it cannot be written.
    """
    if with_metadata:
      try:
        (self / name).write_file(
            "zarr.json", json.dumps(array.metadata(), sort_keys=True).encode()
        )
      except _row_blocks.CheckpointError as error:
        raise _row_blocks.CheckpointError(f"{variable}: {error}") from error
    rows = self._rows(name, array, variable)
    if with_metadata:
      rows.written.add("zarr.json")
    if self._is_local:
      root = self.path.rstrip("/")
      directory = f"{root}/{name}"
      try:
        os.makedirs(directory, exist_ok=True)
      except OSError as error:
        raise _row_blocks.CheckpointError(
            f"Cannot write {variable} to {directory}: {error}"
        ) from error
      self._written[directory] = rows.written
      while (directory := os.path.dirname(directory)) != root:
        self._written.setdefault(directory, set())
    return rows

  def sync(self) -> None:
    """Waits until the disk has the names of all files in new arrays.

    Raises:
      CheckpointError: it cannot be written, or a file that was written is gone.
    """
    try:
      _chunk_files.sync(self._written)
      gone = [
          f"{directory}/{name}"
          for directory, names in self._written.items()
          for name in sorted(names.difference(os.listdir(directory)))
      ]
    except OSError as error:
      raise _row_blocks.CheckpointError(
          f"Cannot write to {self.path}: {error}"
      ) from error
    if gone:
      raise _row_blocks.CheckpointError(
          f"Of what was written to {self.path}, {len(gone)} files are gone, the"
          f" first of them {gone[0]}: something else removed them. Save again."
      )

  def open_array(
      self, name: str, array: ArrayFormat, variable: _row_blocks.Variable
  ) -> ZarrRows:
    """The rows of an array that must be in this format.

    Raises:
      CheckpointError: it is not, or there is none.
    """
    text = (self / name).read_file("zarr.json")
    where = f"{self.path}/{name}/zarr.json"
    if text is None:
      raise _row_blocks.CheckpointError(
          f"{variable}: there is no {where}. The checkpoint is not complete."
      )
    try:
      found = json.loads(text)
    except ValueError as error:
      raise _row_blocks.CheckpointError(
          f"{variable}: {where} is damaged: {error}"
      ) from error
    expected = array.metadata()
    if found != expected:
      found = found if isinstance(found, dict) else {}
      fields = sorted(
          key
          for key in {*found, *expected}
          if found.get(key) != expected.get(key)
      )
      raise _row_blocks.CheckpointError(
          f"{variable}: {where} is damaged, or of another checkpoint:"
          f" {', '.join(fields)} differ from what tables.json says."
      )
    return self._rows(name, array, variable)

  def _rows(
      self, name: str, array: ArrayFormat, variable: _row_blocks.Variable
  ) -> ZarrRows:
    where = f"{self.path}/{name}"
    if self._is_local and array.compression is None:
      chunks = _chunk_files.NativeChunks(
          where, array.chunk_rows, array.columns * array.numpy_dtype.itemsize
      )
      return ZarrRows(chunks, array, where, variable, self._buffers)
    spec = {
        "driver": "zarr3",
        "kvstore": {**self._spec, "path": f"{self._spec['path']}{name}/"},
        "metadata": array.metadata(),
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    # What zarr.json says is known, so nobody reads it again.
    store = tensorstore.open(
        spec, open=True, assume_metadata=True, context=_chunk_files.context()
    ).result()
    chunks = _chunk_files.StoreChunks(store)
    return ZarrRows(chunks, array, where, variable, self._buffers)


def _refuse_pipe(path: str) -> None:
  """Raises ValueError for what would be waited for, as by all other reads."""
  try:
    mode = os.stat(path).st_mode
  except (OSError, ValueError):
    return  # Whoever reads it says it.
  if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
    raise ValueError(
        f"{path} is no regular file. Put the file of the checkpoint there."
    )


class ZarrRows:
  """The rows of an array in files: a source and a sink.

  Args:
    chunks: of the array.
    array: its format.
    where: its directory, for errors.
    variable: what it has the rows of, for errors.
    buffers: that rows are read into.

  Attributes:
    written: the names of its files that were written here.
  """

  def __init__(
      self,
      chunks: _chunk_files.Chunks,
      array: ArrayFormat,
      where: str,
      variable: _row_blocks.Variable,
      buffers: _row_blocks.Buffers,
  ):
    self.rows = array.rows
    self.columns = array.columns
    self.block_rows = array.chunk_rows
    self.dtype = array.numpy_dtype
    self.written: set[str] = set()
    self._chunks = chunks
    self._where = where
    self._variable = variable
    self._buffers = buffers

  def blocks(
      self, ranges: Sequence[_row_blocks.Range]
  ) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks of all ranges, in every process.

    Args:
      ranges: chunks, or their first rows.

    Raises:
      CheckpointError: a chunk is damaged or missing.
    """
    reads = collections.deque()
    for i, (first, _) in enumerate(ranges):
      while len(reads) < min(_READ_AHEAD, len(ranges) - i):
        reads.append(self._read(*ranges[i + len(reads)]))
      values, is_read = reads.popleft()
      try:
        is_read.result()
      except (OSError, ValueError) as error:
        raise _row_blocks.CheckpointError(
            f"{self._variable}: rows from {first} on in {self._where} are"
            f" damaged or missing: {error}"
        ) from error
      yield first, values

  def _read(
      self, first: int, end: int
  ) -> tuple[np.ndarray, _row_blocks.Pending]:
    """The array into which rows are being read, and what waits for its end."""
    values = self._buffers.take((end - first, self.columns), self.dtype)
    return values, self._chunks.read(first, values)

  def write(self, first: int, values: np.ndarray) -> _Write:
    written = self._chunks.write(first, values)
    self.written.add(_chunk_files.name_of(first // self.block_rows))
    return _Write(written, self._variable, self._where)


class _Write:
  """A block on its way to the disk."""

  def __init__(
      self,
      written: _row_blocks.Pending,
      variable: _row_blocks.Variable,
      where: str,
  ):
    self._written = written
    self._variable = variable
    self._where = where

  def result(self) -> None:
    try:
      self._written.result()
    except (OSError, ValueError) as error:
      raise _row_blocks.CheckpointError(
          f"Cannot write {self._variable} to {self._where}: {error}"
      ) from error
