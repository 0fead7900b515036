# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The part of a version that each process writes, and all parts as one.

Rows of a table are cut into one run for each process that reads it, of whole
blocks. A process encodes the rows of its run and writes them to files of its
own; what it wrote, and what encoding lost, is a Part. One process has one run:
all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
from typing import Any
from typing import Protocol
import urllib.parse

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _sources
import numpy as np

# Process -> its rows of a table, the processes in the order of rows.
Runs = dict[int, _row_blocks.Range]


def runs_of(
    source: _sources.Source, table: str, *, is_one: bool = False
) -> Runs:
  """Which rows of a table each process writes.

  Args:
    source: of the table.
    table: its name.
    is_one: whether one process has to write all of it.
  """
  rows, turns = source.rows_of[table], source.turns_of(table)
  processes = list(dict.fromkeys(turns))
  num_blocks = -(-rows.rows // rows.block_rows)
  runs, first, blocks_in_turn = {}, 0, 0
  for process in processes:
    # As many as a process has turns.
    blocks_in_turn += len(turns) if is_one else turns.count(process)
    blocks = -(-num_blocks * blocks_in_turn // len(turns))
    end = min(rows.rows, blocks * rows.block_rows)
    runs[process] = (first, end)
    first = end
  return runs


def blocks_in_turn(
    runs: Runs, block_rows: int, turns: Sequence[int]
) -> list[_row_blocks.Range]:
  """The blocks of all runs, each where it is its process's turn.

  It is (0, 0) where a process has no more, and the others have.
  """
  of_process = {
      process: [
          (row, min(row + block_rows, end))
          for row in range(first, end, block_rows)
      ]
      for process, (first, end) in runs.items()
  }
  num_rounds = max(
      -(-len(blocks) // turns.count(process))
      for process, blocks in of_process.items()
  )
  left = {process: iter(blocks) for process, blocks in of_process.items()}
  return [
      next(left[process], (0, 0))
      for _ in range(num_rounds)
      for process in turns
  ]


@dataclasses.dataclass(kw_only=True)
class Part:
  """What processes wrote of a table.

  Attributes:
    files: what the manifest says of them, in the order of rows.
    written_rows: rows in these.
    max_error: the largest error of their values.
    squared_error: the sum of the squares of all.
    refused_rows: rows that cannot be encoded; what is in files is of no use
      then.
    first_refused: the first of them, and what it has.
  """

  files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  written_rows: int = 0
  max_error: float = 0.0
  squared_error: float = 0.0
  refused_rows: int = 0
  first_refused: tuple[int, str] | None = None

  def encode(
      self,
      table: _sources.Table,
      first: int,
      values: np.ndarray,
      *,
      measure: bool,
  ) -> _encodings.EncodedRows | None:
    """Encodes rows from `first` on; None if this part is of no use.

    Args:
      table: of which the rows are.
      first: the first of them.
      values: the rows.
      measure: whether to measure what is lost.
    """
    encoded = _encodings.encode(table.encoding, values, measure=measure)
    if encoded.refused is not None:
      self.refused_rows += int(encoded.refused.sum())
      if self.first_refused is None:
        at = int(encoded.refused.argmax())
        what = _offending(table.encoding, values[at])
        self.first_refused = first + at, what
    return None if self.refused_rows else encoded

  def add(self, encoded: _encodings.EncodedRows) -> None:
    """Rows that are written."""
    self.written_rows += len(encoded.rows)
    self.max_error = max(self.max_error, encoded.max_error)
    self.squared_error += encoded.squared_error


def _offending(encoding: _encodings.Encoding, values: np.ndarray) -> str:
  values = values.astype(np.float32)
  beyond = ~(np.abs(values) <= encoding.max_value)
  if beyond.any():
    column = int(beyond.argmax())
    return f"{values[column]} in column {column}"
  return f"values from {values.min()} to {values.max()}"


class TableWriter(Protocol):
  """Writes the rows of a table that this process has."""

  def write(self, first: int, values: np.ndarray) -> None:
    """Takes rows from `first` on; they follow those before."""

  def finish(self) -> None:
    """Completes the files, and puts them into the part."""

  def close(self) -> None:
    """Closes what is open."""


# (table, its runs, where to say what was written) -> what writes it.
NewWriter = Callable[[_sources.Table, Runs, Part], TableWriter]


class _FirstError:
  """Keeps the first error of a process with which others read, or raises it.

  Attributes:
    error: that was kept.
  """

  def __init__(self, is_kept: bool):
    self._is_kept = is_kept
    self.error: Exception | None = None

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
    if not self._is_kept or not isinstance(error, Exception):
      return False
    self.error = self.error or error
    return True


@jax.transfer_guard("allow")
def write(
    what: str,
    source: _sources.Source,
    runs_of_tables: Mapping[str, Runs],
    agreement: _agreement.Agreement,
    new_writer: NewWriter,
) -> dict[str, Part]:
  """Reads the tables; what this process wrote of each.

  Reading is a collective operation: of several processes, one that cannot write
  goes on reading to the end.

  Args:
    what: is done, for people.
    source: of the rows.
    runs_of_tables: of each table.
    agreement: of the processes.
    new_writer: of a table of which this process has rows.
  """
  parts = {}
  writing = _FirstError(is_kept=agreement.count > 1)
  num_bytes = sum(
      source.row_bytes(name) * (end - first)
      for name, runs in runs_of_tables.items()
      for process, (first, end) in runs.items()
      if process == agreement.index
  )
  with _progress.Progress(what, num_bytes) as progress:
    for name, table in source.tables.items():
      rows, runs = source.rows_of[name], runs_of_tables[name]
      ranges = blocks_in_turn(runs, rows.block_rows, source.turns_of(name))
      parts[name] = part = Part()
      writer = None
      try:
        for first, values in progress.of(rows).blocks(ranges):
          if writing.error is None and len(values):
            with writing:
              writer = writer or new_writer(table, runs, part)
              writer.write(first, values)
        if writing.error is None and writer is not None:
          with writing:
            writer.finish()
      finally:
        if writer is not None:
          with writing:
            writer.close()
      if part.refused_rows and agreement.count == 1:
        break  # There will be no version.
  if writing.error is not None:
    raise writing.error
  return parts


def together(
    tables: Mapping[str, _sources.Table],
    runs_of_tables: Mapping[str, Runs],
    parts_of_processes: Sequence[Mapping[str, Any]],
) -> dict[str, Part]:
  """Each table's parts as one.

  Args:
    tables: by name.
    runs_of_tables: of each table.
    parts_of_processes: of each process, those of tables by name, as
      dataclasses.asdict has them.

  Raises:
    ValueError: there are rows that cannot be encoded.
  """
  result = {}
  for name, table in tables.items():
    parts = [
        Part(**parts_of_processes[process][name])
        for process in runs_of_tables[name]
    ]
    refused = [part.first_refused for part in parts if part.refused_rows]
    if refused:
      row, found = refused[0]  # Parts are in the order of rows.
      raise ValueError(
          f"Table {name!r}: {sum(part.refused_rows for part in parts)} of"
          f" {table.rows} rows cannot be encoded as {table.encoding.name}. The"
          f" first is row {row}: {found}. Nothing was exported. Find out why"
          " training made it, clip the table, or choose another encoding."
      )
    result[name] = Part(
        files=[file for part in parts for file in part.files],
        written_rows=sum(part.written_rows for part in parts),
        max_error=max(part.max_error for part in parts),
        squared_error=sum(part.squared_error for part in parts),
    )
  return result


def table_entry(
    table: _sources.Table, part: Part, *, is_delta: bool
) -> dict[str, Any]:
  """What the manifest says of a table."""
  num_values = max(part.written_rows * table.columns, 1)
  entry = {
      "rows": table.rows,
      "columns": table.columns,
      "row_bytes": table.row_bytes,
      "encoding": table.encoding.name,
      "combiner": table.combiner,
      "max_error": part.max_error,
      "rms_error": math.sqrt(part.squared_error / num_values),
      "deleted_rows": 0,
      "files": part.files,
  }
  if is_delta:
    entry["changed_rows"] = part.written_rows
  return entry


def quoted(table: str) -> str:
  """A table's name as part of the name of a file."""
  return urllib.parse.quote(table, safe="")
