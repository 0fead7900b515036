# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Raw ids of one stack on one device: their operands, sizes and places.

Everything here is known from shapes, before a program runs. Shapes use S =
num_sc_per_device, G = global_device_count and N = G * S.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout

COMBINERS = ("sum", "mean", "sqrtn")
FEATURE_STACKING_STRATEGIES = ("SPLIT_THEN_STACK", "STACK_THEN_SPLIT")
# For ids outside of the table, and for weights that are NaN or infinite. C++:
# cc/convert/stack_plan.h.
ID_POLICIES = ("error", "drop", "clamp", "modulo")
WEIGHT_POLICIES = ("error", "drop", "clamp", "keep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureInStack:
  """Where the samples and rows of a feature are in its stack."""

  name: str
  vocabulary_size: int
  row_offset: int = 0  # first sample in the stacked global batch
  col_offset: int = 0  # first row in each shard of the stack, times N
  col_shift: int = 0  # rotation of the shards
  out_of_range_ids: str = "error"  # one of ID_POLICIES
  non_finite_weights: str = "error"  # one of WEIGHT_POLICIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature(FeatureInStack):
  """A feature of a stack, and which operands it has."""

  is_ragged: bool = False
  has_weights: bool = False

  @property
  def num_operands(self) -> int:
    return 1 + self.is_ragged + self.has_weights


class Operands(NamedTuple):
  """What one feature has: arrays or their abstract values."""

  # Integers [samples, valency]; of a ragged feature [capacity].
  ids: Any
  # i32[samples + 1] of a ragged feature: sample r has the ids from
  # row_splits[r] on, up to row_splits[r + 1]. Those after the last are ignored.
  row_splits: Any | None
  weights: Any | None  # f32, shaped like the ids

  @property
  def num_samples(self) -> int:
    if self.row_splits is None:
      return self.ids.shape[0]
    return self.row_splits.shape[0] - 1


def group_operands(
    features: Sequence[Feature], operands: Sequence[Any]
) -> list[Operands]:
  """The operands of each feature, which stand one feature after the other."""
  remaining = iter(operands)
  return [
      Operands(
          ids=next(remaining),
          row_splits=next(remaining) if feature.is_ragged else None,
          weights=next(remaining) if feature.has_weights else None,
      )
      for feature in features
  ]


@dataclasses.dataclass(frozen=True)
class SamplePlaces:
  """Where the samples of a feature go.

  Sample r of the device is number (samples_before + r) % samples_per_sc of
  SparseCore (samples_before + r) // samples_per_sc, and its sample id is that
  number plus first_sample_id.
  """

  samples_before: int
  samples_per_sc: int
  first_sample_id: int

  def place(self, sample: Any) -> tuple[Any, Any]:
    """(SparseCore, sample id) of a sample, or of an array of them."""
    position = self.samples_before + sample
    divisor = max(self.samples_per_sc, 1)
    return position // divisor, position % divisor + self.first_sample_id

  def num_samples_on(self, sc: int, num_samples: int) -> int:
    """How many of the feature's samples go to one SparseCore."""
    begin = sc * self.samples_per_sc - self.samples_before
    end = min(begin + self.samples_per_sc, num_samples)
    return max(end - max(begin, 0), 0)


def sample_places(
    features: Sequence[Feature],
    operands: Sequence[Operands],
    topology: layout.Topology,
    feature_stacking_strategy: str,
) -> list[SamplePlaces]:
  """The places of each feature's samples.

  Source: cc/layout/feature_stacking_strategy.h.
  """
  num_scs = topology.num_sc_per_device
  if feature_stacking_strategy == "SPLIT_THEN_STACK":
    return [
        SamplePlaces(
            samples_before=0,
            samples_per_sc=of_feature.num_samples // num_scs,
            first_sample_id=feature.row_offset // topology.num_scs,
        )
        for feature, of_feature in zip(features, operands)
    ]
  samples_per_device = sum(of_feature.num_samples for of_feature in operands)
  return [
      SamplePlaces(
          samples_before=feature.row_offset // topology.global_device_count,
          samples_per_sc=samples_per_device // num_scs,
          first_sample_id=0,
      )
      for feature in features
  ]


def max_ids_per_sc(
    operands: Sequence[Operands],
    places: Sequence[SamplePlaces],
    topology: layout.Topology,
) -> int:
  """The most ids of these shapes that one SparseCore can have.

  Samples of a ragged feature may have any number of ids, so all that there is
  room for can belong to one SparseCore.
  """
  most = 0
  for sc in range(topology.num_sc_per_device):
    on_sc = 0
    for (ids, row_splits, _), of_feature in zip(operands, places):
      if row_splits is None:
        on_sc += ids.shape[1] * of_feature.num_samples_on(sc, ids.shape[0])
      elif of_feature.num_samples_on(sc, row_splits.shape[0] - 1):
        on_sc += ids.shape[0]
    most = max(most, on_sc)
  return most


def cells_per_sc(
    operands: Sequence[Operands],
    places: Sequence[SamplePlaces],
    topology: layout.Topology,
) -> int:
  """Cells that hold any ids of these shapes.

  Every partition that has an id wastes less than 8 cells. Regions have one
  size, and at least 8 cells.
  """
  num_ids = max_ids_per_sc(operands, places, topology)
  waste = (constants.ALIGNMENT - 1) * min(num_ids, topology.num_scs)
  return layout.round_up(max(num_ids + waste, 1), constants.ALIGNMENT)


def last_row(feature: FeatureInStack, topology: layout.Topology) -> int:
  """The row of the feature's largest id in the shards of its stack."""
  return (
      feature.vocabulary_size - 1
  ) // topology.num_scs + feature.col_offset // topology.num_scs
