# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A run from flags to report, the same for every kind of trainer."""

from __future__ import annotations

import functools
import pathlib
from typing import NoReturn

import jax
from jax_tpu_embedding.sparsecore.examples.common import checkpoint
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import progress as progress_lib
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import generation
from jax_tpu_embedding.sparsecore.examples.shakespeare import report
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np

# Reading a loss waits for its step: often enough to watch, too rarely to cost.
_STEPS_PER_UPDATE = 20


def _train(
    config: config_lib.Config,
    trainer: training.Trainer,
    state: train_state.State,
    checkpoints: checkpoint.Checkpoints,
    history: list[dict[str, float]],
) -> None:
  """Takes the steps that are left; appends each evaluation to `history`."""
  if not history:
    history.append({"step": 0, "heldout_loss": trainer.heldout_loss(state)})
  losses = []
  with progress_lib.Progress(
      "trained",
      "words",
      config.num_steps * config.batch_size,
      state.step * config.batch_size,
  ) as progress:
    while state.step < config.num_steps:
      loss = trainer.train_step(state)
      losses.append(loss)
      is_last = state.step == config.num_steps
      if state.step % config.evaluate_every == 0 or is_last:
        history.append(
            {
                "step": state.step,
                "training_loss": float(np.mean(jax.device_get(losses))),
                "heldout_loss": trainer.heldout_loss(state),
            }
        )
        losses.clear()
      if state.step % _STEPS_PER_UPDATE == 0 or is_last:
        progress.update(
            state.step * config.batch_size,
            f"loss {float(loss):.2f}, held-out perplexity"
            f" {report.perplexity_text(history[-1]['heldout_loss'])}",
        )
      if state.step % config.checkpoint_every == 0 or is_last:
        checkpoints.save(state, history)
    command_line.say("Trained on", progress.summary())


def run(
    config: config_lib.Config, trainer_type: type[training.Trainer]
) -> None:
  """Trains, evaluates and reports as `config` says.

  Raises:
    UsageError: the text, a directory or the number of devices cannot be used;
      nothing was trained.
  """
  data = dataset.load(config)
  if config.num_processes != 1 and not trainer_type.takes_several_processes:
    raise command_line.UsageError(
        "This program needs --num_processes=1, got"
        f" {config.num_processes}; the other programs take more."
    )
  launch.provide_devices(
      config.num_devices, config.num_processes, config.heartbeat_seconds
  )
  with (
      command_line.output_directory(
          config.output_dir, "shakespeare_"
      ) as output_dir,
      checkpoint.Checkpoints(
          checkpoint_dir := pathlib.Path(
              config.checkpoint_dir or output_dir / "checkpoints"
          ),
          flag="checkpoint_dir" if config.checkpoint_dir else "output_dir",
          resume=config.resume,
          num_steps=config.num_steps,
      ) as checkpoints,
  ):
    checkpoints.require({"text": data.sha256, **config.result_shaping()})
    command_line.make_directory(output_dir, "output_dir")
    unigram = baseline.log_probabilities(data.train_ids, len(data.words))
    unigram_loss = baseline.loss(unigram, data.heldout_ids)
    command_line.say(
        f"Text: {data.name}, {len(data.word_ids):,} words and punctuation"
        f" marks, the last {len(data.heldout_ids):,} of them held out.\n"
        f"Tables: {len(data.words):,} words x {config.embedding_dim}, and"
        f" {config.pair_table_rows:,} rows for pairs of words."
    )
    trainer = trainer_type(config, data, unigram)
    state = trainer.init()
    history = []
    if config.resume:
      history = checkpoints.restore(state)
      command_line.say(f"Resumed at step {state.step} from {checkpoint_dir}.")
    _train(config, trainer, state, checkpoints, history)
    text = generation.generate(trainer, state, data, config)

  if jax.process_index() > 0:
    return
  loss = history[-1]["heldout_loss"]
  command_line.say(
      f"Held-out perplexity: {report.perplexity_text(loss)}"
      f" (unigram baseline: {report.perplexity_text(unigram_loss)})"
  )
  if report.has_diverged(loss):
    command_line.say(
        f"Training diverged: the held-out loss is {loss:.4g} nats per word."
        " Lower --dense_learning_rate or --learning_rate."
    )
  if text is None:
    text = "No text: the scores of words are not finite numbers."
  command_line.say(f"\n{text}\n\nCheckpoint: {checkpoint_dir}")
  loss_curve = output_dir / "loss_curve.png"
  with command_line.writing(loss_curve, "output_dir"):
    report.save_loss_curve(
        loss_curve, history, unigram_loss, title=f"Next word of {data.name}"
    )
  command_line.say(f"Loss curve: {loss_curve}")


def start(trainer_type: type[training.Trainer]) -> NoReturn:
  """Runs a program from its command line."""
  launch.start(
      config_lib.Config, functools.partial(run, trainer_type=trainer_type)
  )
