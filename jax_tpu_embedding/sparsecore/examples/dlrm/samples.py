# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Samples of a click log, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

NUM_DENSE = 13
NUM_CATEGORIES = 26
# The columns by the names that their publisher gives them.
DENSE_NAMES = tuple(f"I{i + 1}" for i in range(NUM_DENSE))
CATEGORY_NAMES = tuple(f"C{i + 1}" for i in range(NUM_CATEGORIES))
# In place of a category. The others are in [0, 2^32).
MISSING = -1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
  """n samples, in the order of their log."""

  labels: np.ndarray  # f32[n]: 1 for a click, 0 for none.
  dense: np.ndarray  # f32[n, 13]: whole numbers, NaN where missing.
  categories: np.ndarray  # i64[n, 26], MISSING where missing.

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, rows: slice) -> Samples:
    return Samples(
        labels=self.labels[rows],
        dense=self.dense[rows],
        categories=self.categories[rows],
    )


def concatenate(parts: Sequence[Samples]) -> Samples:
  """One after the other."""
  return Samples(
      labels=np.concatenate([part.labels for part in parts]),
      dense=np.concatenate([part.dense for part in parts]),
      categories=np.concatenate([part.categories for part in parts]),
  )
