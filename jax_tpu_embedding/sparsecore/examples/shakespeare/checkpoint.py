# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints from which a run continues bit for bit.

One checkpoint is one directory `<step>/` with two items: `state`, the arrays
(dense parameters, optimizer state, tables and slot variables), and `run`, JSON
with the settings they belong to and the losses so far. Orbax writes to a
temporary directory and renames it at the end: a run that dies while saving
leaves the previous checkpoint.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np
import orbax.checkpoint as ocp

# The newest, and one more in case a disk error spoils it.
_MAX_TO_KEEP = 2


class Checkpoints:
  """The checkpoints of one run; a context manager.

  Args:
    directory: an absolute path; made if it is missing, except to resume.
    config: the settings of the run.
    data: the text of the run.
    api: that of the trainer whose states they are.

  Raises:
    UsageError: `config` and the checkpoints in `directory` do not fit.
  """

  def __init__(
      self,
      directory: pathlib.Path,
      config: config_lib.Config,
      data: dataset.Dataset,
      api: str,
  ):
    self._directory = directory
    self._config = config
    self._settings = {
        "text": data.sha256,
        "api": api,
        **config.result_shaping(),
    }
    if config.resume and not directory.is_dir():
      raise config_lib.UsageError(
          f"--resume: there is no directory {directory}."
      )
    try:
      directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise config_lib.UsageError(
          f"--checkpoint_dir: cannot make {directory}: {error.strerror}."
      ) from None
    self._manager = ocp.CheckpointManager(
        self._directory,
        item_names=("state", "run"),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=_MAX_TO_KEEP,
            # The next step changes the tables in place.
            enable_async_checkpointing=False,
        ),
    )
    self._check()

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *exception) -> None:
    self._manager.close()

  def _check(self) -> None:
    step = self._manager.latest_step()
    if not self._config.resume:
      if step is not None:
        raise config_lib.UsageError(
            f"{self._directory} already has a checkpoint of step {step}. Add"
            " --resume to continue that run, or name another directory."
        )
      return
    if step is None:
      raise config_lib.UsageError(
          f"--resume: there is no checkpoint in {self._directory}."
      )
    if step > self._config.num_steps:
      raise config_lib.UsageError(
          f"--resume: the checkpoint in {self._directory} is already at step"
          f" {step}, beyond --num_steps={self._config.num_steps}."
      )
    try:
      saved = self._run(step)["settings"]
    except (KeyError, OSError, ValueError):
      raise config_lib.UsageError(
          f"--resume: {self._directory / str(step)} is not a checkpoint of this"
          " program."
      ) from None
    changes = [
        f"{name} is {wanted}, was {saved.get(name)}"
        for name, wanted in self._settings.items()
        if saved.get(name) != wanted
    ]
    if changes:
      raise config_lib.UsageError(
          f"--resume: the checkpoint in {self._directory} is of a run with"
          f" other settings: {'; '.join(changes)}."
      )

  def _run(self, step: int) -> dict[str, Any]:
    return self._manager.restore(
        step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
    )["run"]

  def save(
      self, state: training.State, history: list[dict[str, float]]
  ) -> None:
    """Writes a checkpoint of `state.step`, unless there is one already."""
    if state.step == self._manager.latest_step():
      return
    run = {"settings": self._settings, "history": history}
    self._manager.save(
        state.step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state.arrays()),
            run=ocp.args.JsonSave(run),
        ),
    )

  def restore(self, state: training.State) -> list[dict[str, float]]:
    """Sets `state` to the newest checkpoint; returns its losses so far."""
    step = self._manager.latest_step()
    # Orbax restores NumPy arrays where the target has them.
    target = jax.tree.map(np.zeros_like, state.arrays())
    arrays = self._manager.restore(
        step,
        args=ocp.args.Composite(state=ocp.args.StandardRestore(target)),
    )["state"]
    state.step = step
    state.assign(arrays)
    return self._run(step)["history"]
