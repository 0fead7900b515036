# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Valid COO buffers with random entries, for tests.

Written from docs/reference/buffer_format.md, without the code under test.
Cells that hold no entry hold values that no consumer may use.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomCoo:
  """The buffers of one device, and the same as a matrix."""

  row_pointers: np.ndarray  # i32[R]
  embedding_ids: np.ndarray  # i32[B]
  sample_ids: np.ndarray  # i32[B]
  gains: np.ndarray  # f32[B]
  num_minibatches: np.ndarray  # i32[]
  weights: np.ndarray  # f64[samples, rows]: activations = weights @ table
  touched: np.ndarray  # bool[rows]: rows with an entry

  @property
  def operands(self) -> tuple[np.ndarray, ...]:
    return (
        self.row_pointers,
        self.embedding_ids,
        self.sample_ids,
        self.gains,
        self.num_minibatches,
    )


def random_coo(
    *,
    num_sc_per_device: int,
    rows_per_shard: int,
    batch_size_per_sc: int,
    ids_per_sample: int,
    num_minibatches: int | None = None,
    seed: int = 0,
) -> RandomCoo:
  """Buffers with `ids_per_sample` random ids for each sample.

  Args:
    num_sc_per_device: S.
    rows_per_shard: ids are below it; half of them are below 4, so that rows
      repeat within and across SparseCores.
    batch_size_per_sc: samples per SparseCore.
    ids_per_sample: ids per sample.
    num_minibatches: None for the layout without minibatching.
    seed: of the random numbers.
  """
  rng = np.random.default_rng(seed)
  num_scs = num_sc_per_device
  blocks = num_minibatches or 1  # per source
  weights = np.zeros((num_scs * batch_size_per_sc, num_scs * rows_per_shard))
  touched = np.zeros(num_scs * rows_per_shard, bool)
  # (id, sample, gain) by source, minibatch and target.
  partitions = np.empty((num_scs, blocks, num_scs), object)
  for index in np.ndindex(*partitions.shape):
    partitions[index] = []
  for source in range(num_scs):
    for sample in np.repeat(np.arange(batch_size_per_sc), ids_per_sample):
      limit = min(4, rows_per_shard) if rng.random() < 0.5 else rows_per_shard
      row, target = int(rng.integers(limit)), int(rng.integers(num_scs))
      gain = np.float32(rng.normal())
      partitions[source, row % blocks, target].append((row, sample, gain))
      row += target * rows_per_shard
      weights[source * batch_size_per_sc + sample, row] += gain
      touched[row] = True

  region_size = _round_up(batch_size_per_sc * ids_per_sample) + 8 * num_scs
  row_pointers, cells = [], []
  for source in range(num_scs):
    origin = 0 if num_minibatches else source * region_size
    for minibatch in range(blocks):
      block = []
      for target in range(num_scs):
        # Within a minibatch ids ascend per bucket only; equal ids are
        # adjacent. Buckets here: odd ids last.
        entries = sorted(
            partitions[source, minibatch, target],
            key=lambda entry: (entry[0] % 2, *entry[:2])
            if num_minibatches
            else entry[:2],
        )
        cells += entries
        block.append(len(cells) - origin)
        cells += [_garbage(rng)] * (_round_up(len(cells)) - len(cells))
      block += [len(cells) - origin] * (8 - num_scs)
      row_pointers += block
    if not num_minibatches:
      cells += [_garbage(rng)] * (origin + region_size - len(cells))
  if num_minibatches:
    cells += [_garbage(rng)] * 16
    unused = max(num_scs, 8) * num_scs * 64 - len(row_pointers)
    row_pointers += rng.integers(-9, 9, unused).tolist()
  ids, samples, gains = zip(*cells)
  return RandomCoo(
      row_pointers=np.array(row_pointers, np.int32),
      embedding_ids=np.array(ids, np.int32),
      sample_ids=np.array(samples, np.int32),
      gains=np.array(gains, np.float32),
      num_minibatches=np.int32(num_minibatches or 1),
      weights=weights,
      touched=touched,
  )


def _round_up(n: int) -> int:
  return -(-n // 8) * 8


def _garbage(rng: np.random.Generator) -> tuple[int, int, float]:
  """What a cell without entry may hold: anything."""
  return (*rng.integers(-(2**31), 2**31 - 1, 2).tolist(), np.nan)
