# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups in exported tables, without JAX.

    tables = embedding_tables.open("/served")
    tables.lookup("items", ids)                        # float32[..., D]
    tables.activations({"clicked": ids, "bought": (values, row_splits)})
    tables.refresh()                                   # to the newest version

Rows stay in the files, which are mapped: opening takes no time, and processes
share the memory; or `open` copies them to huge pages. Lookups are native where
the extension module is there, and in NumPy elsewhere, with the same bits: those
of `lookup_ids` on one SparseCore (docs/design/lookup_from_ids.md), of rows as
their encoding has them.

Any number of threads may use the tables. A call sees one version of all of
them; `at_one_version` makes several calls do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import logging
import operator
import os
import pathlib
import threading
from typing import Any

from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _numpy_tables
from jax_tpu_embedding.sparsecore.serving import _rows
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

try:
  from jax_tpu_embedding.sparsecore.serving import pybind_embedding_tables
except ImportError:  # Another platform: NumPy does it.
  pybind_embedding_tables = None

ServedFileError = _files.ServedFileError
_log = logging.getLogger(__name__)

_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
_COMBINERS = ("sum", "mean", "sqrtn")
_OUT_OF_RANGE = ("error", "zero")
# How often a version is read again that was replaced meanwhile.
_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True)
class _Snapshot:
  """A full version in memory, which deltas change in place."""

  rows: Any  # pybind_embedding_tables.Tables, or that of _numpy_tables
  tables: Mapping[str, _versions.Table]
  numbers: Mapping[str, int]  # of tables, in `rows`
  features: Mapping[str, _versions.Feature] | None
  run: str  # of the publisher


def open(  # pylint: disable=redefined-builtin
    directory: str | os.PathLike[str],
    *,
    verify: bool = False,
    num_threads: int = 1,
    out_of_range: str = "error",
    copy_to_huge_pages: bool = False,
) -> EmbeddingTables:
  """The current version of the tables in a directory.

  Args:
    directory: what `export_tables` wrote or a `Publisher` writes to.
    verify: reads all rows and compares them with their checksums, before they
      are mapped or copied: who changes a file after that is not found out.
      Without it only sizes, headers and manifests are checked. Deltas always
      are, whole.
    num_threads: that a call may use, if it is large enough; NumPy uses one.
    out_of_range: of ids that are not in their table: "error", or "zero": they
      are rows of zeros, which count in a mean.
    copy_to_huge_pages: copies the rows to memory of this process, by
      `num_threads`, instead of mapping the files: in huge pages, where the
      system has them, rows are found faster than in most files of a disk.
      Tables below 2 MiB (NumPy: 4 MiB) are in small ones. It takes memory for
      all rows in every process, and for both versions while `refresh` loads a
      full one.

  Raises:
    MemoryError: there is none for a copy, or for a manifest or delta; the
      message names table and files.
    ServedFileError: a file is missing, damaged or of another version; the
      message names it.
    TypeError: num_threads is not an integer, or copy_to_huge_pages no bool.
    ValueError: num_threads or out_of_range is none of these, or no directory
      can have this name.
  """
  if out_of_range not in _OUT_OF_RANGE:
    raise ValueError(
        f"out_of_range must be one of {', '.join(_OUT_OF_RANGE)}, got"
        f" {out_of_range!r}."
    )
  try:
    num_threads = operator.index(num_threads)
  except TypeError as error:
    raise TypeError(
        f"num_threads must be an integer, got {num_threads!r}."
    ) from error
  if num_threads < 1:
    raise ValueError(f"num_threads must be positive, got {num_threads}.")
  if num_threads >= 2**31:
    raise ValueError(f"num_threads must be below 2^31, got {num_threads}.")
  if not isinstance(copy_to_huge_pages, (bool, np.bool_)):
    raise TypeError(
        f"copy_to_huge_pages must be a bool, got {copy_to_huge_pages!r}."
    )
  return EmbeddingTables(
      _files.as_directory(directory),
      verify,
      num_threads,
      zero_out_of_range=out_of_range == "zero",
      copy_to_huge_pages=bool(copy_to_huge_pages),
  )


