# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions of tables while they are trained: full ones, and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import functools
import os
import pathlib
import threading
from typing import Any
import weakref

from absl import logging
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.export import _delta_version
from jax_tpu_embedding.sparsecore.lib.export import _fingerprints
from jax_tpu_embedding.sparsecore.lib.export import _full_version
from jax_tpu_embedding.sparsecore.lib.export import _new_version
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _published
from jax_tpu_embedding.sparsecore.lib.export import _served_directory
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.serving import _files
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np


class Publisher:
  """Publishes tables, again and again, for readers that follow.

  A version is full, or has exactly the rows whose encoded bytes differ from
  those of the version before: a step that does not change a code of int8 ships
  nothing. Which rows these are is known from a fingerprint of 8 bytes per row,
  which is what a publisher keeps in memory; one that is started again computes
  them from the files, and goes on.

  In a job of several processes all make a publisher, with the same arguments,
  and all of its methods are called by all in the same order. Each process keeps
  the fingerprints of the rows that it writes, to files of its own; so the
  directory is on a file system that all share.

  Args:
    directory: a new or empty one, or one that was published to. It is this
      publisher's until it is closed or deleted, or the process ends.
    feature_specs: what the variables are made for.
    encoding: as of export_tables.
    tables: the names of those to publish; default: all.
    full_every: every so many versions one is full: readers that start apply
      fewer deltas.
    keep_full: so many full versions stay, and all deltas since the oldest of
      them.
    max_file_bytes: of a file's rows, of full versions.
    num_sc_per_device: default: what the specs were prepared for.

  Raises:
    TypeError: tables, encoding or a number is of another kind. No file was
      made.
    ValueError: specs, tables and encodings do not fit each other, or what is in
      the directory. No file was made.
    RuntimeError: there is another publisher.
    What one of several processes raises, all raise: the others with its number.
  """

  def __init__(
      self,
      directory: str | os.PathLike[str],
      feature_specs: Any,
      *,
      encoding: str | Mapping[str, str] = "int8",
      tables: Sequence[str] | None = None,
      full_every: int = 24,
      keep_full: int = 2,
      max_file_bytes: int = 4 << 30,
      num_sc_per_device: int | None = None,
  ):
    # Threads wait for each other: versions follow one another. A signal's
    # handler may close what it interrupts.
    self._publishing = threading.RLock()
    self._agreement = _new_version.new_agreement()
    self._feature_specs = feature_specs
    self._encoding = encoding
    self._names = tables
    self._num_sc_per_device = num_sc_per_device
    with self._agreement.stage():
      self._full_every = _sources.as_positive("full_every", full_every)
      self._keep_full = _sources.as_positive("keep_full", keep_full)
      self._max_file_bytes = _sources.as_positive(
          "max_file_bytes", max_file_bytes
      )
      self._tables = _sources.of_specs(feature_specs, tables, encoding)
      self._features = _sources.features_of(feature_specs, self._tables)
    self._is_open = contextlib.ExitStack()
    # Also if nobody does: other hosts go by the name that is in its file.
    weakref.finalize(self, self._is_open.close)
    # The first process alone has the directory, and what is published.
    self._served: _served_directory.ServedDirectory | None = None
    self._chain: list[_versions.Version] = []
    with self._agreement.stage():
      if self._agreement.is_first:
        self._served = _served_directory.ServedDirectory(directory)
        self._check_columns(self._read_chain())
        self._is_open.enter_context(self._served.locked())
        # Again: another publisher may just have ended.
        self._chain = self._read_chain()
    self._run = self._chain[-1].run if self._chain else os.urandom(16).hex()
    # Of the rows in self._runs, those of this process, in version self._number;
    # None: to be computed from files.
    self._fingerprints: _delta_version.Fingerprints | None = None
    self._runs: dict[str, _parts.Runs] | None = None
    self._number: int | None = None

  def publish(
      self, variables: Mapping[str, Any], step: int
  ) -> _published.PublishedVersion:
    """Publishes the tables as they are; returns when readers can see them.

    Args:
      variables: {stack name: EmbeddingVariables}, arrays or jax.Refs. They stay
        as they are, and must not change meanwhile.
      step: of training, from 0 to 2^60; not below that of the version before.

    Returns:
      The version: what was written of each table, and what encoding lost.

    Raises:
      TypeError: step is not an integer.
      ValueError: variables or step do not fit; or rows cannot be encoded, such
        as those with NaN. Readers stay with the version before.
      RuntimeError: the publisher was closed.
      OSError: files cannot be written. Readers stay with the version before,
        and the next version has the changes of both. Or the directory was
        removed: make another publisher.
    """
    with self._publishing:
      return self._publish(variables, step)

  def _publish(
      self, variables: Mapping[str, Any], step: int
  ) -> _published.PublishedVersion:
    with self._agreement.stage() as checked:
      if self._is_open is None:
        raise RuntimeError("This publisher was closed. Make another one.")
      step = _tables_json.as_step(step)
      source = _sources.of(
          variables,
          self._feature_specs,
          self._names,
          self._encoding,
          self._num_sc_per_device,
      )
      checked.value = step
    with self._agreement.stage() as planned:
      if self._served is not None:
        self._check_steps(checked.values)
        if self._can_be_delta():
          planned.value = str(self._served.path), *self._chain[-1].key()
    runs = {name: _parts.runs_of(source, name) for name in self._tables}
    # The last version is not the base if this process, or the first one, was
    # interrupted once that was current.
    is_of_base = planned.first is not None and planned.first[1] == self._number
    fingerprints = None
    if is_of_base and runs == self._runs:
      fingerprints = self._fingerprints
    # None again, until there is a version that they are of.
    self._fingerprints, self._runs = None, runs
    with self._agreement.stage() as read:
      if planned.first is not None and fingerprints is None:
        fingerprints, read.value = self._read_fingerprints(*planned.first)
    with self._agreement.stage() as decided:
      if self._served is not None:
        problems = [problem for problem in read.values if problem is not None]
        if problems:
          logging.warning("This version will be full: %s", problems[0])
        decided.value = planned.first is not None and not problems
    try:
      version, fingerprints = self._write(
          source, fingerprints if decided.first else None, step
      )
      self._number = version.number
      self._fingerprints = fingerprints
    finally:
      # As in the files, whatever became of them.
      if self._served is not None:
        self._chain = self._read_chain()
    if self._served is not None:
      self._remove_old(version.number)
    return version

  def _check_steps(self, steps: Sequence[int]) -> None:
    """Checks those that the processes publish."""
    for process, step in enumerate(steps):
      if step != steps[0]:
        raise ValueError(
            f"Process {process} publishes step {step}, and process 0 step"
            f" {steps[0]}. All processes publish the same steps, in one order."
        )
    last = self._chain[-1].step if self._chain else None
    if last is not None and steps[0] < last:
      raise ValueError(
          f"step {steps[0]} is below {last}, the step of version"
          f" {self._chain[-1].number} in {self._served.path}. Publish what was"
          " trained further, or to another directory."
      )

  def _write(
      self,
      source: _sources.Source,
      fingerprints: _delta_version.Fingerprints | None,
      step: int,
  ) -> tuple[_published.PublishedVersion, _delta_version.Fingerprints]:
    """Writes a version; it, and the fingerprints of its rows.

    Args:
      source: the tables.
      fingerprints: of the version that a delta changes, which become those of
        the new one. None: it is full.
      step: of training.
    """
    is_delta = fingerprints is not None
    more = {}
    if is_delta:
      new_writer = functools.partial(
          _delta_version.ChangedRows,
          index=self._agreement.index,
          fingerprints=fingerprints,
      )
      if self._served is not None:
        base = self._chain[-1]
        more["base"] = {"version": base.number, "manifest_crc32": base.crc32}
    else:
      fingerprints = {
          name: np.empty(table.rows, np.uint64)
          for name, table in self._tables.items()
      }

      def observe(name, first, rows):
        found = _fingerprints.of_rows(rows)
        fingerprints[name][first : first + len(rows)] = found

      new_writer = functools.partial(
          _full_version.FullTable,
          index=self._agreement.index,
          file_format="safetensors",
          max_file_bytes=self._max_file_bytes,
          observe=observe,
      )
    version = _new_version.write(
        self._agreement,
        self._served,
        source,
        self._runs,
        new_writer,
        functools.partial(
            _full_version.manifest,
            kind="delta" if is_delta else "full",
            run=self._run,
            step=step,
            features=self._features,
            **more,
        ),
        is_delta=is_delta,
    )
    return version, fingerprints

  def close(self) -> None:
    """Lets others publish to the directory; closing again does nothing."""
    with self._publishing:
      if self._is_open is not None:
        self._is_open.close()
        self._is_open = None

  def __enter__(self) -> Publisher:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def _read_chain(self) -> list[_versions.Version]:
    """What readers have; empty if it is of no use any more."""
    try:
      return self._served.chain()
    except _versions.NewerFormatError:
      raise
    except _files.ServedFileError as error:
      logging.warning("The next version will be full: %s", error)
      return []

  def _check_columns(self, chain: list[_versions.Version]) -> None:
    published = chain[-1].tables if chain else {}
    for name, table in self._tables.items():
      if name in published and published[name].columns != table.columns:
        raise ValueError(
            f"Table {name!r}: {self._served.path} has"
            f" {published[name].columns} columns, the spec {table.columns}."
            " Publish to another directory: readers cannot change columns."
        )

  def _can_be_delta(self) -> bool:
    """Whether readers can get from what they have to the next version."""
    if not self._chain or len(self._chain) >= self._full_every:
      return False
    published = self._chain[-1]
    found = {
        name: (table.rows, table.encoding, table.combiner)
        for name, table in published.tables.items()
    }
    if published.features != self._features or found != {
        name: (table.rows, table.encoding.name, table.combiner)
        for name, table in self._tables.items()
    }:
      return False
    return True

  def _read_fingerprints(
      self, directory: str, number: int, crc32: str
  ) -> tuple[_delta_version.Fingerprints | None, str | None]:
    """Those of this process's rows in a version; or None, and why not."""
    rows_of = {
        name: runs.get(self._agreement.index, (0, 0))
        for name, runs in self._runs.items()
    }
    try:
      chain = _versions.read_chain(
          pathlib.Path(directory), version=(number, crc32)
      )
      return _delta_version.read_fingerprints(chain, rows_of), None
    except _files.ServedFileError as error:
      return None, str(error)

  def _remove_old(self, current: int) -> None:
    try:
      # Those above are there if CURRENT was set back, and nobody reads them.
      full = [n for n in self._served.full_numbers() if n <= current]
      # If no manifest can be read, all that may be of use stays.
      oldest = min(full[-self._keep_full :], default=0)
      self._served.remove_others(set(range(oldest, current + 1)))
    except OSError as error:
      # The version is published; the next one tries again.
      logging.warning("Old versions stay in %s: %s", self._served.path, error)
