# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A click log as batches to train on, and samples held out."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import pathlib

from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.dlrm import click_log
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
  """The first part of a log to learn from, the rest of it held out.

  The end, not a sample of it: a model is used on days that are still to come.
  """

  path: pathlib.Path
  # Of the log, in pieces of a batch's samples of one process.
  log: click_log.Index
  num_train: int  # Samples to learn from, a multiple of the batch size.
  heldout: features.Batch  # All held-out samples.
  batch_size: int
  table_rows: int
  process: int  # This one's place among those that divide batches.
  num_processes: int

  @property
  def steps_per_pass(self) -> int:
    """Steps in which each sample is seen once."""
    return self.num_train // self.batch_size

  def train_batches(self, first_step: int) -> Iterator[features.Batch]:
    """This process's samples of the batches from one step on, without end.

    The batch of a step is a function of the log and the step, so that a resumed
    run continues with the batches it would have seen.
    """
    size = self.batch_size // self.num_processes
    while True:
      pieces = range(
          first_step % self.steps_per_pass * self.num_processes + self.process,
          self.steps_per_pass * self.num_processes,
          self.num_processes,
      )
      blocks = click_log.read_pieces(self.path, self.log, pieces)
      for samples in _in_batches(blocks, size):
        yield features.make_batch(samples, self.table_rows)
      first_step = 0

  def first_train_samples(self, num_samples: int) -> samples_lib.Samples:
    """Up to so many of the samples to learn from."""
    count = min(num_samples, self.num_train)
    return samples_lib.concatenate(list(click_log.read(self.path, count=count)))

  def heldout_batches(self) -> Iterator[tuple[features.Batch, int]]:
    """Every held-out sample once, in order, in batches of equal size.

    Yields:
      This process's samples of a batch, and how many of all its samples count.
      The last batch is filled up with copies of its last sample.
    """
    size = len(self.heldout.labels)
    own = self.batch_size // self.num_processes
    for start in range(0, size, self.batch_size):
      first = start + self.process * own
      chosen = np.minimum(np.arange(first, first + own), size - 1)
      count = min(self.batch_size, size - start)
      yield features.Batch(*(x[chosen] for x in self.heldout)), count


def _in_batches(
    blocks: Iterator[samples_lib.Samples], batch_size: int
) -> Iterator[samples_lib.Samples]:
  """The same samples, `batch_size` at a time; what is left over is dropped."""
  rest = None
  for block in blocks:
    if rest is not None:
      block = samples_lib.concatenate([rest, block])
    end = len(block) - len(block) % batch_size
    for start in range(0, end, batch_size):
      yield block[start : start + batch_size]
    rest = block[end:]


def load(
    path: pathlib.Path,
    config: config_lib.Config,
    process: int = 0,
    num_processes: int = 1,
) -> Dataset:
  """Splits the log that a run uses, and reads the part that is held out.

  Args:
    path: the log.
    config: of the run.
    process: the index of this one, which gets its samples of each batch.
    num_processes: that divide batches.

  Raises:
    UsageError: the log cannot be read, has too few lines, or lines that are
      held out are malformed; those to learn from are checked as they are read.
  """
  # One process passes over the whole log, and tells the others.
  log = job.from_first(
      lambda: click_log.index(
          path, config.num_samples, config.batch_size // num_processes
      )
  )
  num_train = log.num_samples - config.heldout_samples
  if num_train < config.batch_size:
    raise config_lib.UsageError(
        f"--data: {path} gives {log.num_samples:,} samples, of which"
        f" --heldout_samples={config.heldout_samples} are held out; the rest is"
        f" less than a batch of {config.batch_size}."
    )
  heldout = samples_lib.concatenate(
      list(click_log.read(path, num_train, config.heldout_samples, log))
  )
  return Dataset(
      path=path,
      log=log,
      num_train=num_train - num_train % config.batch_size,
      heldout=features.make_batch(heldout, config.table_rows),
      batch_size=config.batch_size,
      table_rows=config.table_rows,
      process=process,
      num_processes=num_processes,
  )
