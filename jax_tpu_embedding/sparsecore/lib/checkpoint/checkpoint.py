# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints of tables: train here, restore there.

    checkpoint.save(path, variables, feature_specs, step=100)
    variables = checkpoint.restore(path, other_specs, other_sharding)

A checkpoint has each table as its user declared it, [vocabulary_size,
embedding_dim], and its slots by name: devices, SparseCores, hosts, stacks and
padding leave no trace, so it is restored on any others, bit for bit. Rows go
from devices to files, and back, in blocks; never is there a second copy of a
table in memory.

It is complete or not there: orbax writes to a temporary name and renames it.
Every file has a checksum; what is damaged is an error, and never zeros.

Several processes call these functions alike, each on one thread, as any
collective operation. Paths may be what tensorstore and orbax take, such as
gs://bucket/path, which is not tested here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import threading
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _path_lock
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _restore
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _save
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import orbax_handlers
import numpy as np
from orbax.checkpoint import v1 as ocp

CheckpointError = _row_blocks.CheckpointError
RestorePolicy = _restore.RestorePolicy
SavedTable = _tables_json.SavedTable
SavedTables = _tables_json.SavedTables


class PendingSave:
  """A checkpoint that is being written in the background."""

  def __init__(
      self, path: str, response: Any, until_saved: contextlib.ExitStack
  ):
    self._path = path
    self._error: BaseException | None = None
    self._is_over = threading.Event()
    # orbax calls nobody when a save fails, and nobody may call wait().
    thread = threading.Thread(
        target=self._wait_for, args=(response, until_saved), daemon=True
    )
    try:
      thread.start()
    except RuntimeError:  # The system has no thread left: it is waited for.
      self._wait_for(response, until_saved)

  def _wait_for(self, response: Any, until_saved: contextlib.ExitStack) -> None:
    try:
      with until_saved:
        response.result()
    except BaseException as error:  # pylint: disable=broad-exception-caught
      self._error = error  # wait() raises it
    self._is_over.set()

  def wait(self, timeout: float | None = None) -> None:
    """Returns when the checkpoint is there.

    Args:
      timeout: seconds; None: as long as it takes.

    Raises:
      CheckpointError: it could not be written. There is none.
      TimeoutError: it is not there yet.
    """
    if not self._is_over.wait(timeout):
      raise TimeoutError(f"{self._path} is not there after {timeout} seconds.")
    if isinstance(self._error, OSError):
      raise _cannot_write(self._path, self._error) from self._error
    if self._error is not None:
      raise self._error

  def done(self) -> bool:
    """Whether wait() would return at once, or raise what went wrong."""
    return self._is_over.is_set()


# Saves of this process by real path, of which some may be over; None: rows are
# being read. All saves to a path have one temporary directory, so that a second
# one would take away what the first one writes.
_saves: dict[str, PendingSave | None] = {}
_saves_lock = threading.Lock()


def _reserve(path: str) -> None:
  """Raises ValueError if a save to a real path is not over."""
  with _saves_lock:
    for other, save in list(_saves.items()):
      if save is not None and save.done():
        del _saves[other]
    if path in _saves:
      raise ValueError(
          f"{path} is being saved to. wait() for that save, or save to another"
          " path."
      )
    _saves[path] = None


def save(
    path: str | os.PathLike[str],
    variables: Mapping[str, Any],
    feature_specs: Any,
    *,
    step: int | None = None,
    slots: bool = True,
    host_buffer_bytes: int | None = _save.HOST_BUFFER_BYTES,
    compression: str | None = None,
    num_sc_per_device: int | None = None,
) -> None:
  """Saves tables and slots; the variables stay as they are.

  Args:
    path: a new directory.
    variables: {stack name: EmbeddingVariables}, arrays or jax.Refs, with a
      leading dimension of devices or without.
    feature_specs: what the variables were made for.
    step: to be saved with them, from 0 to 2^60.
    slots: whether to save slots.
    host_buffer_bytes: rows that may wait on the host to be written; None: all.
    compression: "zstd" makes files smaller, by some percent as a rule, and
      takes several times as long; None: none.
    num_sc_per_device: default: what the specs were prepared for; if a layer
      could not prepare them, as raw ids tell sizes, as JAX's first device.

  Raises:
    TypeError: path is none, step is not an integer, or variables are something
      else, or no arrays on devices.
    ValueError: variables and specs do not fit each other, an array was donated,
      tables have names that files cannot have, an option is out of range, or
      there is something at `path`, or about to be: another process saves to it.
      No file is made.
    CheckpointError: it could not be written. What there was stays.
  """
  save_async(
      path,
      variables,
      feature_specs,
      step=step,
      slots=slots,
      host_buffer_bytes=host_buffer_bytes,
      compression=compression,
      num_sc_per_device=num_sc_per_device,
  ).wait()