def _as_array(x: Any, what: str, name: str) -> np.ndarray:
  if isinstance(x, np.ma.MaskedArray):
    raise ValueError(
        f"{what} {name!r} are a masked array, and what is masked would be"
        " looked up. Fill it, weights with .filled(0), or pass what is left,"
        " .compressed()."
    )
  try:
    return np.asarray(x)
  except ValueError as error:  # Lists of lists of different sizes.
    raise ValueError(
        f"{what} {name!r} are no array: {error} Samples of different sizes are"
        " values and row_splits."
    ) from error


def _as_ids(ids: Any, what: str, name: str) -> np.ndarray:
  """Aligned C-contiguous int32 or int64; errors call them `what` of `name`."""
  if (
      type(ids) is np.ndarray
      and (ids.dtype is _INT64 or ids.dtype is _INT32)
      and ids.flags.c_contiguous
      and ids.flags.aligned
  ):
    return ids
  array = _as_array(ids, what, name)
  if not array.size and array.dtype.kind == "f":
    return np.zeros(array.shape, np.int64)  # an empty list
  if array.dtype.kind not in "iu":
    raise TypeError(f"{what} {name!r} must be integers, got {array.dtype}.")
  if array.dtype.kind == "u" and array.size and array.max() >= 2**63:
    raise ValueError(f"{what} {name!r} must be below 2^63, got {array.max()}.")
  kind = _INT32 if array.dtype == _INT32 else _INT64
  return np.require(array, kind, "CA").reshape(array.shape)


def _as_splits(row_splits: Any, what: str, name: str) -> np.ndarray:
  splits = _as_ids(row_splits, what, name)
  if splits.ndim != 1:
    raise ValueError(
        f"{what} {name!r} must be int64[samples + 1], got shape {splits.shape}."
    )
  return splits if splits.dtype is _INT64 else splits.astype(np.int64)


def _as_weights(weights: Any, what: str, name: str) -> np.ndarray:
  array = _as_array(weights, what, name)
  if array.dtype.kind not in "fiu":
    raise TypeError(f"{what} {name!r} must be numbers, got {array.dtype}.")
  with np.errstate(over="ignore"):
    weights = np.require(array, np.float32, "CA").reshape(-1)
  if array.dtype.itemsize > 4:
    flat = array.reshape(-1)
    too_large = np.isinf(weights) & np.isfinite(flat)
    if too_large.any():
      i = int(np.argmax(too_large))
      raise ValueError(
          f"{what} {name!r} must be numbers that float32 has, got {flat[i]} at"
          f" position {i}."
      )
  return weights


