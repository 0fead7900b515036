# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Statistics in files: names, keys, and how those of all processes combine."""

from __future__ import annotations

import abc
import collections
from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import dataclasses
import io
import logging
import os
import pathlib
import re
import stat
import time
from typing import BinaryIO

import jax
from jax_tpu_embedding.sparsecore.lib.fdo import fdo_client
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

Stats = embedding.SparseDenseMatmulInputStats

# Key, i.e. table and suffix -> i64[n] or i64[] for each record.
History = dict[str, list[np.ndarray]]

# By suffix, in the order in which keys are matched with them.
_FIELDS = {
    field.metadata["suffix"]: field.name for field in dataclasses.fields(Stats)
}

# Of a client. Others may be reading the one before the last.
_KEPT_FILES = 3
# Nobody takes as long to write a file: who began it was killed.
_ABANDONED_SECONDS = 24 * 60 * 60

_SUFFIXES = {name: suffix for suffix, name in _FIELDS.items()}


class FileFDOClient(fdo_client.FDOClient):
  """Files of one format in a directory that all processes share.

  Each process publishes files of its own; the latest of each one counts. A
  client deletes those of its own that have become old. Not for several threads.
  """

  # Of the file names.
  extension: str

  def __init__(
      self, base_dir: str | os.PathLike[str], retain_history: bool = True
  ):
    """Makes a client without records.

    Args:
      base_dir: an existing directory.
      retain_history: whether every record is kept. If not, only the largest
        value of each statistic is, and `load` returns one value of each.

    Raises:
      NotADirectoryError: if the directory is not there. Publishing would fail,
        hours later.
    """
    # Absolute: the program may change to another directory meanwhile.
    self._base_dir = pathlib.Path(base_dir).absolute()
    if not self._base_dir.is_dir():
      raise NotADirectoryError(
          f"{self._base_dir} is no directory. Make it, for all processes to"
          " see, before the client of statistics."
      )
    self._retain_history = retain_history
    self._history: History = {}
    self._published: list[pathlib.Path] = []

  @abc.abstractmethod
  def _write(self, file: BinaryIO, history: History) -> None:
    """Writes the records of each key."""

  @abc.abstractmethod
  def _read(self, file: BinaryIO) -> History:
    """Reads what `_write` has written; raises anything if it is not that."""

  def record(self, data: Stats) -> None:
    """Adds the statistics of a batch, as integers.

    Raises:
      TypeError: if it is something else than statistics by table.
      ValueError: if a statistic has another length than in earlier records, or
        is not a number of ids or cells, or files cannot have a table's name.
    """
    new = _flatten(data)
    for key, records in new.items():
      _check_same_length(key, records, "this record", self._history)
    for key, records in new.items():
      self._history.setdefault(key, []).extend(records)
    if not self._retain_history:
      self._history = _largest(self._history)

  def publish(self) -> None:
    """Writes a file with all records of this process.

    Other processes see all of it or nothing. Of the files of this client, the
    last three stay; those of others, as of earlier runs, all do. What a
    process that was killed did not finish is removed a day later.
    """
    process = jax.process_index()
    earlier = [
        published_at for published_at, _ in self._files().get(process, ())
    ]
    # A clock that was set back since does not hide this one behind them.
    published_at = max(time.time_ns(), 1 + max(earlier, default=0))
    while not (opened := self._open(process, published_at)):
      published_at += 1  # Another client with this number took the name.
    file, path = opened
    unfinished = pathlib.Path(file.name)
    try:
      with file:
        self._write(file, self._history)
      now = unfinished.stat().st_mtime
      os.replace(unfinished, path)
    finally:
      unfinished.unlink(missing_ok=True)
    self._published.append(path)
    self._remove_abandoned(now)
    while len(self._published) > _KEPT_FILES:
      old = self._published.pop(0)
      try:
        old.unlink(missing_ok=True)
      except OSError as error:  # No reason to end a run.
        logging.getLogger(__name__).warning(
            "fdo: %s stays, which later files replace: %s", old, error
        )

  def _open(
      self, process: int, published_at: int
  ) -> tuple[BinaryIO, pathlib.Path] | None:
    """A new file, and its path when it is complete; None if others have it."""
    path = (
        self._base_dir / f"fdo_stats_{process}_{published_at}.{self.extension}"
    )
    try:
      # Not a name that `load` looks at.
      file = open(path.with_name(f".{path.name}.unfinished"), "xb")
    except FileExistsError:
      return None
    # Whoever finished it did so before this file could be made.
    if os.path.lexists(path):
      with file:
        os.unlink(file.name)
      return None
    return file, path

  def _remove_abandoned(self, now: float) -> None:
    """Removes what processes that were killed have left unfinished.

    Args:
      now: by the clock of the file system, which all of them share.
    """
    pattern = rf"\.fdo_stats_\d+_\d+\.{self.extension}\.unfinished"
    for path in self._base_dir.iterdir():
      if not re.fullmatch(pattern, path.name):
        continue
      with contextlib.suppress(OSError):  # Others remove it, too.
        if path.stat().st_mtime < now - _ABANDONED_SECONDS:
          path.unlink()

  def load(self) -> Stats:
    """The statistics of the latest file of each process.

    They also replace what this client has recorded.

    Returns:
      Of one process, with `retain_history`: what it recorded, i64[records, n],
      or i64[n] of one record. Otherwise i64[n], the largest of all processes
      and records; drop counters likewise tell of the batch of a process that
      dropped most.

    Raises:
      FileNotFoundError: if there is no file.
      OSError: if the directory lists a file that is not there.
      ValueError: for what is no file or was not published by such a client, and
        for statistics of different lengths.
    """
    paths = None
    while True:
      before, paths = paths, self._latest_paths()
      if not paths:
        raise FileNotFoundError(
            f"No file fdo_stats_<process>_<time>.{self.extension} in"
            f" {self._base_dir}. Publish statistics there first."
        )
      try:
        history = self._read_files(paths)
        break
      except FileNotFoundError as error:  # Another one took its place.
        if paths == before:
          raise OSError(f"{self._base_dir} lists what is not there.") from error
    if len(paths) > 1 or not self._retain_history:
      history = _largest(history)
    _fill_alignment(history)
    self._history = history
    return _unflatten(history)

  def _files(self) -> Mapping[int, list[tuple[int, pathlib.Path]]]:
    """The files of each process, and when they were published."""
    files = collections.defaultdict(list)
    for path in self._base_dir.iterdir():
      match = re.fullmatch(
          rf"fdo_stats_(\d+)_(\d+)\.{self.extension}", path.name
      )
      if match:
        process, published_at = map(int, match.groups())
        files[process].append((published_at, path))
    return files

  def _latest_paths(self) -> list[pathlib.Path]:
    return [max(files)[1] for _, files in sorted(self._files().items())]

  def _read_files(self, paths: Iterable[pathlib.Path]) -> History:
    history: History = {}
    for path in paths:
      for key, records in self._read_file(path).items():
        _check_same_length(key, records, str(path), history)
        history.setdefault(key, []).extend(records)
    return history

  def _read_file(self, path: pathlib.Path) -> History:
    if not stat.S_ISREG(path.stat().st_mode):  # A pipe would be waited for.
      raise ValueError(
          f"{path} is no file, and has the name of a file of statistics. Remove"
          " it, or use another directory."
      )
    data = path.read_bytes()  # Errors of the disk are no errors of the format.
    try:
      history = self._read(io.BytesIO(data))
      for key, records in history.items():
        _split_key(key)
        if not records or any(record.ndim > 1 for record in records):
          raise ValueError(f"{key} is not a list of records.")
        if any(record.size == 0 or record.min() < 0 for record in records):
          raise ValueError(f"{key} has a record without or below 0.")
        _check_same_length(key, records, "a record", {key: records[:1]})
    except Exception as error:  # whatever the bytes made of the reader
      reason = str(error).rstrip(".")
      raise ValueError(
          f"{path} is not a file of statistics: {reason}. Remove it, and"
          " publish again."
      ) from error
    return history


