# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables and batches that the benchmark looks up. Seeded, and NumPy only.

Every worker makes them by itself from the same seeds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks import zipf

# What each step does. The second part names the optimizer.
FORWARD = "forward"
SGD = "forward + SGD"
ADAGRAD = "forward + Adagrad"
STEPS = (FORWARD, SGD, ADAGRAD)

LEARNING_RATE = 0.01
# Where Adagrad's accumulators start; far above the epsilon that some add.
INITIAL_ACCUMULATOR = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One table, one feature with weights, sum pooling."""

  name: str
  batch_size: int
  valency: int
  zipf: float = 0.0  # the s of the law; 0 is uniform
  # Batches that take turns, so that the rows of one are not still in a cache
  # when it is next: together they name about 1.3 M rows.
  num_batches: int = 4
  num_rows: int = 2**20
  dim: int = 64

  @property
  def num_ids(self) -> int:
    return self.batch_size * self.valency

  @property
  def gathered_bytes(self) -> int:
    """Of rows and activations, in each forward pass."""
    return 4 * self.dim * (self.num_ids + self.batch_size)


CASES = (
    Case(
        name="16384 x 1, uniform", batch_size=16384, valency=1, num_batches=64
    ),
    Case(name="16384 x 20, uniform", batch_size=16384, valency=20),
    Case(name="4096 x 100, uniform", batch_size=4096, valency=100),
    Case(name="16384 x 20, Zipf 1.05", batch_size=16384, valency=20, zipf=1.05),
    Case(name="16384 x 20, 32 columns", batch_size=16384, valency=20, dim=32),
    # With 1 M rows, the tables and slots of all packages would not fit into the
    # memory of the machines that were measured, which is 24 GiB.
    Case(
        name="16384 x 20, 128 columns",
        batch_size=16384,
        valency=20,
        dim=128,
        num_rows=2**19,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  ids: np.ndarray  # i32[batch_size, valency]
  weights: np.ndarray  # f32[batch_size, valency]


def make_batches(case: Case) -> list[Batch]:
  """The batches of `case`."""
  shape = (case.batch_size, case.valency)
  batches = []
  for i in range(case.num_batches):
    rng = np.random.default_rng([i, case.num_rows, case.valency])
    ids = zipf.sample(rng, case.zipf, case.num_rows, case.num_ids)
    batches.append(
        Batch(
            ids=ids.astype(np.int32).reshape(shape),
            weights=rng.random(shape, np.float32) + np.float32(0.5),
        )
    )
  return batches


def make_table(case: Case) -> np.ndarray:
  """f32[num_rows, dim]."""
  rng = np.random.default_rng(case.num_rows)
  return rng.random((case.num_rows, case.dim), np.float32) - np.float32(0.5)


def make_gradient(case: Case) -> np.ndarray:
  """f32[batch_size, dim]: of the activations, in every step."""
  rng = np.random.default_rng(case.batch_size)
  return rng.random((case.batch_size, case.dim), np.float32) - np.float32(0.5)


def shrink(case: Case) -> Case:
  """`case` at a size for a test of the harness."""
  return dataclasses.replace(
      case, batch_size=64, num_batches=2, num_rows=2048, dim=16
  )
