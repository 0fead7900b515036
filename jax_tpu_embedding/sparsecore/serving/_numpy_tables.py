# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups in NumPy, where the native module is not there; also its reference.

`Tables` has the interface of `pybind_embedding_tables.Tables` and gives the same
bits, one lookup at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import threading
from typing import Any
from typing import BinaryIO

from jax_tpu_embedding.sparsecore.serving import _files
import numpy as np


def decode(encoding: str, columns: int, rows: np.ndarray) -> np.ndarray:
  """Encoded rows uint8[n, row_bytes] as float32[n, columns]."""
  rows = np.ascontiguousarray(rows)
  if encoding == "float32":
    return rows.view("<f4")
  if encoding == "float16":
    return rows.view("<f2").astype(np.float32)
  if encoding == "bfloat16":
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
  if encoding == "int8":
    codes = rows[:, :columns]
    scaling = np.ascontiguousarray(rows[:, -8:]).view("<f4")
  else:
    pairs = rows[:, :-4]
    codes = np.stack([pairs & 15, pairs >> 4], -1)
    codes = codes.reshape(len(rows), 2 * pairs.shape[1])[:, :columns]
    scaling = np.ascontiguousarray(rows[:, -4:]).view("<f2")
  scaling = scaling.astype(np.float32)
  values = codes.astype(np.float32)
  values *= scaling[:, :1]
  values += scaling[:, 1:]
  return values


# A file that has rows, the first of them and how many; and where they begin.
_Part = tuple[str, int, int, int]


def _open(table: str, part: _Part, row_bytes: int) -> BinaryIO:
  """The file of a part, unbuffered, if it is long enough."""
  path, _, rows, offset = part
  try:
    file = _files.open_file(path, buffering=0)
  except OSError as error:
    raise ValueError(
        f"Table {table!r}: cannot open {path}: {error.strerror}."
    ) from error
  size = os.fstat(file.fileno()).st_size
  if size < offset + rows * row_bytes:
    file.close()
    raise ValueError(
        f"Table {table!r}: {path} has {size} bytes, expected {rows} rows of"
        f" {row_bytes} bytes from byte {offset} on. It was cut off or is of"
        " another version; export it again."
    )
  return file


def _map(table: str, part: _Part, row_bytes: int) -> np.ndarray:
  """Rows of a file in a private mapping."""
  path, _, rows, offset = part
  with _open(table, part, row_bytes) as file:
    try:
      return np.memmap(file, np.uint8, "c", offset, (rows, row_bytes))
    except (OSError, ValueError) as error:  # ValueError: cut off meanwhile
      raise ValueError(
          f"Table {table!r}: cannot map {rows * row_bytes} bytes of {path}:"
          f" {error}."
      ) from error


def _copy(
    table: str, parts: Sequence[_Part], rows: int, row_bytes: int
) -> np.ndarray:
  """Rows of all files in new memory.

  NumPy asks for huge pages if they are 4 MiB or more.
  """
  try:
    data = np.empty(rows * row_bytes, np.uint8)
  except MemoryError as error:
    paths = parts[0][0]
    if len(parts) > 1:
      paths += f" and {len(parts) - 1} more"
    raise MemoryError(
        f"Table {table!r}: there is no memory for a copy of"
        f" {rows * row_bytes} bytes of {paths}. Give the process more, or open"
        " the tables without copy_to_huge_pages, which maps files."
    ) from error
  for part in parts:
    path, first, count, offset = part
    left = memoryview(data)[first * row_bytes : (first + count) * row_bytes]
    expected = f"rows {first} to {first + count} of table {table!r}"
    with _open(table, part, row_bytes) as file:
      try:
        file.seek(offset)
        while left and (done := file.readinto(left)):
          left = left[done:]
      except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}), expected {expected}."
        ) from error
    if left:
      raise ValueError(
          f"{path}: it was cut off at byte"
          f" {offset + count * row_bytes - len(left)} while it was read,"
          f" expected {expected}."
      )
  return data.reshape(rows, row_bytes)