class EmbeddingTables:
  """Tables of a directory; `open` makes it."""

  def __init__(
      self,
      directory: pathlib.Path,
      verify: bool,
      num_threads: int,
      *,
      zero_out_of_range: bool,
      copy_to_huge_pages: bool,
  ):
    self._directory = directory
    self._verify = verify
    self._num_threads = num_threads
    self._zero_out_of_range = zero_out_of_range
    self._copy_to_huge_pages = copy_to_huge_pages
    self._refreshing = threading.Lock()
    self._held = threading.local()  # .snapshot, in at_one_version
    self._key: tuple[int, str] | None = None  # of the version; _refreshing
    self._snapshot: _Snapshot = None  # Until _update.
    self._update()

  def __reduce__(self):
    raise TypeError(
        "EmbeddingTables cannot be pickled or copied: open"
        f" {self._directory} in every process. They share the memory of files"
        " that are mapped."
    )

  # ---- What there is

  @property
  def version(self) -> int:
    """Its number; it counts up."""
    return self._now()[0].rows.version

  @property
  def tables(self) -> Mapping[str, _versions.Table]:
    """Name -> .rows, .columns, .encoding, .combiner of each table."""
    return self._now()[0].tables

  @property
  def features(self) -> Mapping[str, str] | None:
    """Name of a feature -> that of its table; None: none were exported."""
    features = self._now()[0].features
    if features is None:
      return None
    return {name: feature.table for name, feature in features.items()}

  # ---- Lookups

  def lookup(self, name: str, ids: Any) -> np.ndarray:
    """Rows of a table.

    Args:
      name: of the table.
      ids: integers of any shape.

    Returns:
      float32[*ids.shape, D].

    Raises:
      KeyError: there is no such table.
      TypeError: ids are no integers.
      ValueError: an id is not in the table, if that is an error; or ids are a
        masked array.
    """
    snapshot, is_held = self._now()
    number = self._number(snapshot, name)
    ids = _as_ids(ids, "ids of table", name)
    columns = snapshot.tables[name].columns
    out = np.empty((*ids.shape, columns), np.float32)
    request = (number, ids.reshape(-1), None, None, None, out)
    snapshot.rows.look([request], is_held)
    return out

  def lookup_pooled(
      self,
      name: str,
      values: Any,
      row_splits: Any,
      weights: Any = None,
      combiner: str | None = None,
      out: np.ndarray | None = None,
  ) -> np.ndarray:
    """Rows of a table, combined by sample.

    Args:
      name: of the table.
      values: int[n], ids of all samples.
      row_splits: int[B + 1]; sample s has values[row_splits[s]:row_splits[s + 1]].
      weights: float[n]; default: all 1.
      combiner: "sum", "mean" or "sqrtn"; default: the table's.
      out: float32[B, D] to write to, C-contiguous.

    Returns:
      `out`, or float32[B, D]. Samples without ids are zeros.

    Raises:
      KeyError, TypeError, ValueError: as lookup does, and for shapes that do not
      fit each other, an unknown combiner, and weights that are not finite.
    """
    snapshot, is_held = self._now()
    number = self._number(snapshot, name)
    if combiner is not None and combiner not in _COMBINERS:
      raise ValueError(
          f"Unknown combiner {combiner!r}; choose one of"
          f" {', '.join(_COMBINERS)}."
      )
    values = _as_ids(values, "values of table", name).reshape(-1)
    splits = _as_splits(row_splits, "row_splits of table", name)
    if weights is not None:
      weights = _as_weights(weights, "weights of table", name)
    shape = (max(len(splits) - 1, 0), snapshot.tables[name].columns)
    if out is None:
      out = np.empty(shape, np.float32)
    elif not isinstance(out, np.ndarray):
      raise TypeError(
          f"out must be a NumPy array, float32{list(shape)}, got"
          f" {type(out).__name__}."
      )
    elif out.shape != shape or out.dtype != _FLOAT32 or not out.flags.carray:
      raise ValueError(
          "out must be a writeable, aligned, C-contiguous"
          f" float32{list(shape)}, got"
          f" {out.dtype}{list(out.shape)}."
      )
    request = (number, values, splits, weights, combiner, out)
    snapshot.rows.look([request], is_held)
    return out

  def activations(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Activations of features, by the tables and combiners of training.

    All ids of a sample are pooled, also those of a feature with several
    positions; and what is done with ids out of range is up to `open`, not to
    the policies of features.

    Args:
      features: name -> ids[B], one id for each sample; ids[B, v]; or (values,
        row_splits) or (values, row_splits, weights) as for lookup_pooled.

    Returns:
      name -> float32[B, D], where D is the last of output_shape: fewer columns
      than the table's are its first ones. All are of one version.

    Raises:
      KeyError: there is no such feature.
      TypeError, ValueError: as lookup_pooled does.
    """
    # Most are, which is found out sooner.
    if type(features) is not dict and not isinstance(features, Mapping):
      raise TypeError(
          f"features must map names to ids, got a {type(features).__name__}."
      )
    snapshot, is_held = self._now()
    requests, result = [], {}
    for feature, ids in features.items():
      of_feature = self._feature(snapshot, feature)
      name = of_feature.table
      splits = weights = None
      if isinstance(ids, tuple):
        if not 2 <= len(ids) <= 3:
          raise ValueError(
              f"Feature {feature!r} has a tuple of {len(ids)}, expected (values,"
              " row_splits) or (values, row_splits, weights)."
          )
        splits = _as_splits(ids[1], "row_splits of feature", feature)
        if len(ids) == 3 and ids[2] is not None:
          weights = _as_weights(ids[2], "weights of feature", feature)
        ids = _as_ids(ids[0], "values of feature", feature)
        samples = max(len(splits) - 1, 0)
      else:
        ids = _as_ids(ids, "ids of feature", feature)
        if ids.ndim == 1:
          ids = ids.reshape(-1, 1)
        elif ids.ndim != 2:
          raise ValueError(
              f"Feature {feature!r} has ids of shape {ids.shape}, expected [B]"
              " or [B, ids of a sample]."
          )
        samples = ids.shape[0]
        if not ids.size:  # Samples without ids have no valency.
          splits = np.zeros(samples + 1, np.int64)
      out = np.empty((samples, snapshot.tables[name].columns), np.float32)
      requests.append((snapshot.numbers[name], ids, splits, weights, None, out))
      result[feature] = out[:, : of_feature.columns]
    snapshot.rows.look(requests, is_held)
    return result

  @contextlib.contextmanager
  def at_one_version(self) -> Iterator[EmbeddingTables]:
    """Lookups of this thread in the `with` block see one version.

    A refresh by another thread waits meanwhile, and with it all lookups that
    begin later, so the block should do lookups and nothing else.
    """
    snapshot = self._holding() or self._snapshot
    try:
      # Taken and given back in C, where no signal's handler can raise: refresh,
      # and all lookups after it, would wait for ever. The last block of a thread
      # gives it back: those of coroutines need not be nested.
      with snapshot.rows.version_lock:
        self._held.snapshot = snapshot
        yield self
    finally:
      if not snapshot.rows.is_held():
        self._held.snapshot = None

  def _holding(self) -> _Snapshot | None:
    """What this thread holds the version of."""
    held = getattr(self._held, "snapshot", None)
    return held if held is not None and held.rows.is_held() else None

  def _now(self) -> tuple[_Snapshot, bool]:
    """What to look up in, and whether this thread holds its version."""
    held = self._holding()
    return (self._snapshot, False) if held is None else (held, True)

  def _number(self, snapshot: _Snapshot, name: str) -> int:
    number = snapshot.numbers.get(name)
    if number is None:
      raise KeyError(
          f"There is no table {name!r} in {self._directory}; there are"
          f" {', '.join(map(repr, snapshot.numbers)) or 'none'}."
      )
    return number

  def _feature(self, snapshot: _Snapshot, name: str) -> _versions.Feature:
    if snapshot.features is None:
      raise KeyError(
          f"{self._directory} names no features, {name!r} among them. Export"
          " with feature_specs, or look up by table: lookup_pooled."
      )
    feature = snapshot.features.get(name)
    if feature is None:
      raise KeyError(
          f"There is no feature {name!r} in {self._directory}; there are"
          f" {', '.join(map(repr, snapshot.features)) or 'none'}."
      )
    return feature

  # ---- Versions

  def refresh(self) -> bool:
    """Takes over the current version of the directory.

    Deltas change rows in place; lookups wait only while rows are copied. Where
    that cannot be done, because the current version is not made of this one,
    its full version is loaded, and the log says why. A delta that is damaged is
    not used, nor are those after it: the log says which, and the next call
    tries again.

    Returns:
      Whether the version changed.

    Raises:
      ServedFileError: neither works. The tables stay as they are.
      MemoryError: there is none for a copy, or for a manifest or delta; the
        tables stay as well.
      RuntimeError: this thread is in at_one_version.
    """
    if self._holding() is not None:
      raise RuntimeError(
          "refresh was called in at_one_version, which keeps the version."
          " Refresh after the with block, or in another thread."
      )
    with self._refreshing:
      return self._update()

  def _update(self) -> bool:
    """Goes to the current version; reads again if it was replaced meanwhile."""
    before = self._key
    for attempt in range(_ATTEMPTS):
      current = _versions.read_current(self._directory)
      if current == self._key:
        break
      try:
        self._go_to_current()
        break
      except ServedFileError:
        newer = _versions.read_current(self._directory)
        if newer == current or attempt == _ATTEMPTS - 1:
          raise
    return self._key != before

  def _go_to_current(self) -> None:
    chain = _versions.read_chain(self._directory, stop_at=self._key)
    if chain and chain[0].base is None:
      full = chain.pop(0)
      snapshot = self._load(full)
      self._say_why_full(full, chain)
      # Seen when its deltas are there too.
      key = self._apply(snapshot, full.key(), chain)
      self._snapshot = snapshot
    else:
      snapshot = self._snapshot
      key = self._apply(snapshot, self._key, chain)
    self._key = key

  def _say_why_full(
      self, full: _versions.Version, deltas: Sequence[_versions.Version]
  ) -> None:
    if self._key is None:
      return
    newest = deltas[-1] if deltas else full
    _log.info(
        "%s: loaded the full version %d: version %d (manifest %s) is not made of"
        " version %d (manifest %s), which was loaded.",
        self._directory,
        full.number,
        newest.number,
        newest.crc32,
        *self._key,
    )

  def _apply(
      self,
      snapshot: _Snapshot,
      key: tuple[int, str],
      deltas: Sequence[_versions.Version],
  ) -> tuple[int, str]:
    """Applies deltas, up to one that is damaged; returns what is reached."""
    for delta in deltas:
      try:
        _versions.check_follows(snapshot.run, snapshot.tables, delta)
        changes = [
            (snapshot.numbers[name], c.rows, c.values, c.deleted)
            for name, table in delta.tables.items()
            for c in _rows.read_changes(table)
        ]
        try:
          snapshot.rows.apply(changes, delta.number)
        except ValueError as error:
          raise ServedFileError(f"{delta.path}: {error}") from error
      except ServedFileError as error:
        if _versions.read_current(self._directory) != deltas[-1].key():
          raise  # It was replaced, so it may be gone.
        _log.warning(
            "%s: staying at version %d, since version %d cannot be used: %s",
            self._directory,
            key[0],
            delta.number,
            error,
        )
        return key
      key = delta.key()
      if snapshot is self._snapshot:
        self._key = key  # Also if a later one raises.
    return key

  def _load(self, full: _versions.Version) -> _Snapshot:
    is_native = pybind_embedding_tables is not None
    # Names of files are bytes there, which need not be UTF-8.
    path_of = os.fsencode if is_native else os.fspath
    descriptions = []
    for table in full.tables.values():
      for file in table.files:
        _rows.check_full_file(table, file, self._verify)
      descriptions.append(
          (
              table.name,
              table.rows,
              table.columns,
              table.encoding,
              table.combiner,
              [
                  (path_of(file.path), file.first_row, file.rows, file.offset)
                  for file in table.files
              ],
          )
      )
    try:
      if is_native:
        rows = pybind_embedding_tables.Tables(
            descriptions,
            full.number,
            zero_out_of_range=self._zero_out_of_range,
            copy_to_huge_pages=self._copy_to_huge_pages,
            num_threads=self._num_threads,
        )
      else:
        rows = _numpy_tables.Tables(
            descriptions,
            full.number,
            [table.row_bytes for table in full.tables.values()],
            zero_out_of_range=self._zero_out_of_range,
            copy_to_huge_pages=self._copy_to_huge_pages,
        )
    except ValueError as error:
      raise ServedFileError(str(error)) from error
    return _Snapshot(
        rows=rows,
        tables=full.tables,
        numbers={name: i for i, name in enumerate(full.tables)},
        features=full.features,
        run=full.run,
    )
