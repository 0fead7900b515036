# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Writes versions of served tables from NumPy, for tests and benchmarks.

What programs use is `lib/export`; this is the format once more, in few lines,
so that readers are not tested with what wrote the same mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import urllib.parse
import zlib

from jax_tpu_embedding.sparsecore.serving.testing import row_encodings
import numpy as np

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclasses.dataclass
class WrittenTable:
  values: np.ndarray  # float32[V, D]
  encoding: str = "float32"
  combiner: str = "sum"
  num_files: int = 1


@dataclasses.dataclass
class WrittenChange:
  rows: Sequence[int]  # ascending
  values: np.ndarray  # float32[k, D]
  deleted: Sequence[int] = ()
  num_files: int = 1


def write_safetensors(
    path: pathlib.Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]
) -> dict[str, int]:
  """Writes name -> (dtype, shape, bytes); returns where each begins."""
  entries, offset = {}, 0
  for name, (dtype, shape, data) in tensors.items():
    entries[name] = {
        "dtype": dtype,
        "shape": list(shape),
        "data_offsets": [offset, offset + len(data)],
    }
    offset += len(data)
  header = json.dumps(entries).encode()
  header += b" " * (-(8 + len(header)) % 64)
  with open(path, "wb") as file:
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for _, _, data in tensors.values():
      file.write(data)
  begin = 8 + len(header)
  return {n: begin + e["data_offsets"][0] for n, e in entries.items()}


def file_entry(path: pathlib.Path, offset: int, **fields: int) -> dict:
  data = path.read_bytes()
  return {
      "name": path.name,
      "offset": offset,
      "bytes": len(data),
      "crc32": [
          f"{zlib.crc32(data[i:i + (4 << 20)]):08x}"
          for i in range(0, len(data), 4 << 20)
      ],
      **fields,
  }


def write_manifest(
    directory: pathlib.Path, manifest: dict, make_current: bool = True
) -> str:
  """Writes a manifest, and CURRENT if wanted; returns its checksum."""
  number = manifest["version"]
  text = json.dumps(manifest, indent=1, sort_keys=True).encode()
  crc32 = f"{zlib.crc32(text):08x}"
  path = directory / f"v{number:06d}" / "manifest.json"
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(text)
  if make_current:
    write_current(directory, number, crc32)
  return crc32


def write_current(directory: pathlib.Path, number: int, crc32: str) -> None:
  beside = directory / "CURRENT.new"
  beside.write_text(f"{number} v{number:06d} {crc32}\n")
  os.replace(beside, directory / "CURRENT")


def _entry(table: WrittenTable, rows: int, columns: int, row_bytes: int):
  return {
      "rows": rows,
      "columns": columns,
      "row_bytes": row_bytes,
      "encoding": table.encoding,
      "combiner": table.combiner,
      "max_error": 0.0,
      "rms_error": 0.0,
  }


def _shape(table: WrittenTable, encoded: np.ndarray) -> tuple[str, list[int]]:
  dtype = _DTYPES.get(table.encoding, "U8")
  columns = encoded.shape[1] if dtype == "U8" else table.values.shape[1]
  return dtype, [len(encoded), columns]


def _head(number: int, kind: str, run: str, tables: dict) -> dict:
  return {
      "format": "jax_tpu_embedding.tables",
      "format_version": 1,
      "version": number,
      "kind": kind,
      "run": run,
      "step": number * 100,
      "tables": tables,
  }


def write_full(
    directory: pathlib.Path,
    tables: Mapping[str, WrittenTable],
    number: int = 0,
    features: Mapping[str, str] | None = None,
    run: str = "5a" * 16,
    make_current: bool = True,
) -> str:
  """Writes a full version; returns its manifest's checksum."""
  version = directory / f"v{number:06d}"
  version.mkdir(parents=True, exist_ok=True)
  entries = {}
  for name, table in tables.items():
    encoded = row_encodings.encode(table.encoding, table.values)
    files, first_row = [], 0
    for i, rows in enumerate(np.array_split(encoded, table.num_files)):
      path = version / (
          f"{urllib.parse.quote(name, safe='')}-{i + 1:05d}-of-"
          f"{table.num_files:05d}.safetensors"
      )
      dtype, shape = _shape(table, rows)
      offsets = write_safetensors(path, {name: (dtype, shape, rows.tobytes())})
      files.append(
          file_entry(path, offsets[name], first_row=first_row, rows=len(rows))
      )
      first_row += len(rows)
    entry = _entry(table, len(encoded), table.values.shape[1], encoded.shape[1])
    entries[name] = entry | {"files": files}
  manifest = _head(number, "full", run, entries)
  if features is not None:
    manifest["features"] = {f: {"table": t} for f, t in features.items()}
  return write_manifest(directory, manifest, make_current)


def write_delta(
    directory: pathlib.Path,
    tables: Mapping[str, WrittenTable],
    changes: Mapping[str, WrittenChange],
    number: int,
    base: tuple[int, str],
    features: Mapping[str, str] | None = None,
    run: str = "5a" * 16,
    make_current: bool = True,
) -> str:
  """Writes a delta; returns its manifest's checksum."""
  version = directory / f"v{number:06d}"
  version.mkdir(parents=True, exist_ok=True)
  entries = {}
  for name, table in tables.items():
    change = changes.get(name)
    columns = table.values.shape[1]
    row_bytes = row_encodings.encode(
        table.encoding, np.zeros((1, columns))
    ).shape[1]
    entry = _entry(table, len(table.values), columns, row_bytes)
    entry |= {"changed_rows": 0, "deleted_rows": 0, "files": []}
    if change is not None:
      encoded = row_encodings.encode(table.encoding, change.values)
      entry["changed_rows"] = len(change.rows)
      entry["deleted_rows"] = len(change.deleted)
      pieces = zip(
          np.array_split(np.asarray(change.rows, "<i8"), change.num_files),
          np.array_split(encoded, change.num_files),
      )
      for i, (rows, values) in enumerate(pieces):
        dtype, shape = _shape(table, values)
        deleted = np.asarray(() if i else change.deleted, "<i8")
        quoted = urllib.parse.quote(name, safe="")
        path = version / f"{quoted}.delta{f'-{i}' if i else ''}.safetensors"
        offsets = write_safetensors(
            path,
            {
                f"{name}.rows": ("I64", rows.shape, rows.tobytes()),
                f"{name}.deleted": ("I64", deleted.shape, deleted.tobytes()),
                f"{name}.values": (dtype, shape, values.tobytes()),
            },
        )
        entry["files"].append(
            file_entry(
                path, offsets[f"{name}.values"], first_row=0, rows=len(rows)
            )
        )
    entries[name] = entry
  manifest = _head(number, "delta", run, entries)
  manifest["base"] = {"version": base[0], "manifest_crc32": base[1]}
  if features is not None:
    manifest["features"] = {f: {"table": t} for f, t in features.items()}
  return write_manifest(directory, manifest, make_current)
