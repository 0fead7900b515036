# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables to files: every row, encoded, in logical order."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import math
import os
import pathlib
from typing import Any
import urllib.parse

from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import _table_files
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

# Called with a table's name, a row, and the encoded rows from it on.
Observer = Callable[[str, int, np.ndarray], None]


@dataclasses.dataclass
class Errors:
  """What encoding has lost, of the rows seen so far."""

  max_error: float = 0.0
  squared_error: float = 0.0
  num_values: int = 0

  def add(self, encoded: _encodings.EncodedRows, columns: int) -> None:
    self.max_error = max(self.max_error, encoded.max_error)
    self.squared_error += encoded.squared_error
    self.num_values += len(encoded.rows) * columns

  @property
  def rms_error(self) -> float:
    return math.sqrt(self.squared_error / max(self.num_values, 1))


def encoded_blocks(
    table: _sources.Table,
    rows: _row_blocks.RowSource,
    *,
    measure: bool = True,
) -> Iterator[tuple[int, np.ndarray, _encodings.EncodedRows]]:
  """(first row, values, encoded rows) of all rows of a table.

  Args:
    table: of which the rows are.
    rows: of the table.
    measure: whether to measure what is lost.

  Raises:
    ValueError: rows cannot be encoded; all have been read then, to count them.
  """
  first_refused = None
  num_refused = 0
  ranges = _row_blocks.ranges_of(table.rows, rows.block_rows)
  for first, values in rows.blocks(ranges):
    encoded = _encodings.encode(table.encoding, values, measure=measure)
    if encoded.refused is not None:
      num_refused += int(encoded.refused.sum())
      if first_refused is None:
        at = int(encoded.refused.argmax())
        first_refused = (first + at, _offending(table.encoding, values[at]))
    if not num_refused:
      yield first, values, encoded
  if num_refused:
    row, what = first_refused
    raise ValueError(
        f"Table {table.name!r}: {num_refused} of {table.rows} rows cannot be"
        f" encoded as {table.encoding.name}. The first is row {row}: {what}."
        " Nothing was exported. Find out why training made it, clip the table,"
        " or choose another encoding."
    )


def _offending(encoding: _encodings.Encoding, values: np.ndarray) -> str:
  values = values.astype(np.float32)
  beyond = ~(np.abs(values) <= encoding.max_value)
  if beyond.any():
    column = int(beyond.argmax())
    return f"{values[column]} in column {column}"
  return f"values from {values.min()} to {values.max()}"


def write(
    directory: pathlib.Path,
    source: _sources.Source,
    file_format: str,
    max_file_bytes: int,
    observe: Observer = lambda *_: None,
) -> dict[str, dict[str, Any]]:
  """Writes all tables; what the manifest says of them."""
  entries = {}
  with _progress.Progress("exporting", source.num_bytes) as progress:
    for name, table in source.tables.items():
      entries[name] = _write_table(
          directory,
          table,
          progress.of(source.rows_of[name]),
          file_format,
          max_file_bytes,
          observe,
      )
  return entries


def _write_table(
    directory: pathlib.Path,
    table: _sources.Table,
    rows: _row_blocks.RowSource,
    file_format: str,
    max_file_bytes: int,
    observe: Observer,
) -> dict[str, Any]:
  errors = Errors()
  files = _RowFiles(directory, table, file_format, max_file_bytes)
  with contextlib.closing(files):
    for first, _, encoded in encoded_blocks(table, rows):
      observe(table.name, first, encoded.rows)
      errors.add(encoded, table.columns)
      files.write(first, encoded.rows)
  return table_entry(table, errors, files.entries)


class _RowFiles:
  """The files of a table, one after another as rows come.

  Attributes:
    entries: what the manifest says of those that are complete.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      table: _sources.Table,
      file_format: str,
      max_file_bytes: int,
  ):
    self.entries = []
    self._directory = directory
    self._table = table
    self._suffix, self._type, _ = _table_files.FILE_FORMATS[file_format]
    per_file = max(1, max_file_bytes // table.row_bytes)
    if file_format == "npy":
      per_file = table.rows  # one array is one file
    self._ranges = _row_blocks.ranges_of(table.rows, per_file)
    self._file: _table_files.RowFile | None = None

  def write(self, first: int, rows: np.ndarray) -> None:
    """Adds encoded rows, which follow those before."""
    while len(rows):
      index = len(self.entries)
      begin, end = self._ranges[index]
      name = _file_name(
          self._table.name, index, len(self._ranges), self._suffix
      )
      if self._file is None:
        path = os.fspath(self._directory / name)
        self._file = self._type(path, self._table, end - begin)
      count = min(len(rows), end - first)
      self._file.write(first, rows[:count])
      first, rows = first + count, rows[count:]
      if first == end:
        about_rows = {"name": name, "first_row": begin, "rows": end - begin}
        self.entries.append(about_rows | self.close())

  def close(self) -> dict[str, Any]:
    """Closes the file that is open; what the manifest says of it."""
    file, self._file = self._file, None
    return {} if file is None else file.close()


def _file_name(table: str, index: int, count: int, suffix: str) -> str:
  name = quoted(table)
  if suffix == ".npy":
    return name + suffix
  return f"{name}-{index + 1:05}-of-{count:05}{suffix}"


def quoted(table: str) -> str:
  """A table's name as part of the name of a file."""
  return urllib.parse.quote(table, safe="")


def table_entry(
    table: _sources.Table, errors: Errors, files: list[Mapping[str, Any]]
) -> dict[str, Any]:
  """What the manifest says of a table."""
  return {
      "rows": table.rows,
      "columns": table.columns,
      "row_bytes": table.row_bytes,
      "encoding": table.encoding.name,
      "combiner": table.combiner,
      "max_error": errors.max_error,
      "rms_error": errors.rms_error,
      "deleted_rows": 0,
      "files": files,
  }


def manifest(
    number: int,
    kind: str,
    run: str,
    step: int | None,
    tables: Mapping[str, Any],
    features: Mapping[str, str] | None,
    **more: Any,
) -> dict[str, Any]:
  """The manifest of a version."""
  result = {
      "format": _versions.FORMAT,
      "format_version": _versions.FORMAT_VERSION,
      "version": number,
      "kind": kind,
      "run": run,
      "step": step,
      "tables": tables,
  } | more
  if features is not None:
    result["features"] = {
        name: {"table": table} for name, table in features.items()
    }
  return result
