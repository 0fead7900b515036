# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What changed since the last version: exactly the rows with other bytes."""

from __future__ import annotations

from collections.abc import Sequence
import os
import pathlib
import shutil
import tempfile
from typing import Any

from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _fingerprints
from jax_tpu_embedding.sparsecore.lib.export import _full_version
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import _table_files
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

# Table -> u64[rows], of the rows that readers have.
Fingerprints = dict[str, np.ndarray]

# Changed rows wait in memory, and then in a file, until their number is known.
_WAITING_BYTES = 8 * 2**20
_READ_ROWS = 8192


def write(
    directory: pathlib.Path,
    source: _sources.Source,
    fingerprints: Fingerprints,
) -> dict[str, dict[str, Any]]:
  """Writes the rows that changed; what the manifest says of all tables.

  Args:
    directory: of the version.
    source: the tables.
    fingerprints: of the last version. They become those of this one, also if
      this fails, and are not to be used any more then.
  """
  entries = {}
  with _progress.Progress("publishing", source.num_bytes) as progress:
    for name, table in source.tables.items():
      rows = progress.of(source.rows_of[name])
      entries[name] = _write_table(directory, table, rows, fingerprints[name])
  return entries


def _write_table(
    directory: pathlib.Path,
    table: _sources.Table,
    rows: _row_blocks.RowSource,
    fingerprints: np.ndarray,
) -> dict[str, Any]:
  errors = _full_version.Errors()
  changed_rows = []
  with tempfile.SpooledTemporaryFile(_WAITING_BYTES, dir=directory) as waiting:
    for first, values, encoded in _full_version.encoded_blocks(
        table, rows, measure=False
    ):
      known = fingerprints[first : first + len(values)]
      found = _fingerprints.of_rows(encoded.rows)
      changed = np.flatnonzero(found != known)
      if not len(changed):
        continue
      known[...] = found
      # Again, for what is lost of these rows.
      again = _encodings.encode(table.encoding, values[changed])
      errors.add(again, table.columns)
      waiting.write(again.rows.reshape(-1))
      changed_rows.append(first + changed.astype(np.int64))
    files = []
    num_changed = sum(map(len, changed_rows))
    if num_changed:
      waiting.seek(0)
      name = f"{_full_version.quoted(table.name)}.delta.safetensors"
      files.append(
          {"name": name, "first_row": 0, "rows": num_changed}
          | _write_file(
              directory / name, table, np.concatenate(changed_rows), waiting
          )
      )
  entry = _full_version.table_entry(table, errors, files)
  return entry | {"changed_rows": num_changed}


def _write_file(
    path: pathlib.Path,
    table: _sources.Table,
    changed: np.ndarray,
    values: Any,
) -> dict[str, Any]:
  encoding = table.encoding
  shape = len(changed), encoding.row_elements(table.columns)
  with _table_files.ChecksummedFile(os.fspath(path)) as file:
    file.write(
        _table_files.safetensors_header(
            {
                f"{table.name}.rows": ("I64", (len(changed),)),
                f"{table.name}.deleted": ("I64", (0,)),
                f"{table.name}.values": (encoding.tensor_type, shape),
            }
        )
    )
    file.write(changed.astype("<i8"))
    offset = file.num_bytes
    shutil.copyfileobj(values, file, 2**20)
  return {"offset": offset} | file.entry()


def read_fingerprints(chain: list[_versions.Version]) -> Fingerprints:
  """Those of the rows that readers of published versions have.

  Args:
    chain: a full version and the deltas after it, of the same tables.

  Raises:
    ServedFileError: files are missing or damaged.
  """
  full, *deltas = chain
  result = {}
  for name, table in full.tables.items():
    result[name] = np.zeros(table.rows, np.uint64)
    for file in table.files:
      rows = range(file.first_row, file.first_row + file.rows)
      _fill(result[name], rows, _versions.map_rows(table, file))
    zeros = _fingerprints.of_rows(np.zeros((1, table.row_bytes), np.uint8))
    for delta in deltas:
      _versions.check_follows(full.run, full.tables, delta)
      # Mapped: nobody else writes here.
      changes = _versions.read_changes(delta.tables[name], in_place=True)
      _fill(result[name], changes.rows, changes.values)
      result[name][changes.deleted] = zeros
  return result


def _fill(
    fingerprints: np.ndarray, rows: Sequence[int], encoded: np.ndarray
) -> None:
  for first in range(0, len(rows), _READ_ROWS):
    part = slice(first, first + _READ_ROWS)
    fingerprints[np.asarray(rows[part])] = _fingerprints.of_rows(encoded[part])
