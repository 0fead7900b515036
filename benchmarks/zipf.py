# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Ids that follow a bounded Zipf law, P(rank k) ~ k^-s for k = 1 .. vocabulary.

Drawn through the inverse of its continuous distribution. Ranks are scattered
over the table, as popular rows of real tables are.
"""

from __future__ import annotations

import math

import numpy as np


def sample(
    rng: np.random.Generator, s: float, vocabulary: int, n: int
) -> np.ndarray:
  """i64[n] ids in [0, vocabulary); uniform if s is 0."""
  if s == 0:
    return rng.integers(0, vocabulary, n)
  exponent = 1.0 - s
  largest = (vocabulary + 1.0) ** exponent
  rank = (1.0 + rng.random(n) * (largest - 1.0)) ** (1.0 / exponent)
  rank = np.minimum(rank.astype(np.int64) - 1, vocabulary - 1)
  # A bijection, since the factor has no divisor in common with the vocabulary.
  factor = 2_654_435_761 % vocabulary
  while math.gcd(factor, vocabulary) != 1:
    factor += 1
  return rank * factor % vocabulary
