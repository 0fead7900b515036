# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Trains a click model, DLRM-DCNv2, on a log in Criteo's format.

README.md says how to run it and what to read first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import pathlib
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.examples.common import checkpoint
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import progress as progress_lib
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.dlrm import baseline as baseline_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import click_log
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import dataset
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import generator
from jax_tpu_embedding.sparsecore.examples.dlrm import metrics
from jax_tpu_embedding.sparsecore.examples.dlrm import prefetch
from jax_tpu_embedding.sparsecore.examples.dlrm import report
from jax_tpu_embedding.sparsecore.examples.dlrm import samples
from jax_tpu_embedding.sparsecore.examples.dlrm import training
import numpy as np

_GENERATED_SAMPLES = 1_000_000
# Logistic regression has 14 numbers to learn: with more samples, its AUC does
# not change in the third digit.
_BASELINE_SAMPLES = 200_000
# Reading a loss waits for its step: often enough to watch, too rarely to cost.
_STEPS_PER_UPDATE = 10
# Batches that the reading thread may be ahead.
_PREFETCHED_BATCHES = 8


def _log_path(
    config: config_lib.Config, output_dir: pathlib.Path
) -> pathlib.Path:
  """The log to use; generates it if the user did not name one."""
  if config.data:
    return pathlib.Path(config.data)
  path = output_dir / "clicks.tsv"
  job.from_first(lambda: _generate(path, config))
  return path


def _generate(path: pathlib.Path, config: config_lib.Config) -> None:
  if config.resume and path.exists():
    return
  num_samples = config.num_samples or _GENERATED_SAMPLES
  # Under its name the log is complete.
  partial = path.with_name("partial_" + path.name)
  blocks = generator.make(config.seed).blocks(num_samples)
  try:
    with command_line.writing(path, "output_dir"):
      click_log.write(
          partial,
          progress_lib.shown("generated", "samples", num_samples, blocks),
      )
      partial.rename(path)
  finally:
    # It fills the disk, and no later run continues it.
    with contextlib.suppress(OSError):
      partial.unlink()


