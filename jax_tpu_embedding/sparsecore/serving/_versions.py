# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions of served tables on disk: which one is current, and what it is.

A directory has CURRENT, a line with the number of a version, its directory and
the crc32 of its manifest, and a directory for each version. A version is full,
or a delta that names the version it changes. Format version 1.

What is read is checked before it is used: sizes, headers and checksums say that
a file is what its manifest says, and checksums of manifests that the chain of
versions is the one that CURRENT means. Nothing else in the directory is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import errno
import json
import math
import os
import pathlib
import re
import stat
from typing import Any
from typing import BinaryIO
import zlib

import numpy as np

FORMAT = "jax_tpu_embedding.tables"
FORMAT_VERSION = 1
CHECKED_BYTES = 4 << 20
_COMBINERS = ("sum", "mean", "sqrtn")
# The types of tensors that have rows of an encoding.
TENSOR_TYPES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int8": "U8",
    "int4": "U8",
}
_MAX_HEADER_BYTES = 100 << 20
# More than any writer needs. What is larger is not read, as it may not fit into
# memory.
_MAX_CURRENT_BYTES = 100
_MAX_MANIFEST_BYTES = 1 << 30
# Of any number in a manifest, as in C++, where sums of some of them fit 64 bits.
_MAX_NUMBER = 1 << 60


class ServedFileError(ValueError):
  """A file of a served version is missing, damaged or of another version."""


class NewerFormatError(ServedFileError):
  """A manifest of a format that a later version of the library writes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
  path: pathlib.Path
  first_row: int
  rows: int
  offset: int  # the first byte of the rows
  bytes: int
  crc32: Sequence[str]  # of each 4 MiB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """A table of a version; of a delta, its changes."""

  name: str
  rows: int
  columns: int
  row_bytes: int
  encoding: str
  combiner: str
  files: Sequence[File]
  changed_rows: int
  deleted_rows: int

  def layout(self) -> tuple[Any, ...]:
    """What deltas cannot change."""
    return (
        self.rows,
        self.columns,
        self.row_bytes,
        self.encoding,
        self.combiner,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
  """A feature of a version."""

  table: str
  columns: int  # of its activations: the first ones of the table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
  """A manifest."""

  path: pathlib.Path  # of the manifest
  number: int
  crc32: str
  base: tuple[int, str] | None  # number and crc32; of deltas
  run: str
  step: int | None
  tables: Mapping[str, Table]
  features: Mapping[str, Feature] | None

  def key(self) -> tuple[int, str]:
    return self.number, self.crc32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
  """Rows of a table that a delta changes."""

  rows: np.ndarray  # int64[k], ascending
  values: np.ndarray  # uint8[k, row_bytes]
  deleted: np.ndarray  # int64[d], ascending


def row_bytes(encoding: str, columns: int) -> int:
  return {
      "float32": 4 * columns,
      "bfloat16": 2 * columns,
      "float16": 2 * columns,
      "int8": (columns + 3) // 4 * 4 + 8,
      "int4": (columns + 1) // 2 + 4,
  }[encoding]


def _require(claim: bool, path: pathlib.Path, found: str) -> None:
  if not claim:
    raise ServedFileError(f"{path}: {found}")


class _Fields:
  """An object of a manifest, whose fields are read with their types."""

  def __init__(self, path: pathlib.Path, where: str, value: Any):
    _require(
        isinstance(value, dict),
        path,
        f"{where} is {value!r:.80}, expected an object.",
    )
    self.path, self.where, self.value = path, where, value

  def get(self, key: str, *kinds: type, least: int = 0) -> Any:
    """The field; numbers are at least `least`, and bools are no numbers."""
    value = self.value.get(key)
    fits = type(value) in kinds and (
        type(value) is not int or least <= value <= _MAX_NUMBER
    )
    names = " or ".join(
        "null" if kind is type(None) else kind.__name__ for kind in kinds
    )
    _require(
        fits,
        self.path,
        f"{key!r} of {self.where} is {value!r:.80}, expected {names}"
        + (f" from {least} to 2^60." if int in kinds else "."),
    )
    return value

  def choice(self, key: str, choices: Sequence[str]) -> str:
    value = self.get(key, str)
    _require(
        value in choices,
        self.path,
        f"{key!r} of {self.where} is {value!r}, expected one of"
        f" {', '.join(choices)}.",
    )
    return value

  def objects(self, key: str) -> list[tuple[str, _Fields]]:
    return [
        (name, _Fields(self.path, f"{name!r} of {self.where}", value))
        for name, value in self.get(key, dict).items()
    ]


def as_directory(path: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a directory, which need not be there.

  Raises:
    ValueError: none can have this name.
  """
  directory = pathlib.Path(path)
  try:
    is_name = b"\0" not in os.fsencode(directory)
  except UnicodeEncodeError:
    is_name = False
  if not is_name:
    raise ValueError(f"{str(directory)!r} is no name of a directory.")
  return directory


