# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints from which a run continues bit for bit.

One checkpoint is one directory `<step>/` with two items: `state`, the arrays
(dense parameters, optimizer state, tables and slot variables), and `run`, JSON
with the settings they belong to and the evaluations so far. Orbax writes to a
temporary directory and renames it at the end: a run that dies while saving
leaves the previous checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import train_state
import numpy as np
import orbax.checkpoint as ocp

# The newest, and one more in case a disk error spoils it.
_MAX_TO_KEEP = 2


class Checkpoints:
  """The checkpoints of one run; a context manager.

  Args:
    directory: an absolute path; made if it is missing, except to resume.
    flag: the flag that says where it is, to be named in errors.
    resume: whether to continue from the newest checkpoint; otherwise there must
      be none.
    num_steps: step at which training ends; None if that is not known yet.

  Raises:
    UsageError: the directory or its newest checkpoint cannot be used.
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
    self._settings = {}
    if resume and not directory.is_dir():
      raise command_line.UsageError(
          f"--resume: there is no directory {directory}."
      )
    command_line.make_directory(directory, flag)
    self._manager = ocp.CheckpointManager(
        self._directory,
        item_names=("state", "run"),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=_MAX_TO_KEEP,
            # The next step changes the tables in place.
            enable_async_checkpointing=False,
        ),
    )
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
    return self

  def __exit__(self, *exception) -> None:
    self._manager.close()

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
    try:
      run = self._manager.restore(
          step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
      )["run"]
      return {"settings": run["settings"], "history": run["history"]}
    except (KeyError, OSError, ValueError):
      raise command_line.UsageError(
          f"--resume: {self._directory / str(step)} is not a checkpoint of this"
          " program."
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
    """Writes a checkpoint of `state.step`, unless there is one already."""
    run = {"settings": self._settings, "history": history}
    self._manager.save(
        state.step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state.arrays()),
            run=ocp.args.JsonSave(run),
        ),
    )

  def restore(self, state: train_state.State) -> list[dict[str, float]]:
    """Sets `state` to what is resumed; returns its evaluations so far."""
    step = self._manager.latest_step()
    # Orbax restores NumPy arrays where the target has them.
    target = jax.tree.map(np.zeros_like, state.arrays())
    arrays = self._manager.restore(
        step,
        args=ocp.args.Composite(state=ocp.args.StandardRestore(target)),
    )["state"]
    state.step = step
    state.assign(arrays)
    return self._resumed["history"]