def _scores(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
  return {
      "heldout_loss": metrics.log_loss(labels, logits),
      "heldout_auc": metrics.auc(labels, logits),
  }


def _evaluate_baseline(data: dataset.Dataset) -> dict[str, float]:
  """Scores of logistic regression on the same held-out samples."""
  train = data.first_train_samples(_BASELINE_SAMPLES)
  model = baseline_lib.fit(features.dense_features(train.dense), train.labels)
  return _scores(data.heldout.labels, model.logits(data.heldout.dense))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
  """What does not change while a model is trained."""

  config: config_lib.Config
  num_steps: int  # Step at which training ends.
  data: dataset.Dataset
  trainer: training.Trainer
  checkpoints: checkpoint.Checkpoints

  def evaluate(self, state: train_state.TreeState) -> dict[str, float]:
    """Scores on all held-out samples."""
    logits = [
        job.on_host(self.trainer.logits(state, batch))[:count]
        for batch, count in self.data.heldout_batches()
    ]
    return _scores(self.data.heldout.labels, np.concatenate(logits))

  def _looks_ahead(self, step: int) -> bool:
    """Whether nobody reads the state between this step and the next."""
    return (
        self.config.pipeline != "off"
        and step < self.num_steps
        and step % self.config.evaluate_every != 0
        and step % self.config.checkpoint_every != 0
    )

  def batches(self, first_step: int) -> Any:
    """The batches of the steps that are left, ahead of them; use it in `with`."""
    batches = self.data.train_batches(first_step)
    if self.config.preprocess == "host":
      return self.trainer.preprocessed(batches)
    return prefetch.prefetch(batches, _PREFETCHED_BATCHES)

  def train(
      self, state: train_state.TreeState, history: list[dict[str, float]]
  ) -> None:
    """Takes the steps that are left; appends each evaluation to `history`."""
    batch_size, first_step = self.config.batch_size, state.step
    if not history:
      history.append({"samples": 0, **self.evaluate(state)})
    losses = []  # Since the last evaluation.
    with (
        self.batches(first_step) as batches,
        progress_lib.Progress(
            "trained",
            "samples",
            self.num_steps * batch_size,
            first_step * batch_size,
        ) as progress,
    ):
      stopwatch = progress_lib.Stopwatch()
      pairs = itertools.pairwise(batches)
      while state.step < self.num_steps:
        batch, following = next(pairs)
        ahead = (following,) if self._looks_ahead(state.step + 1) else ()
        losses.append(self.trainer.train_step(state, batch, *ahead))
        if state.step == first_step + 1:
          jax.block_until_ready(losses)
          stopwatch.lap()  # The first step also compiles.
        is_last = state.step == self.num_steps
        if state.step % self.config.evaluate_every == 0 or is_last:
          record = {
              "samples": state.step * batch_size,
              "training_loss": float(np.mean(jax.device_get(losses))),
          }
          seconds = stopwatch.lap()
          timed_steps = min(len(losses), state.step - first_step - 1)
          if timed_steps:
            record["samples_per_second"] = timed_steps * batch_size / seconds
          with stopwatch.paused():
            history.append(record | self.evaluate(state))
          losses.clear()
        if state.step % self.config.checkpoint_every == 0 or is_last:
          jax.block_until_ready(losses)
          with stopwatch.paused():
            self.checkpoints.save(state, history)
        if state.step % _STEPS_PER_UPDATE == 0 or is_last:
          jax.block_until_ready(losses)
          progress.update(
              state.step * batch_size,
              f"held-out AUC {history[-1]['heldout_auc']:.4f},"
              f" log loss {history[-1]['heldout_loss']:.4f}",
          )
      command_line.say("Trained on", progress.summary())


def run(config: config_lib.Config) -> None:
  """Trains, evaluates and reports as `config` says.

  Raises:
    UsageError: the log, a directory or the number of devices cannot be used. A
      malformed line to learn from is found when it is read; what was trained
      before is lost, but for the checkpoints.
  """
  launch.provide_devices(
      config.num_devices, config.num_processes, config.heartbeat_seconds
  )
  mesh = jax.sharding.Mesh(jax.devices()[: config.num_devices], ("data",))
  with (
      jax.set_mesh(mesh),
      command_line.output_directory(config.output_dir, "dlrm_") as output_dir,
      checkpoint.Checkpoints(
          checkpoint_dir := output_dir / "checkpoints",
          flag="output_dir",
          resume=config.resume,
          num_steps=config.num_steps or None,
      ) as checkpoints,
  ):
    # Before a log is made or read; what is in it is known after that.
    checkpoints.require(config.result_shaping())
    trainer = training.Trainer(config)
    data = dataset.load(
        _log_path(config, output_dir),
        config,
        jax.process_index(),
        jax.process_count(),
    )
    checkpoints.require({"log_sha256": data.log.sha256})
    baseline = job.from_first(lambda: _evaluate_baseline(data))
    command_line.say(
        f"Log: {data.path}, {data.num_train:,} samples to learn from,"
        f" {len(data.heldout.labels):,} held out.\n"
        f"Tables: {samples.NUM_CATEGORIES} of {config.table_rows:,} rows x"
        f" {config.embedding_dim}, on {config.num_devices} device(s)."
    )
    state, history = trainer.init(), []
    if config.resume:
      history = checkpoints.restore(state)
      command_line.say(f"Resumed at step {state.step} from {checkpoint_dir}.")
    _Run(
        config=config,
        num_steps=config.num_steps or data.steps_per_pass,
        data=data,
        trainer=trainer,
        checkpoints=checkpoints,
    ).train(state, history)

  if jax.process_index() > 0:
    return
  if not math.isfinite(history[-1]["heldout_loss"]):
    command_line.say(
        "Training diverged: the held-out log loss is no finite number. Lower"
        " --dense_learning_rate or --learning_rate."
    )
  command_line.say(
      f"Held-out AUC {history[-1]['heldout_auc']:.4f}, log loss"
      f" {history[-1]['heldout_loss']:.4f}\n"
      f"Logistic regression on the {samples.NUM_DENSE} dense features: AUC"
      f" {baseline['heldout_auc']:.4f}, log loss"
      f" {baseline['heldout_loss']:.4f}\n"
      f"Checkpoint: {checkpoint_dir}"
  )
  picture = output_dir / "training.png"
  with command_line.writing(picture, "output_dir"):
    report.save_picture(
        picture, history, baseline, title=f"Clicks of {data.path.name}"
    )
  command_line.say(f"Picture: {picture}")


if __name__ == "__main__":
  launch.start(config_lib.Config, run)
