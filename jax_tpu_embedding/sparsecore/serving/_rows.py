# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows of served tables: safetensors files, checked against their manifest.

Size, header and checksums must be what the manifest says.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
from typing import BinaryIO
import zlib

from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

_MAX_HEADER_BYTES = 100 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
  """Rows of a table that a delta changes."""

  rows: np.ndarray  # int64[k], ascending
  values: np.ndarray  # uint8[k, row_bytes]
  deleted: np.ndarray  # int64[d], ascending


def _parse_header(path: pathlib.Path, head: bytes, size: int) -> _files.Fields:
  """The header of a safetensors file, from its first bytes."""
  length = int.from_bytes(head[:8], "little")
  _files.require(
      len(head) >= 8 and 8 + length <= min(size, _MAX_HEADER_BYTES),
      path,
      f"its header has {length} bytes and it has {size}, expected a safetensors"
      " file.",
  )
  try:
    value = json.loads(head[8 : 8 + length])
  except (ValueError, RecursionError) as error:
    raise _files.ServedFileError(
        f"{path}: its header is no JSON ({error})."
    ) from None
  return _files.Fields(path, "the header", value)


def _tensor(
    header: _files.Fields,
    name: str,
    dtype: str,
    shape: Sequence[int],
    size: int,
) -> int:
  """Where a tensor begins, after the header; it must be as described."""
  fields = _files.Fields(
      header.path, f"tensor {name!r}", header.value.get(name)
  )
  offsets = fields.get("data_offsets", list)
  found = fields.value.get("dtype"), fields.value.get("shape")
  begin = offsets[0] if offsets and type(offsets[0]) is int else -1
  _files.require(
      found == (dtype, list(shape))
      and begin >= 0
      and offsets == [begin, begin + size],
      header.path,
      f"tensor {name!r} is {found[0]}{found[1]} at {offsets!r:.80}, expected"
      f" {dtype}{list(shape)} of {size} bytes.",
  )
  return begin


def _values_shape(table: _versions.Table, rows: int) -> list[int]:
  is_coded = _versions.TENSOR_TYPES[table.encoding] == "U8"
  return [rows, table.row_bytes if is_coded else table.columns]


def check_full_file(
    table: _versions.Table, file: _versions.File, verify: bool
) -> None:
  """Checks size and header, and with `verify` every byte."""
  expected = _expected_rows(table, file)
  try:
    with _files.open_file(file.path) as opened:
      _check_head(table, file, opened)
      if verify:
        for _ in _checked_bytes(file, opened, expected):
          pass
  except OSError as error:
    raise _files.unreadable(file.path, expected, error) from error


def _expected_rows(table: _versions.Table, file: _versions.File) -> str:
  end = file.first_row + file.rows
  return f"rows {file.first_row} to {end} of table {table.name!r}"


def _check_head(
    table: _versions.Table, file: _versions.File, opened: BinaryIO
) -> None:
  """Checks size and header."""
  size = os.fstat(opened.fileno()).st_size
  # A header has one tensor, and comes before the rows.
  head = opened.read(min(file.offset, _MAX_HEADER_BYTES))
  _files.require(
      size == file.bytes,
      file.path,
      f"it has {size} bytes, expected {file.bytes}: it was cut off, or is of"
      " another version.",
  )
  header = _parse_header(file.path, head, len(head))
  begin = _tensor(
      header,
      table.name,
      _versions.TENSOR_TYPES[table.encoding],
      _values_shape(table, file.rows),
      file.rows * table.row_bytes,
  )
  begin += 8 + int.from_bytes(head[:8], "little")
  _files.require(
      begin == file.offset,
      file.path,
      f"its rows begin at byte {begin}, expected {file.offset}.",
  )