class _Rows:
  """The rows of a table, in private mappings of its files or in a copy."""

  def __init__(
      self, description: Sequence[Any], row_bytes: int, copy_to_huge_pages: bool
  ):
    self.name, self.rows, self.columns, self.encoding = description[:4]
    self.combiner = description[4]
    self.row_bytes = row_bytes
    parts = [part for part in description[5] if part[2]]
    if copy_to_huge_pages and parts:
      self.first_rows = np.zeros(1, np.int64)
      self.parts = [_copy(self.name, parts, self.rows, row_bytes)]
    else:
      self.first_rows = np.array([part[1] for part in parts], np.int64)
      self.parts = [_map(self.name, part, row_bytes) for part in parts]

  def by_part(self, ids: np.ndarray):
    """(part, positions of its ids, its rows) of ids that are in the table."""
    part_of = np.searchsorted(self.first_rows, ids, "right") - 1
    for i, part in enumerate(self.parts):
      positions = np.flatnonzero(part_of == i)
      yield part, positions, ids[positions] - self.first_rows[i]

  def read(self, ids: np.ndarray) -> np.ndarray:
    """float32[n, columns]; ids of -1 are rows of zeros."""
    encoded = np.zeros((len(ids), self.row_bytes), np.uint8)
    for part, positions, rows in self.by_part(ids):
      encoded[positions] = part[rows]
    return decode(self.encoding, self.columns, encoded)


def _gains(
    table: str,
    combiner: str,
    weights: np.ndarray | None,
    samples: np.ndarray,
    count: int,
) -> np.ndarray:
  """float32 gains of ids, as cc/convert/stages/gains.h has them."""
  sizes = np.bincount(samples, minlength=count).astype(np.float32)
  one = np.float32(1)
  with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
    if weights is None:
      divisors = {
          "sum": np.ones_like(sizes),
          "mean": sizes,
          "sqrtn": np.sqrt(sizes),
      }[combiner]
      return (one / divisors)[samples]
    if combiner == "sum":
      return weights
    sums = np.zeros(count, np.float32)
    if combiner == "mean":
      np.add.at(sums, samples, weights)
    else:
      # The square and the sum are rounded once, by adding one id of each sample
      # at a time.
      begins = np.searchsorted(samples, np.arange(count))
      for i in range(int(sizes.max(initial=0))):
        has = np.flatnonzero(sizes > i)
        square = weights[begins[has] + i].astype(np.float64) ** 2
        sums[has] = (sums[has] + square).astype(np.float32)
      sums = np.sqrt(sums)
    if not np.isfinite(sums).all():
      raise ValueError(
          f"Table {table!r}: sample {int(np.argmin(np.isfinite(sums)))} has"
          " weights that the combiner divides by more than float32 can hold."
          " Scale the weights of the sample, which changes no result."
      )
    of_ids = sums[samples]
    return np.where(of_ids == 0, np.float32(0), weights / of_ids)


