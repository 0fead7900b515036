# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is trained: sizes, first values and batches, the same for everybody.

Only NumPy, since it runs in the environments of the packages.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from benchmarks import zipf

NUM_DENSE = 13
NUM_TABLES = 26
# All categories of a step, one after the other, name most of the rows that are
# ever named only after many steps: rows are not in the caches from the last one.
_NUM_BATCHES = 16
_ZIPF = 1.1

TABLE_LEARNING_RATE = 0.1
DENSE_LEARNING_RATE = 0.001
INITIAL_ACCUMULATOR = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Sizes of a model."""

  name: str
  batch_size: int
  table_rows: int  # Of each of the 26 tables.
  embedding_dim: int
  bottom_mlp: Sequence[int]
  cross_layers: int
  cross_rank: int
  top_mlp: Sequence[int]

  @property
  def cross_dim(self) -> int:
    """The width of what the cross layers take."""
    return self.bottom_mlp[-1] + NUM_TABLES * self.embedding_dim


_EXAMPLE = Case(
    name="examples/dlrm",
    batch_size=1024,
    table_rows=1 << 15,
    embedding_dim=16,
    bottom_mlp=(64, 16),
    cross_layers=3,
    cross_rank=64,
    top_mlp=(256, 128),
)

CASES = (
    _EXAMPLE,
    dataclasses.replace(_EXAMPLE, name="large batch", batch_size=8192),
    Case(
        name="large tables",
        batch_size=4096,
        table_rows=1 << 17,
        embedding_dim=64,
        bottom_mlp=(64, 64),
        cross_layers=2,
        cross_rank=32,
        top_mlp=(64,),
    ),
)


def shrink(case: Case) -> Case:
  """The same with sizes at which numbers mean nothing."""
  return dataclasses.replace(
      case, batch_size=64, table_rows=100, embedding_dim=8
  )


class Layer(NamedTuple):
  """A dense layer: x @ kernel + bias."""

  kernel: np.ndarray  # f32[inputs, outputs]
  bias: np.ndarray | None  # f32[outputs]


def make_layers(case: Case) -> dict[str, list[Layer]]:
  """The first values of the layers: of bottom_mlp, cross, top_mlp and logit."""
  rng = np.random.default_rng(0)

  def layer(inputs, outputs, has_bias=True):
    kernel = rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
    return Layer(kernel, np.zeros(outputs, np.float32) if has_bias else None)

  def mlp(*widths):
    return [layer(a, b) for a, b in zip(widths, widths[1:])]

  d, rank = case.cross_dim, case.cross_rank
  cross = []
  for _ in range(case.cross_layers):
    cross += [layer(d, rank, has_bias=False), layer(rank, d)]
  return {
      "bottom_mlp": mlp(NUM_DENSE, *case.bottom_mlp),
      "cross": cross,
      "top_mlp": mlp(d, *case.top_mlp),
      "logit": mlp(case.top_mlp[-1], 1),
  }


class Batch(NamedTuple):
  """One step's samples."""

  labels: np.ndarray  # f32[B]
  dense: np.ndarray  # f32[B, 13]
  rows: np.ndarray  # i32[B, 26]


def make_batches(case: Case) -> list[Batch]:
  """The batches that are trained on in turn."""
  rng = np.random.default_rng(1)
  n = case.batch_size

  def rows():
    columns = [
        zipf.sample(rng, _ZIPF, case.table_rows, n) for _ in range(NUM_TABLES)
    ]
    return np.stack(columns, axis=1).astype(np.int32)

  return [
      Batch(
          labels=rng.integers(0, 2, n).astype(np.float32),
          dense=rng.normal(size=(n, NUM_DENSE)).astype(np.float32),
          rows=rows(),
      )
      for _ in range(_NUM_BATCHES)
  ]


def make_gradients(case: Case) -> np.ndarray:
  """Gradients of the activations, for the part "tables": f32[26, B, D]."""
  rng = np.random.default_rng(2)
  shape = (NUM_TABLES, case.batch_size, case.embedding_dim)
  return rng.normal(size=shape).astype(np.float32)
