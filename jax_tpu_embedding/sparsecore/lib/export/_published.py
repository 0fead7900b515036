# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What was published, for the one who did."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTable:
  """A table in a version.

  Attributes:
    rows: vocabulary_size.
    columns: embedding_dim.
    encoding: of its rows.
    written_rows: rows in the files of this version: those that changed, of a
      delta.
    num_bytes: of these files.
    max_error: the largest difference of a value of the written rows to what
      readers get.
    rms_error: the root mean square of all these differences.
  """

  rows: int
  columns: int
  encoding: str
  written_rows: int
  num_bytes: int
  max_error: float
  rms_error: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedVersion:
  """A version of tables; str() of it is a table to print.

  Attributes:
    number: of the version.
    kind: "full", or "delta": the rows that changed since the version before.
    path: the directory of its files.
    step: that the writer gave, or that of the checkpoint; None: not known.
    tables: by name.
  """

  number: int
  kind: str
  path: str
  step: int | None
  tables: Mapping[str, PublishedTable]

  @property
  def num_bytes(self) -> int:
    return sum(table.num_bytes for table in self.tables.values())

  def __str__(self) -> str:
    cells = [("table", "rows", "written", "encoding", "bytes", "max error")]
    for name, table in self.tables.items():
      cells.append(
          (
              name,
              f"{table.rows:,} x {table.columns}",
              f"{table.written_rows:,}",
              table.encoding,
              f"{table.num_bytes:,}",
              f"{table.max_error:.3g}",
          )
      )
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
        for row in cells
    ]
    step = "" if self.step is None else f", step {self.step}"
    head = f"version {self.number}, {self.kind}{step}, {self.num_bytes:,} bytes"
    return "\n".join([head, *(line.rstrip() for line in lines)])


def from_fields(fields: Mapping[str, Any]) -> PublishedVersion:
  """A version that another process has made, from its dataclasses.asdict."""
  tables = {
      name: PublishedTable(**of_table)
      for name, of_table in fields["tables"].items()
  }
  return PublishedVersion(**{**fields, "tables": tables})


def of(path: pathlib.Path, manifest: Mapping[str, Any]) -> PublishedVersion:
  """The version in a directory, by its manifest."""
  tables = {}
  for name, entry in manifest["tables"].items():
    tables[name] = PublishedTable(
        rows=entry["rows"],
        columns=entry["columns"],
        encoding=entry["encoding"],
        written_rows=entry.get("changed_rows", entry["rows"]),
        num_bytes=sum(file["bytes"] for file in entry["files"]),
        max_error=entry["max_error"],
        rms_error=entry["rms_error"],
    )
  return PublishedVersion(
      number=manifest["version"],
      kind=manifest["kind"],
      path=str(path),
      step=manifest["step"],
      tables=tables,
  )
