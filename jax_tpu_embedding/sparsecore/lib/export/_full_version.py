# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables to files: every row, encoded, in logical order."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Mapping
import os
import pathlib
from typing import Any

from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import _table_files
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

# Called with a table's name, a row, and the encoded rows from it on.
Observer = Callable[[str, int, np.ndarray], None]


class FullTable:
  """Writes a run of rows of a table to files, one after another.

  Args:
    directory: of the version.
    table: of which the rows are.
    runs: of all processes.
    part: where to say what was written.
    index: of this process.
    file_format: a key of FILE_FORMATS.
    max_file_bytes: of a file's rows.
    observe: is called with all that is encoded.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      table: _sources.Table,
      runs: _parts.Runs,
      part: _parts.Part,
      *,
      index: int,
      file_format: str,
      max_file_bytes: int,
      observe: Observer = lambda *_: None,
  ):
    self._directory = directory
    self._table = table
    self._part = part
    self._observe = observe
    self._suffix, self._type, _ = _table_files.FILE_FORMATS[file_format]
    per_file = max(1, max_file_bytes // table.row_bytes)
    if file_format == "npy":
      per_file = table.rows  # one array is one file
    files = [
        (process, (row, min(row + per_file, end)))
        for process, (first, end) in runs.items()
        for row in range(first, end, per_file)
    ]
    self._count = len(files)
    # Number and rows of those that are still to be written.
    self._left = collections.deque(
        (number, rows)
        for number, (process, rows) in enumerate(files, 1)
        if process == index
    )
    self._file: _table_files.RowFile | None = None

  def write(self, first: int, values: np.ndarray) -> None:
    encoded = self._part.encode(self._table, first, values, measure=True)
    if encoded is None:
      return
    self._observe(self._table.name, first, encoded.rows)
    self._part.add(encoded)
    rows = encoded.rows
    while len(rows):
      number, (begin, end) = self._left[0]
      name = self._file_name(number)
      if self._file is None:
        path = os.fspath(self._directory / name)
        self._file = self._type(path, self._table, end - begin)
      count = min(len(rows), end - first)
      self._file.write(first, rows[:count])
      first, rows = first + count, rows[count:]
      if first == end:
        about_rows = {"name": name, "first_row": begin, "rows": end - begin}
        self._part.files.append(about_rows | self._close())
        self._left.popleft()

  def finish(self) -> None:
    pass  # The last row has closed the last file.

  def close(self) -> None:
    self._close()

  def _close(self) -> dict[str, Any]:
    """Closes the file that is open; what the manifest says of it."""
    file, self._file = self._file, None
    return {} if file is None else file.close()

  def _file_name(self, number: int) -> str:
    name = _parts.quoted(self._table.name)
    if self._suffix == ".npy":
      return name + self._suffix
    return f"{name}-{number:05}-of-{self._count:05}{self._suffix}"


def manifest(
    number: int,
    tables: Mapping[str, Any],
    *,
    kind: str,
    run: str,
    step: int | None,
    features: Mapping[str, _versions.Feature] | None,
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
        name: _feature_entry(feature, tables[feature.table]["columns"])
        for name, feature in features.items()
    }
  return result


def _feature_entry(
    feature: _versions.Feature, table_columns: int
) -> dict[str, Any]:
  entry = {"table": feature.table}
  if feature.columns < table_columns:
    entry["columns"] = feature.columns
  return entry