def save_async(
    path: str | os.PathLike[str],
    variables: Mapping[str, Any],
    feature_specs: Any,
    **options: Any,
) -> PendingSave:
  """As save, but returns once every row has been read.

  Then the next step may change the variables, while files are written. With
  host_buffer_bytes=None it returns as soon as rows are copied, which may take
  as much host memory as the tables; with a limit, memory is bounded, and it
  returns about when the disk is done. All rows are of one moment. wait() before
  the process ends, or there may be no checkpoint.

  Args:
    path: a new directory.
    variables: as of save.
    feature_specs: what the variables were made for.
    **options: those of save.

  Raises:
    TypeError: as save.
    ValueError: as save.
    CheckpointError: as save; later problems are raised by wait().
  """
  path = _zarr_rows.absolute(path)
  _zarr_rows.Directory(path)  # raises for URLs that nothing can read
  tables = orbax_handlers.Tables(variables, feature_specs, **options)
  real_path = path if "://" in path else os.path.realpath(path)
  _reserve(real_path)
  until_saved = contextlib.ExitStack()
  try:
    agreement = _agreement.Agreement("path", [ValueError, CheckpointError])
    with agreement.stage():
      if agreement.is_first:
        until_saved.enter_context(_path_lock.locked(real_path))
    response = ocp.save_checkpointables_async(path, {_tables_json.ITEM: tables})
  except BaseException as error:
    until_saved.close()
    del _saves[real_path]
    if isinstance(error, OSError):
      raise _cannot_write(path, error) from error
    raise
  pending = _saves[real_path] = PendingSave(path, response, until_saved)
  return pending


def _cannot_write(path: str, error: OSError) -> CheckpointError:
  """What orbax says of directories and files that it makes itself."""
  return CheckpointError(f"Cannot write {path}: {error}")


def restore(
    path: str | os.PathLike[str],
    feature_specs: Any,
    sharding: jax.sharding.NamedSharding,
    *,
    key: jax.Array | None = None,
    num_sc_per_device: int | None = None,
    tables: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    policy: RestorePolicy | Mapping[str, RestorePolicy] = RestorePolicy(),
) -> dict[str, Any]:
  """New variables, as those of init_embedding_variables, from a checkpoint.

  Args:
    path: a checkpoint, or the item of one in which tables are.
    feature_specs: prepared for these devices; stacked in any way.
    sharding: as that of init_embedding_variables.
    key: for what the checkpoint does not have, where the policy allows it: new
      tables and rows have the values that init_embedding_variables makes.
    num_sc_per_device: default: as JAX's first device.
    tables: the only ones to restore; others get initial values.
    names: {table: its name in the checkpoint}, where that is another one.
    policy: what to do where the checkpoint is not what the specs say, of all
      tables or by table. Types are converted to those of the specs.

  Raises:
    TypeError: path is none, policy is neither of these, or tables is a string.
    ValueError: the checkpoint does not fit the specs. Nothing was allocated.
    MemoryError: the variables cannot fit. Nothing was allocated.
    CheckpointError: the checkpoint is damaged, or there is none.
  """
  return orbax_handlers.AbstractTables(
      feature_specs,
      sharding,
      key=key,
      num_sc_per_device=num_sc_per_device,
      tables=tables,
      names=names,
      policy=policy,
  ).restore(_zarr_rows.absolute(path))


