# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What changed since the last version: exactly the rows with other bytes."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
import shutil
import tempfile

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _fingerprints
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import _table_files
from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _rows
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

# Table -> u64[rows], of the rows that readers have.
Fingerprints = dict[str, np.ndarray]

# Changed rows wait in memory, and then in a file, until their number is known.
_WAITING_BYTES = 8 * 2**20
_READ_ROWS = 8192


class ChangedRows:
  """Writes those of a run of rows that changed, if any did, to a file.

  Args:
    directory: of the version.
    table: of which the rows are.
    runs: of all processes.
    part: where to say what was written.
    index: of this process.
    fingerprints: of the rows of the last version. They become those of this
      one, also if this fails, and are not to be used any more then.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      table: _sources.Table,
      runs: _parts.Runs,
      part: _parts.Part,
      *,
      index: int,
      fingerprints: Fingerprints,
  ):
    self._path = directory / _file_name(table.name, runs, index)
    self._table = table
    self._part = part
    self._fingerprints = fingerprints[table.name]
    self._rows = []
    # Their values, which are written after the last of them.
    self._values = tempfile.SpooledTemporaryFile(_WAITING_BYTES, dir=directory)

  def write(self, first: int, values: np.ndarray) -> None:
    encoded = self._part.encode(self._table, first, values, measure=False)
    if encoded is None:
      return
    known = self._fingerprints[first : first + len(values)]
    found = _fingerprints.of_rows(encoded.rows)
    changed = np.flatnonzero(found != known)
    if not len(changed):
      return
    known[...] = found
    # Again, for what is lost of these rows.
    again = _encodings.encode(self._table.encoding, values[changed])
    self._part.add(again)
    self._values.write(again.rows.reshape(-1))
    self._rows.append(first + changed.astype(np.int64))

  def finish(self) -> None:
    if not self._rows:
      return
    rows, name = np.concatenate(self._rows), self._table.name
    encoding = self._table.encoding
    shape = len(rows), encoding.row_elements(self._table.columns)
    with _table_files.ChecksummedFile(os.fspath(self._path)) as file:
      file.write(
          _table_files.safetensors_header(
              {
                  f"{name}.rows": ("I64", (len(rows),)),
                  f"{name}.deleted": ("I64", (0,)),
                  f"{name}.values": (encoding.tensor_type, shape),
              }
          )
      )
      file.write(rows.astype("<i8"))
      offset = file.num_bytes
      self._values.seek(0)
      shutil.copyfileobj(self._values, file, 2**20)
    about_rows = {"name": self._path.name, "first_row": 0, "rows": len(rows)}
    self._part.files.append(about_rows | {"offset": offset} | file.entry())

  def close(self) -> None:
    self._values.close()


def _file_name(table: str, runs: _parts.Runs, index: int) -> str:
  name = f"{_parts.quoted(table)}.delta"
  if len(runs) > 1:
    name += f"-{list(runs).index(index) + 1:05}-of-{len(runs):05}"
  return name + ".safetensors"


def read_fingerprints(
    chain: list[_versions.Version],
    rows_of: Mapping[str, _row_blocks.Range] | None = None,
) -> Fingerprints:
  """Those of the rows that readers of published versions have.

  Args:
    chain: a full version and the deltas after it, of the same tables.
    rows_of: the rows [first, end) of each table that are wanted; default: all.

  Returns:
    u64[rows] of each table, in which nothing is known of rows not wanted.

  Raises:
    ServedFileError: files are missing or damaged.
  """
  full, *deltas = chain
  result = {}
  for delta in deltas:
    _versions.check_follows(full.run, full.tables, delta)
  for name, table in full.tables.items():
    # Pages of rows that are not wanted are never touched.
    result[name] = np.empty(table.rows, np.uint64)
    first, end = (0, table.rows) if rows_of is None else rows_of[name]
    for file in table.files:
      row = file.first_row
      if end <= row or row + file.rows <= first:
        continue
      for encoded in _rows.read_rows(table, file):
        wanted = encoded[max(first - row, 0) : max(end - row, 0)]
        begin = max(first, row)
        found = _fingerprints.of_rows(wanted)
        result[name][begin : begin + len(wanted)] = found
        row += len(encoded)
    zeros = _fingerprints.of_rows(np.zeros((1, table.row_bytes), np.uint8))
    for delta in deltas:
      # Mapped: nobody else writes here.
      read = _rows.read_changes(delta.tables[name], in_place=True)
      for kind, rows in (
          ("changed", [changes.rows for changes in read]),
          ("deleted", [changes.deleted for changes in read]),
      ):
        _check_ascending(delta, table, kind, rows)
      for changes in read:
        wanted = slice(*np.searchsorted(changes.rows, (first, end)))
        _fill(result[name], changes.rows[wanted], changes.values[wanted])
        wanted = slice(*np.searchsorted(changes.deleted, (first, end)))
        result[name][changes.deleted[wanted]] = zeros
  return result


def _check_ascending(
    delta: _versions.Version,
    table: _versions.Table,
    kind: str,
    rows: list[np.ndarray],
) -> None:
  """Raises ServedFileError unless readers take these rows too."""
  found = np.concatenate([np.zeros(0, np.int64), *rows])
  if len(found) and not (
      (found[1:] > found[:-1]).all()
      and found[0] >= 0
      and found[-1] < table.rows
  ):
    raise _files.ServedFileError(
        f"{delta.path}: Table {table.name!r}: {kind} rows are {found!r:.80},"
        f" expected ascending rows below {table.rows}."
    )


def _fill(
    fingerprints: np.ndarray, rows: np.ndarray, encoded: np.ndarray
) -> None:
  for first in range(0, len(rows), _READ_ROWS):
    part = slice(first, first + _READ_ROWS)
    fingerprints[rows[part]] = _fingerprints.of_rows(encoded[part])