def _checked_bytes(
    file: _versions.File, opened: BinaryIO, expected: str
) -> Iterator[tuple[int, bytes]]:
  """Reads all of them, where they begin, in pieces of which each was checked."""
  opened.seek(0)
  for i in range(len(file.crc32)):
    begin = i * _versions.CHECKED_BYTES
    chunk = opened.read(min(_versions.CHECKED_BYTES, file.bytes - begin))
    end = begin + len(chunk)
    _files.require(
        end == min(begin + _versions.CHECKED_BYTES, file.bytes),
        file.path,
        f"it was cut off at byte {end} while it was read, expected {expected}.",
    )
    _check_crc32(file, i, chunk)
    yield begin, chunk


def _check_crc32(
    file: _versions.File, i: int, chunk: bytes | np.ndarray
) -> None:
  expected = file.crc32[i]
  found = f"{zlib.crc32(chunk):08x}"
  _files.require(
      found == expected,
      file.path,
      f"the crc32 of its bytes from {i * _versions.CHECKED_BYTES} on is {found}, expected"
      f" {expected}: it is damaged.",
  )


def read_rows(
    table: _versions.Table, file: _versions.File
) -> Iterator[np.ndarray]:
  """The rows of a full file, in order, u8[n, row_bytes], every byte checked."""
  expected = _expected_rows(table, file)
  end = file.offset + file.rows * table.row_bytes
  left = b""  # of a row that goes on in the next piece
  try:
    with _files.open_file(file.path) as opened:
      _check_head(table, file, opened)
      for begin, chunk in _checked_bytes(file, opened, expected):
        data = left + chunk[max(file.offset - begin, 0) : max(end - begin, 0)]
        num_bytes = len(data) // table.row_bytes * table.row_bytes
        left = data[num_bytes:]
        rows = np.frombuffer(data[:num_bytes], np.uint8)
        yield rows.reshape(-1, table.row_bytes)
  except OSError as error:
    raise _files.unreadable(file.path, expected, error) from error


def read_changes(
    table: _versions.Table, *, in_place: bool = False
) -> list[Changes]:
  """The changes of a table of a delta, file by file, every byte checked.

  Args:
    table: of the delta.
    in_place: whether to map the files, which nobody may change then; else they
      are read into memory, so that what is checked is what is used.
  """
  # Rows ascend from file to file; those that are deleted are in the first one.
  return [
      _read_changes(table, file, 0 if i else table.deleted_rows, in_place)
      for i, file in enumerate(table.files)
  ]


def _read_changes(
    table: _versions.Table,
    file: _versions.File,
    deleted_rows: int,
    in_place: bool,
) -> Changes:
  expected = f"changes of table {table.name!r}"
  data = (
      _files.mapped(file.path, expected)
      if in_place
      else np.frombuffer(_files.read(file.path, expected, file.bytes), np.uint8)
  )
  _files.require(
      data.size == file.bytes,
      file.path,
      f"it has {data.size} bytes, expected {file.bytes}.",
  )
  for i in range(len(file.crc32)):
    chunk = data[
        i * _versions.CHECKED_BYTES : (i + 1) * _versions.CHECKED_BYTES
    ]
    _check_crc32(file, i, chunk)
  header = _parse_header(
      file.path, data[: file.offset].tobytes(), min(file.offset, data.size)
  )
  after = 8 + int(data[:8].view("<u8")[0])

  def read(suffix, dtype, shape, size):
    begin = after + _tensor(
        header, f"{table.name}.{suffix}", dtype, shape, size
    )
    _files.require(
        begin + size <= data.size,
        file.path,
        f"tensor {suffix!r} ends at {begin + size}, beyond its {data.size}.",
    )
    return data[begin : begin + size]

  # The header ends before the first tensor, wherever that is.
  k, d = file.rows, deleted_rows
  return Changes(
      rows=np.frombuffer(read("rows", "I64", [k], 8 * k).tobytes(), "<i8"),
      values=read(
          "values",
          _versions.TENSOR_TYPES[table.encoding],
          _values_shape(table, k),
          k * table.row_bytes,
      ).reshape(k, table.row_bytes),
      deleted=np.frombuffer(
          read("deleted", "I64", [d], 8 * d).tobytes(), "<i8"
      ),
  )
