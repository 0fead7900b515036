# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A run from flags to report, the same for every kind of trainer."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import sys
import tempfile
from typing import NoReturn

from absl import app
from absl import flags
from absl import logging
import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
from jax_tpu_embedding.sparsecore.examples.shakespeare import checkpoint
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import generation
from jax_tpu_embedding.sparsecore.examples.shakespeare import progress as progress_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import report
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np

# Reading a loss waits for its step: often enough to watch, too rarely to cost.
_STEPS_PER_UPDATE = 20
# Steps wait for one another in threads that the devices of a CPU share. With as
# many threads as devices, two steps underway may take them all and wait for
# ever, in a loop of plain JAX with one sum over devices as well.
_THREADS_PER_DEVICE = 4


def _make_output_dir(path: pathlib.Path) -> None:
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise config_lib.UsageError(
        f"--output_dir: cannot make {path}: {error.strerror}."
    ) from None


def _train(
    config: config_lib.Config,
    trainer: training.Trainer,
    state: training.State,
    checkpoints: checkpoint.Checkpoints,
    history: list[dict[str, float]],
) -> None:
  """Takes the steps that are left; appends each evaluation to `history`."""
  if not history:
    history.append({"step": 0, "heldout_loss": trainer.heldout_loss(state)})
  losses = []
  with progress_lib.Progress(
      config.num_steps, state.step, config.batch_size
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
            state.step,
            loss=float(loss),
            heldout_perplexity=math.exp(history[-1]["heldout_loss"]),
        )
      if state.step % config.checkpoint_every == 0 or is_last:
        checkpoints.save(state, history)
    print("Trained", progress.summary())


def _provide_devices(num_devices: int) -> None:
  """Makes sure that JAX has as many devices.

  A CPU is one device, unless it is told otherwise before JAX makes its first
  array.

  Raises:
    UsageError: JAX has fewer.
  """
  if num_devices > 1:
    os.environ.setdefault("PJRT_NPROC", str(_THREADS_PER_DEVICE * num_devices))
  if num_devices > max(1, jax.config.jax_num_cpu_devices):
    # Raises where JAX has its devices already; they are counted below.
    with contextlib.suppress(RuntimeError):
      jax.config.update("jax_num_cpu_devices", num_devices)
  if jax.device_count() < num_devices:
    raise config_lib.UsageError(
        f"--num_devices is {num_devices}, but JAX has {jax.device_count()}"
        f" {jax.default_backend()} devices."
    )


def run(
    config: config_lib.Config, trainer_type: type[training.Trainer]
) -> None:
  """Trains, evaluates and reports as `config` says.

  Raises:
    UsageError: the text, a directory or the number of devices cannot be used;
      nothing was trained.
  """
  data = dataset.load(config)
  output_dir = pathlib.Path(
      config.output_dir or tempfile.mkdtemp(prefix="shakespeare_")
  )
  checkpoint_dir = pathlib.Path(
      config.checkpoint_dir or output_dir / "checkpoints"
  )
  _provide_devices(config.num_devices)
  with checkpoint.Checkpoints(
      checkpoint_dir, config, data, trainer_type.api
  ) as checkpoints:
    _make_output_dir(output_dir)
    unigram = baseline.log_probabilities(data.train_ids, len(data.words))
    unigram_loss = baseline.loss(unigram, data.heldout_ids)
    print(
        f"Text: {data.name}, {len(data.word_ids):,} words and punctuation"
        f" marks, the last {len(data.heldout_ids):,} of them held out.\n"
        f"Tables: {len(data.words):,} words x {config.embedding_dim}, and"
        f" {config.pair_table_rows:,} rows for pairs of words.",
        flush=True,
    )
    trainer = trainer_type(config, data, unigram)
    state = trainer.init()
    history = []
    if config.resume:
      history = checkpoints.restore(state)
      print(f"Resumed at step {state.step} from {checkpoint_dir}.")
    _train(config, trainer, state, checkpoints, history)
    text = generation.generate(trainer, state, data, config)

  loss_curve = output_dir / "loss_curve.png"
  report.save_loss_curve(
      loss_curve, history, unigram_loss, title=f"Next word of {data.name}"
  )
  print(
      f"Held-out perplexity: {math.exp(history[-1]['heldout_loss']):.1f}"
      f" (unigram baseline: {math.exp(unigram_loss):.1f})"
      f"\n\n{text}\n\n"
      f"Checkpoint: {checkpoint_dir}\nLoss curve: {loss_curve}"
  )


def _fail(program: str, message: object, code: int) -> NoReturn:
  print(f"{pathlib.Path(program).stem}: {message}", file=sys.stderr)
  sys.exit(code)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line: an error is one line, and help is no error."""
  try:
    arguments = flags.FLAGS(argv)
  except flags.Error as error:
    _fail(argv[0], " ".join(str(error).split()), code=2)
  except SystemExit:  # How absl ends after --help, with code 1.
    sys.exit(0)
  if len(arguments) > 1:
    _fail(
        argv[0],
        f"unexpected argument '{arguments[1]}'; flags start with --.",
        code=2,
    )
  return arguments


def main(argv: list[str], trainer_type: type[training.Trainer]) -> None:
  """Runs as the parsed flags say; ends the process with a line if it cannot."""
  if not flags.FLAGS["verbosity"].present:
    # Orbax tells a long story of every checkpoint; --verbosity=0 shows it.
    logging.set_verbosity(logging.WARNING)
  # Unless the user asks for something else, this example is about the CPU.
  jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
  try:
    run(config_lib.from_flags(), trainer_type)
  except config_lib.UsageError as error:
    _fail(argv[0], error, code=1)
  except KeyboardInterrupt:
    # Nothing is saved here: the step may be half done.
    _fail(
        argv[0],
        "interrupted; --resume continues from the last checkpoint.",
        code=130,
    )


def start(trainer_type: type[training.Trainer]) -> NoReturn:
  """Runs a program from its command line."""
  config_lib.define_flags()
  # --help shows the flags of the file that was started.
  for flag in flags.FLAGS.flags_by_module_dict()[config_lib.__name__]:
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  app.run(lambda argv: main(argv, trainer_type), flags_parser=parse_flags)
