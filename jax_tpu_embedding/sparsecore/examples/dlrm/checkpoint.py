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

import pathlib
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import training
import numpy as np
import orbax.checkpoint as ocp

# The newest, and one more in case a disk error spoils it.
_MAX_TO_KEEP = 2


def _arrays(state: training.State) -> dict[str, Any]:
  """The state as a tree of arrays; reads the tables out of their references."""
  return {
      "dense": state.dense,
      "optimizer_state": state.optimizer_state,
      "tables": jax.tree.map(lambda ref: ref[...], state.tables),
  }


class Checkpoints:
  """The checkpoints of one run; a context manager.

  Args:
    directory: an absolute path; made if it is missing, except to resume.
    config: the settings of the run.

  Raises:
    UsageError: `config` and the checkpoints in `directory` do not fit.
  """

  def __init__(self, directory: pathlib.Path, config: config_lib.Config):
    self._directory = directory
    self._settings = config.result_shaping()
    if config.resume and not directory.is_dir():
      raise config_lib.UsageError(
          f"--resume: there is no directory {directory}."
      )
    try:
      directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise config_lib.UsageError(
          f"--output_dir: cannot make {directory}: {error.strerror}."
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
    self._check(config)

  def __enter__(self) -> Checkpoints:
    return self

  def __exit__(self, *exception) -> None:
    self._manager.close()

  def _check(self, config: config_lib.Config) -> None:
    step = self._manager.latest_step()
    if not config.resume:
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
    if config.num_steps and step > config.num_steps:
      raise config_lib.UsageError(
          f"--resume: the checkpoint in {self._directory} is already at step"
          f" {step}, beyond --num_steps={config.num_steps}."
      )
    try:
      saved = self._run(step)["settings"]
    except (KeyError, OSError, ValueError):
      raise config_lib.UsageError(
          f"--resume: {self._directory / str(step)} is not a checkpoint of this"
          " program."
      ) from None
    self._check_same(self._settings, saved)

  def _check_same(self, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
    changes = [
        f"{name} is {value}, was {saved.get(name)}"
        for name, value in wanted.items()
        if saved.get(name) != value
    ]
    if changes:
      raise config_lib.UsageError(
          f"--resume: the checkpoint in {self._directory} is of another run:"
          f" {'; '.join(changes)}."
      )

  def _run(self, step: int) -> dict[str, Any]:
    return self._manager.restore(
        step, args=ocp.args.Composite(run=ocp.args.JsonRestore())
    )["run"]

  def save(
      self,
      state: training.State,
      history: list[dict[str, float]],
      log_sha256: str,
  ) -> None:
    """Writes a checkpoint of `state.step`, unless there is one already."""
    if state.step == self._manager.latest_step():
      return
    run = {
        "settings": self._settings,
        "log_sha256": log_sha256,
        "history": history,
    }
    self._manager.save(
        state.step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(_arrays(state)),
            run=ocp.args.JsonSave(run),
        ),
    )

  def restore(
      self, trainer: training.Trainer, log_sha256: str
  ) -> tuple[training.State, list[dict[str, float]]]:
    """The state of the newest checkpoint, and the evaluations so far.

    Raises:
      UsageError: the checkpoint is of a run with another log.
    """
    step = self._manager.latest_step()
    run = self._run(step)
    self._check_same(
        {"log_sha256": log_sha256}, {"log_sha256": run["log_sha256"]}
    )
    state = trainer.init()
    arrays = self._manager.restore(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardRestore(
                jax.tree.map(np.zeros_like, _arrays(state))
            )
        ),
    )["state"]
    state.step = step
    state.dense = trainer.replicate(arrays["dense"])
    state.optimizer_state = trainer.replicate(arrays["optimizer_state"])

    def assign(ref, value):
      ref[...] = jax.device_put(value, ref.sharding)

    jax.tree.map(assign, state.tables, arrays["tables"])
    return state, run["history"]
