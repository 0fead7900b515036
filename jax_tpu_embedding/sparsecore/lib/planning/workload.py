# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What ids a model is going to see.

Laws are drawn from, and what is drawn goes through the real converter: how many
ids of a batch are the same, and where the popular ones are, has no formula that
would be simpler than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import itertools
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np


@dataclasses.dataclass(frozen=True)
class Uniform:
  """Every row is as likely as another."""

  def draw(
      self, rng: np.random.Generator, num_rows: int, num_ids: int
  ) -> np.ndarray:
    return rng.integers(0, num_rows, num_ids, dtype=np.int32)

  def __str__(self):
    return "uniform ids"


@dataclasses.dataclass(frozen=True)
class Zipf:
  """The k-th most popular row is k ** -exponent as likely as the first.

  Rows are as popular as their number is small; so that SparseCores have their
  share of popular ones, as they do where ids are hashed.

  Attributes:
    exponent: near 1 in logs of clicks.
  """

  exponent: float

  def __post_init__(self):
    if not self.exponent >= 0:
      raise ValueError(
          f"The exponent of Zipf's law is not negative, got {self.exponent}."
      )

  def draw(
      self, rng: np.random.Generator, num_rows: int, num_ids: int
  ) -> np.ndarray:
    # By the inverse of the integral of x ** -exponent from 0.5 to num_rows +
    # 0.5, whose parts around whole numbers are the law's terms: the first by
    # 11% at an exponent of 1.05, the second by 2%.
    low, high = 0.5, num_rows + 0.5
    u = rng.random(num_ids)
    s = 1 - self.exponent
    if abs(s) < 1e-9:
      x = low * (high / low) ** u
    else:
      # Powers of a ratio above 1: those of `low` overflow at large exponents.
      x = low * (1 + u * ((high / low) ** s - 1)) ** (1 / s)
    return np.clip(np.rint(x) - 1, 0, num_rows - 1).astype(np.int32)

  def __str__(self):
    return f"ids by Zipf's law with exponent {self.exponent}"


@dataclasses.dataclass(frozen=True, eq=False)
class FromBatches:
  """Batches that were seen.

  Attributes:
    batches: trees of the feature specs with the ids of whole global batches,
      with as many samples as the specs say: integer arrays [samples, valency]
      or (values, row_splits).
  """

  batches: Iterable[Any]

  def __str__(self):
    return "given batches"


@dataclasses.dataclass(frozen=True, eq=False)
class FromStats:
  """What past batches needed of the same devices.

  Attributes:
    stats: an FDO client, or what its `load` returns.
  """

  stats: Any

  def load(self) -> embedding.SparseDenseMatmulInputStats:
    return self.stats.load() if hasattr(self.stats, "load") else self.stats

  def __str__(self):
    return "statistics of past batches"


Workload = Uniform | Zipf | FromBatches | FromStats


def draw_batches(
    workload: Uniform | Zipf | FromBatches,
    features: list[embedding_spec.FeatureSpec],
    num_batches: int,
    share: float,
    ids_per_sample: Mapping[str, float] | None,
) -> Iterable[list[Any]]:
  """Batches, each a list of the ids of each feature.

  Args:
    workload: see there.
    features: flat.
    num_batches: how many, at most.
    share: of the samples of a global batch, those of the first devices.
    ids_per_sample: feature name -> how many ids a sample has on average; those
      that are not named have as many as input_shape says.

  Raises:
    ValueError: if ids_per_sample has a name that no feature has, a feature has
      samples of any length and no mean, or a batch is not that of the features.
  """
  means = dict(ids_per_sample or {})
  if unknown := set(means) - {feature.name for feature in features}:
    raise ValueError(
        f"ids_per_sample has {sorted(unknown)}, which are no features. There"
        f" are {sorted(feature.name for feature in features)}."
    )
  if isinstance(workload, FromBatches):
    for batch in itertools.islice(workload.batches, num_batches):
      leaves = jax.tree.leaves(batch, is_leaf=lambda x: isinstance(x, tuple))
      if len(leaves) != len(features):
        raise ValueError(
            f"A batch has {len(leaves)} features, and there are specs of"
            f" {len(features)}."
        )
      for feature, ids in zip(features, leaves, strict=True):
        _check_num_samples(feature, ids)
      yield [_first(x, share) for x in leaves]
    return
  rng = np.random.default_rng(0)
  for _ in range(num_batches):
    batch = []
    for feature in features:
      num_samples = round(feature.input_shape[0] * share)
      num_rows = feature.table_spec.vocabulary_size
      mean = num_ids_per_sample(feature, means)
      if feature.name in means:
        counts = rng.poisson(mean, num_samples)
        splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        ids = workload.draw(rng, num_rows, int(splits[-1]))
        batch.append((ids, splits))
      else:
        ids = workload.draw(rng, num_rows, num_samples * mean)
        batch.append(ids.reshape(num_samples, mean))
    yield batch


def num_ids_per_sample(
    feature: embedding_spec.FeatureSpec, means: Mapping[str, float]
) -> int | float:
  """How many ids a sample has on average.

  Args:
    feature: see there.
    means: feature name -> as many; others have as many as input_shape says.

  Raises:
    ValueError: if neither says it, or the mean is none.
  """
  if feature.name in means:
    mean = means[feature.name]
    if not 0 <= mean < math.inf:
      raise ValueError(
          f"ids_per_sample[{feature.name!r}] must be a number from 0 on, got"
          f" {mean}."
      )
    return mean
  if None in feature.input_shape[1:]:
    raise ValueError(
        f"Feature {feature.name!r}: input_shape {tuple(feature.input_shape)}"
        " does not say how many ids a sample has. Pass"
        f" ids_per_sample={{{feature.name!r}: <mean>}}, or batches that were"
        " seen as FromBatches."
    )
  return math.prod(feature.input_shape[1:])


def num_ids(ids: Any) -> int:
  """How many ids a feature of a batch has."""
  return np.size(ids[0] if isinstance(ids, tuple) else ids)


def _check_num_samples(feature: embedding_spec.FeatureSpec, ids: Any) -> None:
  found = len(ids[1]) - 1 if isinstance(ids, tuple) else len(ids)
  expected = feature.input_shape[0]
  if found != expected:
    raise ValueError(
        f"Feature {feature.name!r}: a batch has {found} samples, and the specs"
        f" have {expected} of all devices. Give whole global batches, or specs"
        " of their size."
    )


def _first(ids: Any, share: float) -> Any:
  """The ids of the first samples."""
  if isinstance(ids, tuple):
    values, splits = map(np.asarray, ids)
    splits = splits[: round((len(splits) - 1) * share) + 1]
    return values[: splits[-1]], splits
  return np.asarray(ids)[: round(len(ids) * share)]
