# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A click log that looks like a real one, with a signal planted in it.

Categories follow power laws: few are in most samples, most are rare. Some
values are missing. Whether a sample is a click depends on

- the dense features, about a third of the signal: partly linear, partly not;
- each category by itself;
- pairs of categories, as when an audience likes a kind of advertisement: the
  inner product of a vector of one and a vector of the other.

So a model that sees only dense features cannot get far, and one that adds up
categories cannot get all the way.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses

from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np

_BLOCK_SAMPLES = 50_000

# Distinct categories of each column. Real logs have such a mixture, from what
# has a handful of values to what names a person.
_CARDINALITIES = (
    *(1_400, 550, 100_000, 50_000, 300, 24, 12_000, 630, 3, 40_000),
    *(5_200, 100_000, 3_100, 26, 12_000, 80_000, 10, 4_800, 2_000, 4),
    *(90_000, 17, 15, 60_000, 100, 30_000),
)
# P(rank k) ~ 1 / k^1.3: a tenth of the categories have most of the samples.
_EXPONENT = 1.3
# Columns with categories that are missing, and in which share of the samples.
_MISSING_CATEGORIES = {18: 0.4, 19: 0.4, 21: 0.7, 24: 0.4, 25: 0.4}
_CATEGORY_EFFECT = 0.19
# Pairs of columns whose categories go together or do not.
_PAIRS = ((0, 7), (1, 12), (4, 10), (5, 17), (13, 6), (22, 14))
_PAIR_DIM = 3
_PAIR_EFFECT = 0.35

_DENSE_EFFECTS = np.array(
    [0.45, -0.4, 0.25, 0.25, -0.2, 0.2, 0.1, 0.1, 0, 0, 0, 0, 0]
)
# Of columns 9 and 10, by product, and of 11, by square: not linear.
_PRODUCT_EFFECT = 0.35
_SQUARE_EFFECT = 0.25
# Columns are whole numbers with a long tail: exp(location + scale * normal).
_DENSE_LOCATIONS = np.linspace(0.5, 6.0, samples_lib.NUM_DENSE)
_DENSE_SCALES = np.linspace(1.0, 1.6, samples_lib.NUM_DENSE)
_DENSE_MISSING = np.linspace(0.0, 0.3, samples_lib.NUM_DENSE)
# About a quarter of the samples are clicks.
_BIAS = -1.5


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Generator:
  """An endless log: sample i is a function of the seed and i.

  The last index of the effects of a column is that of what is missing.
  """

  seed: int
  # Per column c, f32[cardinality + 1]: what the category adds to the logit.
  effects: tuple[np.ndarray, ...]
  # Per pair, two arrays f32[cardinality + 1, 3].
  pair_vectors: tuple[tuple[np.ndarray, np.ndarray], ...]

  def blocks(self, num_samples: int) -> Iterator[samples_lib.Samples]:
    """The first samples, block by block."""
    for start in range(0, num_samples, _BLOCK_SAMPLES):
      block, _ = self.block(start // _BLOCK_SAMPLES)
      yield block[: num_samples - start]

  def block(self, number: int) -> tuple[samples_lib.Samples, np.ndarray]:
    """50,000 samples, and the probability of a click of each, f64[n]."""
    rng = np.random.default_rng((self.seed, number))
    normals = rng.standard_normal(
        (_BLOCK_SAMPLES, samples_lib.NUM_DENSE), np.float32
    )
    dense = np.floor(np.exp(_DENSE_LOCATIONS + _DENSE_SCALES * normals))
    dense[rng.random(dense.shape, np.float32) < _DENSE_MISSING] = np.nan
    ranks = np.stack(
        [
            _ranks(rng, c, cardinality, _BLOCK_SAMPLES)
            for c, cardinality in enumerate(_CARDINALITIES)
        ],
        axis=1,
    )
    logits = (
        _BIAS
        # What is missing in the log has its effect nevertheless.
        + normals @ _DENSE_EFFECTS
        + _PRODUCT_EFFECT * normals[:, 9] * normals[:, 10]
        + _SQUARE_EFFECT * (normals[:, 11] ** 2 - 1)
    )
    for c, effects in enumerate(self.effects):
      logits += effects[ranks[:, c]]
    for (c, d), (vectors_c, vectors_d) in zip(_PAIRS, self.pair_vectors):
      logits += np.sum(vectors_c[ranks[:, c]] * vectors_d[ranks[:, d]], axis=1)
    probabilities = 1 / (1 + np.exp(-logits))
    block = samples_lib.Samples(
        labels=(rng.random(_BLOCK_SAMPLES) < probabilities).astype(np.float32),
        dense=dense.astype(np.float32),
        categories=_names(ranks),
    )
    return block, probabilities


def make(seed: int) -> Generator:
  """A generator with effects drawn from the seed."""
  # Two numbers, as blocks have: none of them is at the end of a log.
  rng = np.random.default_rng((seed, 2**63))
  effects = tuple(
      rng.normal(0, _CATEGORY_EFFECT, cardinality + 1)
      for cardinality in _CARDINALITIES
  )
  # The standard deviation of a product of two vectors is scale^2 sqrt(dim).
  scale = np.sqrt(_PAIR_EFFECT / np.sqrt(_PAIR_DIM))
  pair_vectors = tuple(
      tuple(
          rng.normal(0, scale, (_CARDINALITIES[c] + 1, _PAIR_DIM)) for c in pair
      )
      for pair in _PAIRS
  )
  return Generator(seed=seed, effects=effects, pair_vectors=pair_vectors)


def _ranks(
    rng: np.random.Generator, column: int, cardinality: int, n: int
) -> np.ndarray:
  """i64[n]: 0 for the most frequent category; `cardinality` for missing."""
  # The inverse of the distribution function of a continuous power law.
  exponent = 1 - _EXPONENT
  largest = (cardinality + 1.0) ** exponent
  ranks = (1 + rng.random(n) * (largest - 1)) ** (1 / exponent)
  ranks = np.minimum(ranks.astype(np.int64) - 1, cardinality - 1)
  if column in _MISSING_CATEGORIES:
    ranks[rng.random(n) < _MISSING_CATEGORIES[column]] = cardinality
  return ranks


def _names(ranks: np.ndarray) -> np.ndarray:
  """The numbers that stand for categories in a log, i64[n, 26].

  Odd factors make a bijection of the 32-bit numbers, another one per column.
  """
  columns = np.arange(samples_lib.NUM_CATEGORIES, dtype=np.uint32)
  factors = np.uint32(2_654_435_761) * (2 * columns + 1)
  mixed = (ranks.astype(np.uint32) + 1) * factors
  # The high half of a product is the better half, and tables take the low one.
  names = (mixed ^ (mixed >> 15)).astype(np.int64)
  is_missing = ranks == np.array(_CARDINALITIES)
  return np.where(is_missing, samples_lib.MISSING, names)