def restore_into(
    variables: Mapping[str, Any],
    path: str | os.PathLike[str],
    feature_specs: Any,
    *,
    num_sc_per_device: int | None = None,
    tables: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    policy: RestorePolicy | Mapping[str, RestorePolicy] = RestorePolicy(),
) -> dict[str, Any]:
  """Variables with the values of a checkpoint.

  What the checkpoint does not have, where the policy allows it, stays as it is
  in `variables`: new rows, tables, and slots.

  Args:
    variables: {stack name: EmbeddingVariables}. Arrays are consumed; jax.Refs
      are changed in place.
    path: as of restore.
    feature_specs: what the variables were made for.
    num_sc_per_device: as of save.
    tables: as of restore.
    names: as of restore.
    policy: as of restore.

  Returns:
    The variables.

  Raises:
    TypeError: as restore.
    ValueError: checkpoint, specs and variables do not fit each other. Nothing
      was changed, unless the message says so.
    CheckpointError: the checkpoint is damaged, or there is none. The message
      names the tables that were overwritten.
  """
  return orbax_handlers.AbstractTables(
      feature_specs,
      variables=variables,
      num_sc_per_device=num_sc_per_device,
      tables=tables,
      names=names,
      policy=policy,
  ).restore(_zarr_rows.absolute(path))


def load_tables(
    variables: Mapping[str, Any],
    feature_specs: Any,
    arrays: Mapping[str, Any],
    *,
    num_sc_per_device: int | None = None,
    policy: RestorePolicy | Mapping[str, RestorePolicy] = RestorePolicy(),
) -> dict[str, Any]:
  """Variables with given rows in some tables; slots stay as they are.

  Args:
    variables: as of restore_into.
    feature_specs: what the variables were made for.
    arrays: table name -> [vocabulary_size, embedding_dim]: an array of NumPy, a
      memory map, a slice of safetensors (`get_slice`), or what else has a shape
      and gives NumPy arrays for slices. It is read in blocks.
    num_sc_per_device: as of save.
    policy: its `rows` counts: what to do with another number of rows.

  Returns:
    The variables.

  Raises:
    TypeError: as restore; or an array is none, or masked.
    ValueError: an array does not fit its table. Nothing was changed.
  """
  return _restore.load_tables(
      variables, feature_specs, arrays, num_sc_per_device, policy
  )


def describe(path: str | os.PathLike[str]) -> SavedTables:
  """What a checkpoint has; str() of it is a table to print.

  Raises:
    TypeError: path is none.
    CheckpointError: there is none, or its tables.json is damaged.
  """
  return _tables_json.read(_zarr_rows.absolute(path))[1]


def verify(path: str | os.PathLike[str]) -> SavedTables:
  """Reads every file of a checkpoint; returns what it has.

  Raises:
    CheckpointError: naming all files that are damaged or missing.
  """
  directory, saved = _tables_json.read(_zarr_rows.absolute(path))
  problems = []
  with _progress.Progress("checking", saved.num_bytes) as progress:
    for variable in saved.variables():
      array = saved.array_format(variable)
      try:
        source = directory.open_array(
            _tables_json.directory_of(variable), array, variable
        )
      except CheckpointError as error:
        problems.append(str(error))
        continue
      for block in array.ranges():
        try:
          for _ in progress.of(source).blocks([block]):
            pass
        except CheckpointError as error:
          problems.append(str(error))
  if problems:
    raise CheckpointError("\n".join(problems))
  return saved


def read_table(
    path: str | os.PathLike[str], table: str, slot: str | None = None
) -> np.ndarray:
  """A whole table or slot as NumPy, [vocabulary_size, columns].

  Raises:
    ValueError: the checkpoint has no such table or slot.
    CheckpointError: the checkpoint is damaged, or there is none.
  """
  directory, saved = _tables_json.read(_zarr_rows.absolute(path))
  variable = _row_blocks.Variable(table=table, slot=slot)
  if variable not in saved.variables():
    raise ValueError(
        f"The checkpoint has no {variable}, only:"
        f" {', '.join(map(str, saved.variables()))}."
    )
  array = saved.array_format(variable)
  source = directory.open_array(
      _tables_json.directory_of(variable), array, variable
  )
  result = np.empty((source.rows, source.columns), source.dtype)
  for first, values in source.blocks(array.ranges()):
    result[first : first + len(values)] = values
  return result