def open_file(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
  """Opens a regular file.

  Raises:
    OSError: it cannot be opened, or is something else, such as a pipe, which
      might be waited for.
  """
  file = open(path, "rb", buffering, opener=_open_at_once)
  if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    file.close()
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
  return file


def _open_at_once(path: str, flags: int) -> int:
  # Windows has no such pipes.
  return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: pathlib.Path, expected: str, max_bytes: int) -> bytes:
  try:
    with open_file(path) as file:
      size = os.fstat(file.fileno()).st_size
      _require(
          size <= max_bytes,
          path,
          f"it has {size} bytes, expected {expected}, of at most {max_bytes}.",
      )
      return file.read()
  except OSError as error:
    raise _unreadable(path, expected, error) from error
  except MemoryError as error:
    raise MemoryError(
        f"{path}: there is no memory for its {size} bytes, {expected}. Give the"
        " process more."
    ) from error


def _unreadable(
    path: pathlib.Path, expected: str, error: OSError
) -> ServedFileError:
  return ServedFileError(
      f"{path}: cannot be read ({error.strerror}), expected {expected}."
  )


def _mapped(path: pathlib.Path, expected: str) -> np.ndarray:
  try:
    with open_file(path) as file:
      return np.memmap(file, np.uint8, "r")
  except (OSError, ValueError) as error:  # ValueError: it is empty
    raise ServedFileError(
        f"{path}: cannot be mapped ({error}), expected {expected}."
    ) from error


def read_current(directory: pathlib.Path) -> tuple[int, str]:
  """Number and crc32 of the current version."""
  path = directory / "CURRENT"
  text = _read(
      path, "the line that names the current version", _MAX_CURRENT_BYTES
  )
  match = re.fullmatch(rb"(\d{1,18}) (\S+) ([0-9a-f]{8})\n", text)
  _require(
      match is not None,
      path,
      f"the line is {text[:80]!r}, expected a number, a directory and the"
      " crc32 of its manifest.",
  )
  number, crc32 = int(match[1]), match[3].decode()
  name = directory_of(number)
  _require(
      match[2].decode(errors="replace") == name,
      path,
      f"it names {match[2].decode(errors='replace')!r}, expected {name!r}, the"
      f" directory of version {number}.",
  )
  return number, crc32


def directory_of(number: int) -> str:
  return f"v{number:06d}"


def _is_text(name: str) -> bool:
  """Whether it is UTF-8 elsewhere: JSON may have half of a character."""
  try:
    name.encode()
  except UnicodeEncodeError:
    return False
  return True


def _is_file_name(name: str) -> bool:
  """Whether it names a file of a directory, and nothing else."""
  try:
    os.fsencode(name)
  except UnicodeEncodeError:  # It is no text.
    return False
  return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _read_file(
    version: pathlib.Path, fields: _Fields, table_row_bytes: int
) -> File:
  name = fields.get("name", str)
  _require(
      _is_file_name(name),
      fields.path,
      f"'name' of {fields.where} is {name!r}, expected a file beside it.",
  )
  file = File(
      path=version / name,
      first_row=fields.get("first_row", int),
      rows=fields.get("rows", int),
      offset=fields.get("offset", int),
      bytes=fields.get("bytes", int),
      crc32=fields.get("crc32", list),
  )
  _require(
      file.offset + file.rows * table_row_bytes <= file.bytes,
      fields.path,
      f"{fields.where}: {file.rows} rows of {table_row_bytes} bytes from byte"
      f" {file.offset} on do not fit its {file.bytes} bytes.",
  )
  chunks = math.ceil(file.bytes / CHECKED_BYTES)
  _require(
      len(file.crc32) == chunks,
      fields.path,
      f"{fields.where} has {len(file.crc32)} checksums, expected {chunks}, one"
      " for each 4 MiB.",
  )
  wrong = [checksum for checksum in file.crc32 if not isinstance(checksum, str)]
  _require(
      not wrong,
      fields.path,
      f"'crc32' of {fields.where} has {wrong!r:.80}, expected str alone.",
  )
  return file


