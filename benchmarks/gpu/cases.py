# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The batches that are timed on a GPU, and the bytes that they have to move.

Seeded, and NumPy only.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from benchmarks import zipf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One float32 table of one device, and batches of one feature."""

  name: str
  num_rows: int
  batch_size: int
  valency: int
  dim: int = 128
  zipf: float = 0.0  # the s of the law; 0 is uniform
  is_one_row: bool = False  # all ids are the same


A = Case(
    name="A: 16384 x 20 of 1 M rows",
    num_rows=2**20,
    batch_size=16384,
    valency=20,
)
CASES = (
    A,
    Case(
        name="B: 65536 x 26 of 10 M rows",
        num_rows=10_000_000,
        batch_size=65536,
        valency=26,
    ),
    Case(
        name="C: 1.7 M x 1, 32 columns",
        num_rows=10_000_000,
        batch_size=1_700_000,
        valency=1,
        dim=32,
    ),
    dataclasses.replace(A, name="A, Zipf 1.05", zipf=1.05),
    dataclasses.replace(A, name="A, one row", is_one_row=True),
)
# For kernels that are emulated, thread by thread.
SMALL = (
    Case(name="small", num_rows=64, batch_size=8, valency=3, dim=8),
    Case(
        name="small, one row",
        num_rows=64,
        batch_size=8,
        valency=3,
        dim=8,
        is_one_row=True,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  """Ids, and their buffers of one SparseCore without minibatches."""

  ids: np.ndarray  # i32[batch, valency]
  coo: tuple[np.ndarray, ...]
  num_entries: int
  num_distinct: int  # rows

  def conversion_bytes(self) -> int:
    """What a conversion reads of ids and writes of cells, without its sort."""
    return 4 * self.ids.size + 12 * self.coo[1].size

  def lookup_bytes(self, case: Case) -> int:
    """What a lookup reads of rows and entries, and writes."""
    rows, activations = self.num_entries, case.batch_size
    return 4 * case.dim * (rows + activations) + 12 * self.num_entries

  def update_bytes(self, case: Case, num_slots: int, num_row_slots: int) -> int:
    """What an update reads and writes of rows and slots, and reads of others."""
    of_row = 8 * (case.dim * (1 + num_slots) + num_row_slots)
    gradient = 4 * case.dim * case.batch_size
    return self.num_distinct * of_row + gradient + 12 * self.num_entries


@functools.cache
def make_batch(case: Case, seed: int) -> Batch:
  """A batch as the converter writes it: by row, repeats in a sample merged."""
  rng = np.random.default_rng(seed)
  num_ids = case.batch_size * case.valency
  ids = zipf.sample(rng, case.zipf, case.num_rows, num_ids)
  if case.is_one_row:
    ids[:] = ids[0]
  samples = np.arange(num_ids) // case.valency
  keys, counts = np.unique(ids * case.batch_size + samples, return_counts=True)
  rows, samples = np.divmod(keys, case.batch_size)
  num_cells = -(-num_ids // 8) * 8
  pad = (0, num_cells - keys.size)
  row_pointers = np.full(8, -(-keys.size // 8) * 8)
  row_pointers[0] = keys.size
  return Batch(
      ids=ids.astype(np.int32).reshape(case.batch_size, case.valency),
      coo=(
          row_pointers.astype(np.int32),
          np.pad(rows, pad).astype(np.int32),
          np.pad(samples, pad).astype(np.int32),
          np.pad(counts, pad).astype(np.float32),
          np.int32(1),
      ),
      num_entries=keys.size,
      num_distinct=np.unique(rows).size,
  )