class Tables:
  """Lookups in mapped files, or in copies of them."""

  def __init__(
      self,
      tables: Sequence[tuple[Any, ...]],
      version: int,
      row_bytes: Sequence[int],
      *,
      zero_out_of_range: bool,
      copy_to_huge_pages: bool,
  ):
    self.version = version
    self._tables = [
        _Rows(t, b, copy_to_huge_pages) for t, b in zip(tables, row_bytes)
    ]
    self._zero_out_of_range = zero_out_of_range
    # Reentrant: a thread that holds the version looks rows up.
    self._lock = threading.RLock()

  @property
  def version_lock(self) -> Any:
    """Keeps the version in a `with` block."""
    return self._lock

  def is_held(self) -> bool:
    """Whether this thread keeps the version."""
    return self._lock._is_owned()  # pylint: disable=protected-access

  def look(self, requests: list[tuple[Any, ...]], is_held: bool) -> None:
    del is_held
    with self._lock:
      for request in requests:
        self._look(*request)

  def _look(self, table, ids, row_splits, weights, combiner, out) -> None:
    table = self._tables[table]
    flat = ids.reshape(-1).astype(np.int64)
    is_row = (flat >= 0) & (flat < table.rows)
    if not self._zero_out_of_range and not is_row.all():
      i = int(np.argmin(is_row))
      raise ValueError(
          f"Table {table.name!r}: id {flat[i]} at position {i} is not one of"
          f" its rows, [0, {table.rows}). Pass ids of rows, or open the tables"
          ' with out_of_range="zero".'
      )
    # All that are none are one: they repeat each other in the order of sums.
    flat = np.where(is_row, flat, -1)
    if row_splits is None and ids.ndim == 1:
      out[...] = table.read(flat).reshape(out.shape)
      return
    if row_splits is None:
      row_splits = np.arange(len(ids) + 1) * ids.shape[1]
    self._check(table, flat, row_splits, weights)
    count = len(row_splits) - 1
    samples = np.repeat(np.arange(count), np.diff(row_splits))
    gains = _gains(
        table.name, combiner or table.combiner, weights, samples, count
    )
    # By sample and row, those that repeat in the order given; what is no row
    # comes last.
    keys = np.where(flat < 0, table.rows, flat)
    order = np.lexsort((keys, samples))
    samples, keys, gains = samples[order], keys[order], gains[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (np.diff(keys) != 0) | (np.diff(samples) != 0)
    merged = gains[is_first]
    repeats = np.flatnonzero(~is_first)
    np.add.at(merged, np.cumsum(is_first)[repeats] - 1, gains[repeats])
    rows = table.read(flat[order][is_first])
    out[...] = 0
    np.add.at(
        out.reshape(count, table.columns),
        samples[is_first],
        merged[:, None] * rows,
    )

  def _check(self, table, ids, row_splits, weights) -> None:
    if (
        not len(row_splits)
        or row_splits[0] != 0
        or row_splits[-1] != len(ids)
        # No difference, which may be one of more than 64 bits.
        or (row_splits[1:] < row_splits[:-1]).any()
    ):
      raise ValueError(
          f"Table {table.name!r}: row_splits are {row_splits!r:.80}, expected"
          " numbers that ascend from 0 to that of the ids,"
          f" {len(ids)}, one more than there are samples."
      )
    if weights is None:
      return
    if len(weights) != len(ids):
      raise ValueError(
          f"Table {table.name!r}: there are {len(weights)} weights for"
          f" {len(ids)} ids, expected as many."
      )
    if not np.isfinite(weights).all():
      i = int(np.argmin(np.isfinite(weights)))
      raise ValueError(
          f"Table {table.name!r}: weight {weights[i]} at position {i} is not"
          " finite."
      )

  def apply(self, changes: list[tuple[Any, ...]], version: int) -> None:
    for number, table in enumerate(self._tables):
      # Changes of a table follow one another.
      of_table = [change for change in changes if change[0] == number]
      for kind, i in (("changed", 1), ("deleted", 3)):
        no_rows = np.zeros(0, np.int64)
        of_kind = np.concatenate([no_rows, *(change[i] for change in of_table)])
        ascending = (of_kind[1:] > of_kind[:-1]).all()
        if len(of_kind) and not (
            ascending and of_kind[0] >= 0 and of_kind[-1] < table.rows
        ):
          raise ValueError(
              f"Table {table.name!r}: {kind} rows are {of_kind!r:.80}, expected"
              f" ascending rows below {table.rows}."
          )
    with self._lock:
      for number, rows, values, deleted in changes:
        table = self._tables[number]
        for part, positions, of_part in table.by_part(rows):
          part[of_part] = values[positions]
        for part, _, of_part in table.by_part(deleted):
          part[of_part] = 0
      self.version = version