def _read_table(
    version: pathlib.Path, name: str, fields: _Fields, is_delta: bool
) -> Table:
  """Checks a table of a manifest; `files` of a full one have all rows."""
  _require(
      _is_text(name),
      fields.path,
      f"{fields.where} has a name with half of a character, expected UTF-8.",
  )
  rows, columns = fields.get("rows", int), fields.get("columns", int, least=1)
  encoding = fields.choice("encoding", tuple(TENSOR_TYPES))
  _require(
      columns < 1 << 24,
      fields.path,
      f"{fields.where} has {columns} columns, expected fewer than 2^24.",
  )
  expected = row_bytes(encoding, columns)
  found = fields.get("row_bytes", int)
  _require(
      found == expected,
      fields.path,
      f"'row_bytes' of {fields.where} is {found}, expected {expected} for"
      f" {columns} columns of {encoding}.",
  )
  changed = fields.get("changed_rows", int) if is_delta else 0
  deleted = fields.get("deleted_rows", int) if is_delta else 0
  listed = fields.get("files", list)
  files = [
      _read_file(
          version,
          _Fields(fields.path, f"file {i} of {fields.where}", value),
          found,
      )
      for i, value in enumerate(listed)
  ]
  if is_delta:
    in_files = sum(file.rows for file in files)
    _require(
        in_files == changed and bool(files) == (changed + deleted > 0),
        fields.path,
        f"{fields.where} has {len(files)} files with {in_files} rows, expected"
        f" {changed} changed and {deleted} deleted rows in them.",
    )
  else:
    next_row = 0
    for file in files:
      _require(
          file.first_row == next_row,
          fields.path,
          f"{fields.where}: {file.path.name} begins with row {file.first_row},"
          f" expected {next_row}.",
      )
      next_row += file.rows
    _require(
        next_row == rows,
        fields.path,
        f"{fields.where}: its files have {next_row} rows, expected {rows}.",
    )
  return Table(
      name=name,
      rows=rows,
      columns=columns,
      row_bytes=found,
      encoding=encoding,
      combiner=fields.choice("combiner", _COMBINERS),
      files=files,
      changed_rows=changed,
      deleted_rows=deleted,
  )


def _read_features(
    manifest: _Fields, tables: Mapping[str, Table]
) -> dict[str, Feature] | None:
  if "features" not in manifest.value:
    return None
  features = {}
  for name, fields in manifest.objects("features"):
    table = tables[fields.choice("table", tuple(tables))]
    columns = table.columns
    if "columns" in fields.value:
      columns = fields.get("columns", int, least=1)
    _require(
        columns <= table.columns,
        fields.path,
        f"{fields.where} has {columns} columns, expected at most the"
        f" {table.columns} of table {table.name!r}.",
    )
    features[name] = Feature(table=table.name, columns=columns)
  return features


