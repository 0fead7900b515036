# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A click log as batches to train on, and samples held out."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import pathlib

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
  sha256: str  # Of the log, so that a checkpoint can tell two of them apart.
  num_train: int  # Samples to learn from, a multiple of the batch size.
  heldout: features.Batch  # All held-out samples.
  batch_size: int
  table_rows: int
  # Which samples of each batch are those of this process.
  own: slice

  @property
  def steps_per_pass(self) -> int:
    """Steps in which each sample is seen once."""
    return self.num_train // self.batch_size

  def train_batches(self, first_step: int) -> Iterator[features.Batch]:
    """The batches from one step on, for as long as somebody asks.

    The batch of a step is a function of the log and the step, so that a resumed
    run continues with the batches it would have seen.
    """
    while True:
      first = first_step % self.steps_per_pass * self.batch_size
      blocks = click_log.read(self.path, first, self.num_train - first)
      for samples in _in_batches(blocks, self.batch_size):
        yield features.make_batch(samples[self.own], self.table_rows)
      first_step = 0

  def first_train_samples(self, num_samples: int) -> samples_lib.Samples:
    """Up to so many of the samples to learn from."""
    count = min(num_samples, self.num_train)
    return samples_lib.concatenate(list(click_log.read(self.path, count=count)))

  def heldout_batches(self) -> Iterator[tuple[features.Batch, int]]:
    """Every held-out sample once, in order, in batches of equal size.

    Yields:
      A batch, of this process, and how many of all its samples count. The last batch is filled up
      with copies of its last sample.
    """
    size = len(self.heldout.labels)
    for start in range(0, size, self.batch_size):
      chosen = np.minimum(np.arange(start, start + self.batch_size), size - 1)
      count = min(self.batch_size, size - start)
      own = chosen[self.own]
      yield features.Batch(*(x[own] for x in self.heldout)), count


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
    index: int = 0,
    num_processes: int = 1,
) -> Dataset:
  """Splits the log that a run uses, and reads the part that is held out.

  Args:
    path: the log.
    config: of the run.
    index: of this process, which gets its samples of each batch.
    num_processes: that divide batches.

  Raises:
    UsageError: the log cannot be read, has too few lines, or lines that are
      held out are malformed; those to learn from are checked as they are read.
  """
  size = click_log.measure(path, config.num_samples)
  num_train = size.num_samples - config.heldout_samples
  if num_train < config.batch_size:
    raise config_lib.UsageError(
        f"--data: {path} gives {size.num_samples:,} samples, of which"
        f" --heldout_samples={config.heldout_samples} are held out; the rest is"
        f" less than a batch of {config.batch_size}."
    )
  size_here = config.batch_size // num_processes
  heldout = samples_lib.concatenate(
      list(click_log.read(path, num_train, config.heldout_samples))
  )
  return Dataset(
      path=path,
      sha256=size.sha256,
      num_train=num_train - num_train % config.batch_size,
      heldout=features.make_batch(heldout, config.table_rows),
      batch_size=config.batch_size,
      table_rows=config.table_rows,
      own=slice(index * size_here, (index + 1) * size_here),
  )
