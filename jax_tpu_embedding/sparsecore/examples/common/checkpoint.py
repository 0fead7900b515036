# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints from which a run continues bit for bit.

One checkpoint is one directory `<step>/` with three items: `tables`, tables and
slot variables as lib/checkpoint saves them, for any devices; `state`, all other
arrays (dense parameters and the state of their optimizer); and `run`, JSON with
the settings they belong to, the evaluations so far and a checksum of every
array of `state`. Orbax writes to a temporary directory and renames it at the
end: a run that dies while saving leaves the previous checkpoint, and the next
run removes what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import fcntl
import os
import pathlib
import shutil
import sys
from typing import Any
import zlib

from absl import logging
import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.lib.checkpoint import orbax_handlers
import numpy as np
import orbax.checkpoint as ocp

# The newest, and one more in case a disk error spoils it.
_MAX_TO_KEEP = 2


class Checkpoints:
  """The checkpoints of one run; a context manager.

  A KeyboardInterrupt that leaves it has a note that says where the run can be
  continued, if it can be.

  Args:
    directory: an absolute path; made if it is missing, except to resume.
    flag: the flag that says where it is, to be named in errors.
    resume: whether to continue from the newest checkpoint; otherwise there must
      be none.
    num_steps: step at which training ends; None if that is not known yet.

  Raises:
    UsageError: the directory or its newest checkpoint cannot be used; when it
      is entered, another run is using the directory.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      *,
      flag: str,
      resume: bool,
      num_steps: int | None,
  ):
    self._directory = directory
    self._flag = flag
    self._lock = None  # An open directory, in the first process.
    self._settings = {}
    if resume and not directory.is_dir():
      raise command_line.UsageError(
          f"--resume: there is no directory {directory}."
      )
    command_line.make_directory(directory, flag)
    try:
      self._manager = ocp.CheckpointManager(
          self._directory,
          item_names=("state", "tables", "run"),
          options=ocp.CheckpointManagerOptions(
              max_to_keep=_MAX_TO_KEEP,
              # The next step changes the tables in place.
              enable_async_checkpointing=False,
          ),
      )
    except Exception as error:  # whatever Orbax makes of damaged metadata
      raise command_line.UsageError(
          f"--{flag}: the checkpoints in {directory} are damaged:"
          f" {_first_line(error)} Remove the newest."
      ) from error
    step = self._manager.latest_step()
    if resume:
      self._resumed = self._checked_run(step, num_steps)
    elif step is None:
      self._resumed = None
    else:
      raise command_line.UsageError(
          f"{self._directory} already has a checkpoint of step {step}. Add"
          " --resume to continue that run, or name another directory."
      )

  def __enter__(self) -> Checkpoints:
    job.from_first(self._take)
    return self

  def __exit__(self, error_type, error, traceback) -> None:
    step = self._manager.latest_step()
    if isinstance(error, KeyboardInterrupt) and step is not None:
      error.add_note(
          f"--resume continues from step {step} in {self._directory}"
      )
    self._manager.close()
    if self._lock is not None:
      self._remove_unfinished()
      os.close(self._lock)

  def _take(self) -> None:
    """Keeps other runs out of the directory, and clears it of what one left."""
    if not os.access(self._directory, os.W_OK):
      raise command_line.UsageError(
          f"--{self._flag}: {self._directory} is not for writing, where"
          " checkpoints would go. Name another directory, or a copy of it."
      )
    self._lock = os.open(self._directory, os.O_RDONLY)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      os.close(self._lock)
      raise command_line.UsageError(
          f"--{self._flag}: another run is writing to {self._directory}. Wait"
          " for its end, or name another directory."
      ) from None
    except OSError:
      pass  # NFS, for one, locks no directories: there nothing is found out.
    # Orbax would do it in a thread, which fails if the program ends before.
    self._remove_unfinished()

  def _remove_unfinished(self) -> None:
    """Removes what a run that was killed, or interrupted, was saving."""
    for left in self._directory.glob("*.orbax-checkpoint-tmp*"):
      shutil.rmtree(left, ignore_errors=True)

  def _checked_run(
      self, step: int | None, num_steps: int | None
  ) -> dict[str, Any]:
    """The item `run` of the checkpoint to continue from."""
    if step is None:
      raise command_line.UsageError(
          f"--resume: there is no checkpoint in {self._directory}."
      )
    if num_steps is not None and step > num_steps:
      raise command_line.UsageError(
          f"--resume: the checkpoint in {self._directory} is already at step"
          f" {step}, beyond --num_steps={num_steps}."
      )
    path = self._directory / str(step)
    if (path / "state").is_dir() and not (path / "tables").is_dir():
      raise command_line.UsageError(
          f"--resume: {path} is of an earlier version of this program, which"
          " saved tables for its number of devices. Continue it with that, or"
          " start another run."
      )
    try:
      run = self._manager.restore(
          step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
      )["run"]
      return {
          "settings": dict(run["settings"]),
          "history": list(run["history"]),
          "checksums": dict(run["checksums"]),
      }
    except (KeyError, OSError, TypeError, ValueError):
      raise command_line.UsageError(
          f"--resume: {path} is not a checkpoint of this program."
      ) from None

  def require(self, settings: Mapping[str, Any]) -> None:
    """Adds settings, as JSON has them, that a run must keep when resumed.

    Raises:
      UsageError: the checkpoint to continue from has others.
    """
    self._settings |= settings
    if self._resumed is None:
      return
    saved = self._resumed["settings"]
    changes = [
        f"{name} is {wanted}, was {saved.get(name)}"
        for name, wanted in settings.items()
        if saved.get(name) != wanted
    ]
    if changes:
      raise command_line.UsageError(
          f"--resume: the checkpoint in {self._directory} is of a run with"
          f" other settings: {'; '.join(changes)}."
      )

  def save(
      self, state: train_state.State, history: list[dict[str, float]]
  ) -> None:
    """Writes a checkpoint of `state.step`, unless there is one already.

    Raises:
      UsageError: it cannot be written. Earlier ones are as they were.
    """
    arrays = state.arrays()
    run = {
        "settings": self._settings,
        "history": history,
        "checksums": _checksums(arrays),
    }
    try:
      with _only_raising():
        self._manager.save(
            state.step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(arrays),
                tables=orbax_handlers.TablesSave(
                    orbax_handlers.Tables(
                        state.table_variables(),
                        state.feature_specs,
                        step=state.step,
                    )
                ),
                run=ocp.args.JsonSave(run),
            ),
        )
    except Exception as error:  # of the disk, by way of Orbax and TensorStore
      raise command_line.UsageError(
          f"Cannot write the checkpoint of step {state.step} to"
          f" {self._directory}: {_first_line(error)}"
      ) from error

  def restore(self, state: train_state.State) -> list[dict[str, float]]:
    """Sets `state` to what is resumed; returns its evaluations so far.

    The devices, and how tables are stacked, may be others than when it was
    saved.

    Raises:
      UsageError: the checkpoint is damaged. The tables of `state` may then have
        any values; all else is as it was.
    """
    step = self._manager.latest_step()
    # Orbax restores NumPy arrays where the target has them.
    target = jax.tree.map(np.zeros_like, state.arrays())
    tables = orbax_handlers.AbstractTables(
        state.feature_specs, variables=state.table_variables()
    )
    try:
      arrays = self._manager.restore(
          step,
          args=ocp.args.Composite(state=ocp.args.StandardRestore(target)),
      )["state"]
      for name, checksum in _checksums(arrays).items():
        if self._resumed["checksums"].get(name) != checksum:
          raise ValueError(f"{name} is not what was saved.")
      variables = self._manager.restore(
          step,
          args=ocp.args.Composite(tables=orbax_handlers.TablesRestore(tables)),
      )["tables"]
    except Exception as error:  # whatever Orbax makes of a damaged file
      raise self._damaged(step, _first_line(error)) from error
    state.step = step
    state.assign(arrays)
    state.assign_tables(variables)
    return self._resumed["history"]

  def _damaged(self, step: int, reason: str) -> command_line.UsageError:
    return command_line.UsageError(
        f"--resume: the checkpoint {self._directory / str(step)} is damaged:"
        f" {reason} Remove it to resume from an earlier one."
    )


@contextlib.contextmanager
def _only_raising() -> Iterator[None]:
  """Leaves out tracebacks of what is raised as well.

  Orbax's threads log what they raise, and what TensorStore still writes once
  one has failed finds Orbax's event loop closed. A user who asked for more than
  warnings gets them.

  After an error, which ends the program, there are no more of them: the threads
  may go on for a moment.
  """
  verbosity, hook = logging.get_verbosity(), sys.unraisablehook
  if verbosity <= logging.WARNING:
    logging.set_verbosity(logging.FATAL)
    sys.unraisablehook = lambda _: None
  yield
  logging.set_verbosity(verbosity)
  sys.unraisablehook = hook


def _checksums(arrays: Mapping[str, Any]) -> dict[str, int]:
  """CRC-32 of each array, by its name."""
  return {
      name: zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)
      for name, array in arrays.items()
  }


def _first_line(error: Exception) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[0][:300].rstrip(".") + "."
