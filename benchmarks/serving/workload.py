# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The table and the batches that everybody looks up. Seeded, and NumPy only.

Every process makes them by itself from the same seeds.
"""

from __future__ import annotations

import numpy as np

COLUMNS = 64
SAMPLES, IDS = 16384, 20
BATCHES = 4


def values(rows: int) -> np.ndarray:
  """f32[rows, COLUMNS]."""
  random = np.random.default_rng(0)
  return random.standard_normal((rows, COLUMNS), np.float32)


def batches(rows: int) -> list[np.ndarray]:
  """i32[SAMPLES, IDS] each, uniform."""
  random = np.random.default_rng(1)
  return [
      random.integers(0, rows, (SAMPLES, IDS), np.int32) for _ in range(BATCHES)
  ]


def errors(exact: np.ndarray, got: np.ndarray) -> tuple[float, float]:
  """Root mean square error relative to the values, and the largest."""
  difference = got - exact
  rms = np.sqrt((difference**2).mean() / (exact**2).mean())
  return float(rms), float(np.abs(difference).max())