def read_version(directory: pathlib.Path, number: int, crc32: str) -> Version:
  """The manifest of a version, which must have this checksum."""
  path = directory / directory_of(number) / "manifest.json"
  text = _read(path, f"the manifest of version {number}", _MAX_MANIFEST_BYTES)
  found = f"{zlib.crc32(text):08x}"
  _require(
      found == crc32,
      path,
      f"its crc32 is {found}, expected {crc32}: it is damaged, or of another"
      f" version {number}.",
  )
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ServedFileError(f"{path}: it is no JSON ({error}).") from error
  manifest = _Fields(path, "the manifest", value)
  manifest.choice("format", (FORMAT,))
  version = manifest.get("format_version", int)
  if version != FORMAT_VERSION:
    raise NewerFormatError(
        f"{path}: its format has version {version}, expected {FORMAT_VERSION}."
        " Install a newer jax_tpu_embedding."
    )
  file_format = value.get("file_format", "safetensors")
  _require(
      file_format == "safetensors",
      path,
      f"its files are {file_format!r:.80}, which only other programs read;"
      ' expected an export with file_format="safetensors".',
  )
  found = manifest.get("version", int)
  _require(found == number, path, f"it is of version {found}, not {number}.")
  is_delta = manifest.choice("kind", ("full", "delta")) == "delta"
  base = None
  if is_delta:
    fields = _Fields(path, "'base'", value.get("base"))
    base = fields.get("version", int), fields.get("manifest_crc32", str)
    _require(
        base[0] < number,
        path,
        f"its base is version {base[0]}, expected one before {number}.",
    )
  tables = {
      name: _read_table(path.parent, name, fields, is_delta)
      for name, fields in manifest.objects("tables")
  }
  return Version(
      path=path,
      number=number,
      crc32=crc32,
      base=base,
      run=manifest.get("run", str),
      step=manifest.get("step", int, type(None)),
      tables=tables,
      features=_read_features(manifest, tables),
  )


def read_chain(
    directory: pathlib.Path,
    *,
    version: tuple[int, str] | None = None,
    stop_at: tuple[int, str] | None = None,
) -> list[Version]:
  """A version and those it is made of, the oldest first.

  Args:
    directory: of the versions.
    version: its key; default: that of the current one.
    stop_at: key of a version that is loaded. If the other one is made of it,
      the list has what comes after.

  Returns:
    A full version and deltas, or deltas that begin with a change of `stop_at`.
  """
  number, crc32 = version or read_current(directory)
  chain = []
  while (number, crc32) != stop_at:
    version = read_version(directory, number, crc32)
    chain.append(version)
    if version.base is None:
      break
    number, crc32 = version.base
  return chain[::-1]


def check_follows(
    run: str, tables: Mapping[str, Table], delta: Version
) -> None:
  """A delta must be of the run of its base, and of its tables."""
  _require(
      delta.run == run,
      delta.path,
      f"it is of run {delta.run}, and its base of run {run}.",
  )
  for name, table in delta.tables.items():
    expected = tables[name].layout() if name in tables else None
    _require(
        table.layout() == expected,
        delta.path,
        f"table {name!r} has {table.layout()} (rows, columns, bytes of a row,"
        f" encoding, combiner), expected {expected}, those of its base.",
    )


def _parse_header(path: pathlib.Path, head: bytes, size: int) -> _Fields:
  """The header of a safetensors file, from its first bytes."""
  length = int.from_bytes(head[:8], "little")
  _require(
      len(head) >= 8 and 8 + length <= min(size, _MAX_HEADER_BYTES),
      path,
      f"its header has {length} bytes and it has {size}, expected a safetensors"
      " file.",
  )
  try:
    value = json.loads(head[8 : 8 + length])
  except (ValueError, RecursionError) as error:
    raise ServedFileError(f"{path}: its header is no JSON ({error}).") from None
  return _Fields(path, "the header", value)


def _tensor(
    header: _Fields, name: str, dtype: str, shape: Sequence[int], size: int
) -> int:
  """Where a tensor begins, after the header; it must be as described."""
  fields = _Fields(header.path, f"tensor {name!r}", header.value.get(name))
  offsets = fields.get("data_offsets", list)
  found = fields.value.get("dtype"), fields.value.get("shape")
  begin = offsets[0] if offsets and type(offsets[0]) is int else -1
  _require(
      found == (dtype, list(shape))
      and begin >= 0
      and offsets == [begin, begin + size],
      header.path,
      f"tensor {name!r} is {found[0]}{found[1]} at {offsets!r:.80}, expected"
      f" {dtype}{list(shape)} of {size} bytes.",
  )
  return begin


def _values_shape(table: Table, rows: int) -> list[int]:
  is_coded = TENSOR_TYPES[table.encoding] == "U8"
  return [rows, table.row_bytes if is_coded else table.columns]


def check_full_file(table: Table, file: File, verify: bool) -> None:
  """Checks size and header, and with `verify` every byte."""
  expected = _expected_rows(table, file)
  try:
    with open_file(file.path) as opened:
      _check_head(table, file, opened)
      if verify:
        for _ in _checked_bytes(file, opened, expected):
          pass
  except OSError as error:
    raise _unreadable(file.path, expected, error) from error


