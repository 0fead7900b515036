# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the model sees of a sample: small numbers, and rows of tables."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np

# Every table has a row for what is missing, which says something, too.
MISSING_ROW = 0


class Batch(NamedTuple):
  """Samples as the model takes them."""

  labels: np.ndarray  # f32[B]
  dense: np.ndarray  # f32[B, 13]
  # i32[B, 26], in [0, table_rows); or an embedding.PreprocessedInput of them.
  rows: Any


def make_batch(samples: samples_lib.Samples, table_rows: int) -> Batch:
  """Converts samples."""
  return Batch(
      samples.labels,
      dense_features(samples.dense),
      rows(samples.categories, table_rows),
  )


def dense_features(dense: np.ndarray) -> np.ndarray:
  """log(1 + x), and 0 for what is negative or missing; f32[n, 13].

  Counts spread over many powers of ten.
  """
  return np.log1p(np.maximum(np.nan_to_num(dense), 0)).astype(np.float32)


def rows(categories: np.ndarray, table_rows: int) -> np.ndarray:
  """The row of each category in the table of its column, i32[n, 26].

  The remainder is the hash: categories in Criteo's logs are hashes already.
  """
  hashed = 1 + categories % (table_rows - 1)
  is_missing = categories == samples_lib.MISSING
  return np.where(is_missing, MISSING_ROW, hashed).astype(np.int32)
