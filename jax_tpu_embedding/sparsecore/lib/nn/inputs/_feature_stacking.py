# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where the samples of a feature are in the device batch of its stack.

Two features, f and g, on a device with two SparseCores:

  SPLIT_THEN_STACK   f0 f1 g0 g1 g2 | f2 f3 g3 g4 g5   each SparseCore has a part
                                                       of every feature
  STACK_THEN_SPLIT   f0 f1 f2 f3 g0 | g1 g2 g3 g4 g5   features one after another,
                                                       cut where a SparseCore is
                                                       full

Either way the device batch consists of equal runs with the same number of a
feature's samples in each: a run per SparseCore, or a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

FeatureStackingStrategy = converter.FeatureStackingStrategy
_STRATEGIES = dict(FeatureStackingStrategy.__members__)


def feature_stacking_strategy_to_enum(
    name: str | FeatureStackingStrategy,
) -> FeatureStackingStrategy:
  """The strategy called `name`, in any letter case.

  Raises:
    TypeError: if it is neither a string nor a strategy.
    ValueError: if there is none.
  """
  if isinstance(name, FeatureStackingStrategy):
    return name
  if not isinstance(name, str):
    raise TypeError(
        "feature_stacking_strategy must be one of"
        f" {', '.join(map(repr, _STRATEGIES))}, got {name!r}."
    )
  if name.upper() not in _STRATEGIES:
    raise ValueError(
        f"Unsupported feature stacking strategy {name!r}. The choices are:"
        f" {', '.join(map(repr, _STRATEGIES))}."
    )
  return _STRATEGIES[name.upper()]


def feature_stacking_strategy_name(name: str | FeatureStackingStrategy) -> str:
  """That of the strategy as BufferSettings have it; raises as above."""
  if isinstance(name, str) and name in _STRATEGIES:
    return name  # for every batch
  return feature_stacking_strategy_to_enum(name).name


def runs_per_device(
    strategy: FeatureStackingStrategy, num_sc_per_device: int
) -> int:
  """How many equal runs the device batch of a stack consists of."""
  if strategy == FeatureStackingStrategy.SPLIT_THEN_STACK:
    return num_sc_per_device
  return 1


def span_in_run(
    feature: _tables.FeatureSpec,
    global_device_count: int,
    num_runs: int,
) -> slice:
  """Where a feature's samples are in each run of its stack's device batch.

  Raises:
    ValueError: if the samples cannot be split evenly over the runs.
  """
  parts = global_device_count * num_runs
  num_samples = math.prod(feature.output_shape[:-1])
  if num_samples % parts:
    raise ValueError(
        f"Feature {feature.name!r}: the {num_samples} samples of output_shape"
        f" {tuple(feature.output_shape)} must be divisible by {parts}"
        f" ({global_device_count} devices x {num_runs} SparseCores)."
        if num_runs > 1
        else f"Feature {feature.name!r}: the {num_samples} samples of"
        f" output_shape {tuple(feature.output_shape)} must be divisible by"
        f" {global_device_count}, the number of devices."
    )
  start = feature.id_transformation.row_offset // parts
  return slice(start, start + num_samples // parts)


def check_spans(
    spans: Sequence[tuple[_tables.FeatureSpec, slice]], run_size: int
) -> None:
  """Checks that the samples of features are in the runs of a device batch.

  A feature with fewer samples than there is room for passes: inputs that were
  made for more of them have to say so in their settings.

  Args:
    spans: the features of a stack and their span_in_run, in order.
    run_size: samples of a run.

  Raises:
    ValueError: if a feature has samples that are another's, or beyond the run.
  """
  end = 0
  for feature, span in spans:
    if span.start < end or span.stop > run_size:
      found = [f"{x.name!r}: {y.start} to {y.stop}" for x, y in spans]
      raise ValueError(
          f"Feature {feature.name!r}: its output_shape"
          f" {tuple(feature.output_shape)} does not fit its place in the stack"
          f" {feature.table_spec.setting_in_stack.stack_name!r}. A run of the"
          f" stack has {run_size} samples, of which features have"
          f" {', '.join(found)}. The shape was changed after the stack was"
          " planned, and the inputs were made before that, or lack settings."
          " Preprocess and look up with the same specs; other batches need no"
          " other specs."
      )
    end = span.stop
