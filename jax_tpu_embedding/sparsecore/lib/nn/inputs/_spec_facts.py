# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What every batch asks of the specs of its features.

A batch may have hundreds of features and few ids of each. Then attributes of
specs take more time than ids, so what they say is kept until one of them is
set. Stamps tell: see specs/_tables.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecFacts:
  """Facts of a list of prepared specs. Features are numbered as they are there.

  Attributes:
    are_as_planned: whether they are whole stacks in the sizes of their plan.
    of_positions: features that look up every position of a sample by itself.
    replicated: features whose tables each device has as a whole.
    split: the other features.
    split_specs: the specs of these, as the converter takes them.
    limits: of the stacks of these, for BufferSettings.
    given_limits: those that hold in place of the specs', if any. Their id()
      tells facts apart, so they are kept with them.
  """

  are_as_planned: bool
  of_positions: Sequence[int]
  replicated: Sequence[int]
  split: Sequence[int]
  split_specs: converter.FeatureSpecs
  limits: tuple[tuple[str, layout.PartitionLimits], ...]
  given_limits: _limits.Limits | None


# Stamps, numbers of SparseCores and limits to facts. No specs: these may hold
# the arrays that tables are initialized with.
_kept: dict[tuple[object, ...], SpecFacts] = {}
# More than there are models in a program that train in turns.
_MOST_KEPT = 64


def of_specs(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    features: Sequence[_tables.FeatureSpec],
    num_shards: int,
    num_sc_per_device: int,
    limits: _limits.Limits | None = None,
) -> SpecFacts:
  """The facts of specs.

  Args:
    feature_specs: a tree.
    features: its leaves.
    num_shards: SparseCores of the job.
    num_sc_per_device: of each device.
    limits: that hold in place of the specs', if any.

  Raises:
    ValueError: what _prepared.check_prepared raises; or limits lack a stack.
    TypeError: if a leaf is no FeatureSpec.
  """
  try:
    stamps = _stamps(features)
  except AttributeError:  # of a program's own class, or no spec at all
    features = _tables.features_of(feature_specs)
    return _find(features, num_shards, num_sc_per_device, limits)
  key = (num_shards, num_sc_per_device, id(limits), *stamps)
  facts = _kept.get(key)
  if facts is None:
    facts = _find(features, num_shards, num_sc_per_device, limits)
    # Unless another thread has set something meanwhile.
    if _are_told_by_stamps(features) and _stamps(features) == stamps:
      if len(_kept) >= _MOST_KEPT:
        _kept.clear()
      _kept[key] = facts
  return facts


def _stamps(features: Sequence[_tables.FeatureSpec]) -> list[object]:
  stamps = [feature._stamp for feature in features]
  stamps += [feature.table_spec._stamp for feature in features]
  return stamps


def _are_told_by_stamps(features: Sequence[_tables.FeatureSpec]) -> bool:
  """Whether nothing in them can change without another stamp."""
  return all(
      type(feature) is _tables.FeatureSpec
      and type(feature.table_spec) is _tables.TableSpec
      # Lists, which are allowed, change in place.
      and type(feature.output_shape) is tuple
      for feature in features
  )


def _find(
    features: Sequence[_tables.FeatureSpec],
    num_shards: int,
    num_sc_per_device: int,
    limits: _limits.Limits | None,
) -> SpecFacts:
  _prepared.check_prepared(features, num_shards)
  replicated, split, of_positions = [], [], []
  for i, feature in enumerate(features):
    (replicated if feature.table_spec.is_replicated else split).append(i)
    if len(feature.output_shape) > 2:
      of_positions.append(i)
  are_as_planned = _batch_sizes.are_as_planned(features)
  if limits is not None:
    features = limits.on_copies(features, num_sc_per_device)
  split_features = [features[i] for i in split]
  return SpecFacts(
      are_as_planned=are_as_planned,
      of_positions=of_positions,
      replicated=replicated,
      split=split,
      split_specs=converter.FeatureSpecs(split_features),
      limits=_prepared.limits_of_specs(split_features),
      given_limits=limits,
  )