def stack(records: list[np.ndarray]) -> np.ndarray:
  """i64[records, n], or the record itself if there is only one."""
  return records[0] if len(records) == 1 else np.vstack(records)


def unstack(array: np.ndarray) -> list[np.ndarray]:
  """The records of an array that `stack` made."""
  return list(array) if array.ndim > 1 else [array]


def _largest(history: Mapping[str, list[np.ndarray]]) -> History:
  return {
      key: [np.max(np.vstack(records), axis=0)]
      for key, records in history.items()
  }


def _fill_alignment(history: History) -> None:
  """Gives batches of before there was minibatching an alignment, which is zero.

  It is added to the cells that the same batch needed.
  """
  suffix = _SUFFIXES["minibatch_alignment_per_sc"]
  for key, alignments in history.items():
    if key.endswith(suffix):
      of_sizes = key.removesuffix(suffix) + (
          _SUFFIXES["required_buffer_size_per_sc"]
      )
      missing = len(history.get(of_sizes, ())) - len(alignments)
      alignments[:0] = [np.zeros_like(alignments[0])] * missing


def _flatten(stats: Stats) -> History:
  if not isinstance(stats, Stats):
    raise TypeError(
        f"A record must be {Stats.__name__}, got {type(stats).__name__}. Pass"
        " what preprocessing returned."
    )
  for field in _FIELDS.values():
    by_table = getattr(stats, field)
    if not isinstance(by_table, Mapping):
      raise TypeError(
          f"{field} must be a mapping from tables to numbers, got"
          f" {type(by_table).__name__}."
      )
    for table in by_table:
      _check_table(field, table)
  return {
      table + suffix: unstack(_to_int64(table + suffix, value))
      for suffix, field in _FIELDS.items()
      for table, value in getattr(stats, field).items()
  }


