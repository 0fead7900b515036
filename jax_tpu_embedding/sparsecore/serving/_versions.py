# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions of served tables on disk: which one is current, and what it is.

A directory has CURRENT, a line with the number of a version, its directory and
the crc32 of its manifest, and a directory for each version. A version is full,
or a delta that names the version it changes. Format version 1.

What is read is checked before it is used: checksums of manifests say that the
chain of versions is the one that CURRENT means, and what they say of files
(_rows.py) that these are of it. Nothing else in the directory is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import re
from typing import Any
import zlib

from jax_tpu_embedding.sparsecore.serving import _files

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
# More than any writer needs. What is larger is not read, as it may not fit into
# memory.
_MAX_CURRENT_BYTES = 100
_MAX_MANIFEST_BYTES = 1 << 30


class NewerFormatError(_files.ServedFileError):
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


def row_bytes(encoding: str, columns: int) -> int:
  return {
      "float32": 4 * columns,
      "bfloat16": 2 * columns,
      "float16": 2 * columns,
      "int8": (columns + 3) // 4 * 4 + 8,
      "int4": (columns + 1) // 2 + 4,
  }[encoding]


def read_current(directory: pathlib.Path) -> tuple[int, str]:
  """Number and crc32 of the current version."""
  path = directory / "CURRENT"
  text = _files.read(
      path, "the line that names the current version", _MAX_CURRENT_BYTES
  )
  match = re.fullmatch(rb"(\d{1,18}) (\S+) ([0-9a-f]{8})\n", text)
  _files.require(
      match is not None,
      path,
      f"the line is {text[:80]!r}, expected a number, a directory and the"
      " crc32 of its manifest.",
  )
  number, crc32 = int(match[1]), match[3].decode()
  name = directory_of(number)
  _files.require(
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
    version: pathlib.Path, fields: _files.Fields, table_row_bytes: int
) -> File:
  name = fields.get("name", str)
  _files.require(
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
  _files.require(
      file.offset + file.rows * table_row_bytes <= file.bytes,
      fields.path,
      f"{fields.where}: {file.rows} rows of {table_row_bytes} bytes from byte"
      f" {file.offset} on do not fit its {file.bytes} bytes.",
  )
  chunks = math.ceil(file.bytes / CHECKED_BYTES)
  _files.require(
      len(file.crc32) == chunks,
      fields.path,
      f"{fields.where} has {len(file.crc32)} checksums, expected {chunks}, one"
      " for each 4 MiB.",
  )
  wrong = [checksum for checksum in file.crc32 if not isinstance(checksum, str)]
  _files.require(
      not wrong,
      fields.path,
      f"'crc32' of {fields.where} has {wrong!r:.80}, expected str alone.",
  )
  return file


def _read_table(
    version: pathlib.Path, name: str, fields: _files.Fields, is_delta: bool
) -> Table:
  """Checks a table of a manifest; `files` of a full one have all rows."""
  _files.require(
      _is_text(name),
      fields.path,
      f"{fields.where} has a name with half of a character, expected UTF-8.",
  )
  rows, columns = fields.get("rows", int), fields.get("columns", int, least=1)
  encoding = fields.choice("encoding", tuple(TENSOR_TYPES))
  _files.require(
      columns < 1 << 24,
      fields.path,
      f"{fields.where} has {columns} columns, expected fewer than 2^24.",
  )
  expected = row_bytes(encoding, columns)
  found = fields.get("row_bytes", int)
  _files.require(
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
          _files.Fields(fields.path, f"file {i} of {fields.where}", value),
          found,
      )
      for i, value in enumerate(listed)
  ]
  if is_delta:
    in_files = sum(file.rows for file in files)
    _files.require(
        in_files == changed and bool(files) == (changed + deleted > 0),
        fields.path,
        f"{fields.where} has {len(files)} files with {in_files} rows, expected"
        f" {changed} changed and {deleted} deleted rows in them.",
    )
  else:
    next_row = 0
    for file in files:
      _files.require(
          file.first_row == next_row,
          fields.path,
          f"{fields.where}: {file.path.name} begins with row {file.first_row},"
          f" expected {next_row}.",
      )
      next_row += file.rows
    _files.require(
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
    manifest: _files.Fields, tables: Mapping[str, Table]
) -> dict[str, Feature] | None:
  if "features" not in manifest.value:
    return None
  features = {}
  for name, fields in manifest.objects("features"):
    table = tables[fields.choice("table", tuple(tables))]
    columns = table.columns
    if "columns" in fields.value:
      columns = fields.get("columns", int, least=1)
    _files.require(
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
  text = _files.read(
      path, f"the manifest of version {number}", _MAX_MANIFEST_BYTES
  )
  found = f"{zlib.crc32(text):08x}"
  _files.require(
      found == crc32,
      path,
      f"its crc32 is {found}, expected {crc32}: it is damaged, or of another"
      f" version {number}.",
  )
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise _files.ServedFileError(f"{path}: it is no JSON ({error}).") from error
  manifest = _files.Fields(path, "the manifest", value)
  manifest.choice("format", (FORMAT,))
  version = manifest.get("format_version", int)
  if version != FORMAT_VERSION:
    raise NewerFormatError(
        f"{path}: its format has version {version}, expected {FORMAT_VERSION}."
        " Install a newer jax_tpu_embedding."
    )
  file_format = value.get("file_format", "safetensors")
  _files.require(
      file_format == "safetensors",
      path,
      f"its files are {file_format!r:.80}, which only other programs read;"
      ' expected an export with file_format="safetensors".',
  )
  found = manifest.get("version", int)
  _files.require(
      found == number, path, f"it is of version {found}, not {number}."
  )
  is_delta = manifest.choice("kind", ("full", "delta")) == "delta"
  base = None
  if is_delta:
    fields = _files.Fields(path, "'base'", value.get("base"))
    base = fields.get("version", int), fields.get("manifest_crc32", str)
    _files.require(
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
  _files.require(
      delta.run == run,
      delta.path,
      f"it is of run {delta.run}, and its base of run {run}.",
  )
  for name, table in delta.tables.items():
    expected = tables[name].layout() if name in tables else None
    _files.require(
        table.layout() == expected,
        delta.path,
        f"table {name!r} has {table.layout()} (rows, columns, bytes of a row,"
        f" encoding, combiner), expected {expected}, those of its base.",
    )