def _expected_rows(table: Table, file: File) -> str:
  end = file.first_row + file.rows
  return f"rows {file.first_row} to {end} of table {table.name!r}"


def _check_head(table: Table, file: File, opened: BinaryIO) -> None:
  """Checks size and header."""
  size = os.fstat(opened.fileno()).st_size
  # A header has one tensor, and comes before the rows.
  head = opened.read(min(file.offset, _MAX_HEADER_BYTES))
  _require(
      size == file.bytes,
      file.path,
      f"it has {size} bytes, expected {file.bytes}: it was cut off, or is of"
      " another version.",
  )
  header = _parse_header(file.path, head, len(head))
  begin = _tensor(
      header,
      table.name,
      TENSOR_TYPES[table.encoding],
      _values_shape(table, file.rows),
      file.rows * table.row_bytes,
  )
  begin += 8 + int.from_bytes(head[:8], "little")
  _require(
      begin == file.offset,
      file.path,
      f"its rows begin at byte {begin}, expected {file.offset}.",
  )


def _checked_bytes(
    file: File, opened: BinaryIO, expected: str
) -> Iterator[tuple[int, bytes]]:
  """Reads all of them, where they begin, in pieces of which each was checked."""
  opened.seek(0)
  for i in range(len(file.crc32)):
    begin = i * CHECKED_BYTES
    chunk = opened.read(min(CHECKED_BYTES, file.bytes - begin))
    end = begin + len(chunk)
    _require(
        end == min(begin + CHECKED_BYTES, file.bytes),
        file.path,
        f"it was cut off at byte {end} while it was read, expected {expected}.",
    )
    _check_crc32(file, i, chunk)
    yield begin, chunk


def _check_crc32(file: File, i: int, chunk: bytes | np.ndarray) -> None:
  expected = file.crc32[i]
  found = f"{zlib.crc32(chunk):08x}"
  _require(
      found == expected,
      file.path,
      f"the crc32 of its bytes from {i * CHECKED_BYTES} on is {found}, expected"
      f" {expected}: it is damaged.",
  )


def read_rows(table: Table, file: File) -> Iterator[np.ndarray]:
  """The rows of a full file, in order, u8[n, row_bytes], every byte checked."""
  expected = _expected_rows(table, file)
  end = file.offset + file.rows * table.row_bytes
  left = b""  # of a row that goes on in the next piece
  try:
    with open_file(file.path) as opened:
      _check_head(table, file, opened)
      for begin, chunk in _checked_bytes(file, opened, expected):
        data = left + chunk[max(file.offset - begin, 0) : max(end - begin, 0)]
        num_bytes = len(data) // table.row_bytes * table.row_bytes
        left = data[num_bytes:]
        rows = np.frombuffer(data[:num_bytes], np.uint8)
        yield rows.reshape(-1, table.row_bytes)
  except OSError as error:
    raise _unreadable(file.path, expected, error) from error


def read_changes(table: Table, *, in_place: bool = False) -> list[Changes]:
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
    table: Table, file: File, deleted_rows: int, in_place: bool
) -> Changes:
  expected = f"changes of table {table.name!r}"
  data = (
      _mapped(file.path, expected)
      if in_place
      else np.frombuffer(_read(file.path, expected, file.bytes), np.uint8)
  )
  _require(
      data.size == file.bytes,
      file.path,
      f"it has {data.size} bytes, expected {file.bytes}.",
  )
  for i in range(len(file.crc32)):
    chunk = data[i * CHECKED_BYTES : (i + 1) * CHECKED_BYTES]
    _check_crc32(file, i, chunk)
  header = _parse_header(
      file.path, data[: file.offset].tobytes(), min(file.offset, data.size)
  )
  after = 8 + int(data[:8].view("<u8")[0])

  def read(suffix, dtype, shape, size):
    begin = after + _tensor(
        header, f"{table.name}.{suffix}", dtype, shape, size
    )
    _require(
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
          TENSOR_TYPES[table.encoding],
          _values_shape(table, k),
          k * table.row_bytes,
      ).reshape(k, table.row_bytes),
      deleted=np.frombuffer(
          read("deleted", "I64", [d], 8 * d).tobytes(), "<i8"
      ),
  )