def _check_table(field: str, table: str) -> None:
  """Raises ValueError for a name that a file would not give back."""
  try:
    is_name = isinstance(table, str) and b"\0" not in table.encode()
  except UnicodeEncodeError:
    is_name = False
  if not is_name:
    raise ValueError(
        f"{field}: {table!r} cannot be the name of a table in a file. Use a"
        " string of UTF-8 without NUL."
    )


def _unflatten(history: History) -> Stats:
  fields = {name: {} for name in _FIELDS.values()}
  for key, records in history.items():
    table, suffix = _split_key(key)
    fields[_FIELDS[suffix]][table] = stack(records)
  return Stats(**fields)


def _split_key(key: str) -> tuple[str, str]:
  for suffix in _FIELDS:
    if key.endswith(suffix):
      return key.removesuffix(suffix), suffix
  raise ValueError(
      f"Key {key!r} does not end like a statistic: {', '.join(_FIELDS)}."
  )


def _to_int64(key: str, value: np.ndarray | int | float) -> np.ndarray:
  array = np.asarray(value)
  is_numbers = array.dtype.kind in "iuf" and array.size > 0
  # NaN is neither.
  is_count = is_numbers and np.all((array >= 0) & (array < 2**63))
  if not is_count or array.ndim > 2:
    raise ValueError(
        f"{key} must be numbers in [0, 2**63), at most 2-D, got {value!r}."
    )
  # A buffer size that was split over SparseCores may have a fraction.
  return np.ceil(array).astype(np.int64)


def _check_same_length(
    key: str,
    records: Iterable[np.ndarray],
    origin: str,
    earlier: Mapping[str, list[np.ndarray]],
) -> None:
  for record in records:
    expected = earlier[key][0].size if key in earlier else record.size
    if record.size != expected:
      raise ValueError(
          f"{key} has {record.size} values in {origin}, and {expected} before."
          " Statistics of different numbers of devices do not combine: use"
          " another directory for each."
      )
