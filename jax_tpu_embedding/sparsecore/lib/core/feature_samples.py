# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which samples a SparseCore gets, and what policies make of their ids.

The first stage of the reference converter, input_preprocessing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math

from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature(raw_ids.FeatureInStack):
  """A feature of a stack, with the samples of this process."""

  ids: Sequence[np.ndarray]  # integers of each sample; a dense array has rows
  weights: Sequence[np.ndarray] | None = None  # f32, shaped like ids


def check_num_samples(
    features: Sequence[Feature], topology: layout.Topology, strategy: str
) -> None:
  """Checks that SparseCores can share the samples of a stack.

  Raises:
    ValueError: if they cannot.
  """
  strategies = raw_ids.FEATURE_STACKING_STRATEGIES
  if strategy not in strategies:
    raise ValueError(f"strategy must be one of {strategies}, got {strategy!r}.")
  num_parts = topology.local_device_count
  if strategy == "SPLIT_THEN_STACK":
    num_parts *= topology.num_sc_per_device
  for feature in features:
    if len(feature.ids) % num_parts:
      raise ValueError(
          f"Feature {feature.name!r}: {len(feature.ids)} samples cannot be"
          f" divided by {num_parts}."
      )
  total = sum(len(feature.ids) for feature in features)
  num_parts = topology.local_device_count * topology.num_sc_per_device
  if total % num_parts:
    raise ValueError(f"{total} samples cannot be divided by {num_parts}.")


def samples_of(
    features: Sequence[Feature],
    topology: layout.Topology,
    local_sc: int,
    strategy: str,
) -> Iterator[tuple[Feature, int, int]]:
  """The samples of one SparseCore of this process.

  Args:
    features: those of a stack, by row offset.
    topology: of the job.
    local_sc: counts the SparseCores of this process, device by device.
    strategy: whether each feature is split, or the stack of all of them.

  Yields:
    A feature, the position of a sample in it, and the sample id. In order.
  """
  if strategy == "SPLIT_THEN_STACK":
    for feature in features:
      size = len(feature.ids) // (
          topology.local_device_count * topology.num_sc_per_device
      )
      for r in range(size):
        sample_id = feature.row_offset // topology.num_scs + r
        yield feature, local_sc * size + r, sample_id
  else:
    device, sc = divmod(local_sc, topology.num_sc_per_device)
    stack = []
    for feature in features:
      size = len(feature.ids) // topology.local_device_count
      stack += [(feature, device * size + r) for r in range(size)]
    size = len(stack) // topology.num_sc_per_device
    for r, (feature, i) in enumerate(stack[sc * size : (sc + 1) * size]):
      yield feature, i, r


def clean_sample(
    feature: Feature, sample: int
) -> tuple[list[int], list[np.float32] | None]:
  """Ids and weights of a sample, as the policies of its feature leave them.

  Raises:
    ValueError: where a policy says "error".
  """
  ids = [int(i) for i in feature.ids[sample]]
  if feature.weights is None:
    ids = [_clean_id(feature, i) for i in ids]
    return [i for i in ids if i is not None], None
  kept_ids, kept_weights = [], []
  for i, weight in zip(ids, feature.weights[sample], strict=True):
    i = _clean_id(feature, i)
    weight = None if i is None else _clean_weight(feature, np.float32(weight))
    if weight is not None:
      kept_ids.append(i)
      kept_weights.append(weight)
  return kept_ids, kept_weights


def _clean_id(feature: Feature, i: int) -> int | None:
  if 0 <= i < feature.vocabulary_size:
    return i
  match feature.out_of_range_ids:
    case "drop":
      return None
    case "clamp":
      return 0 if i < 0 else feature.vocabulary_size - 1
    case "modulo":
      return i % feature.vocabulary_size
  raise ValueError(
      f"Feature {feature.name!r}: id {i} is outside of [0,"
      f" {feature.vocabulary_size})."
  )


def _clean_weight(feature: Feature, weight: np.float32) -> np.float32 | None:
  if np.isfinite(weight) or feature.non_finite_weights == "keep":
    return weight
  match feature.non_finite_weights:
    case "drop":
      return None
    case "clamp" if np.isnan(weight):
      return np.float32(0)
    case "clamp":
      return np.float32(math.copysign(np.finfo(np.float32).max, weight))
  raise ValueError(f"Feature {feature.name!r}: weight {weight} is not finite.")
