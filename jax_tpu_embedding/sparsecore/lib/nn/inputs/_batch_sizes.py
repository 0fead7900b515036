# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches of another size than the specs declare, or of some features only.

One sample, a last batch; or one tower of a model, whose other tower looks the
same tables up. Rows of tables do not depend on that. Where the samples of a
feature are among the activations of its stack does: after those of the features
before it. So such a batch is planned anew, for as long as a call takes, on
copies of the specs that have the same tables. Buffers say in their settings
where samples are.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import dataclasses
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def of_ids(
    ids: Sequence[Any],
    features: Sequence[_tables.FeatureSpec],
    num_devices: int,
    global_device_count: int,
) -> dict[str, int]:
  """The global batches of features whose ids have another one than declared.

  Ids that do not tell are left to the checks of what reads them.

  Args:
    ids: of each feature, in any of the forms that preprocessing takes.
    features: their prepared specs.
    num_devices: how many devices the ids are for.
    global_device_count: devices of the job.

  Returns:
    Feature name -> its batch, over all devices.

  Raises:
    ValueError: there are no samples, not a row for each of their positions, or
      it is open whether rows are samples or positions.
  """
  batches = {}
  for of_feature, feature in zip(ids, features):
    # As most are: what is below takes several times as long, for every batch.
    if type(of_feature) is np.ndarray and of_feature.ndim > 1:
      rows, declared = len(of_feature), feature.output_shape[0]
      if rows and rows * global_device_count == declared * num_devices:
        continue
    declared, *positions = feature.output_shape[:-1]
    found, is_flat = _num_rows(of_feature, num_devices)
    if found is None:
      continue
    if found < 1:
      raise ValueError(
          f"Feature {feature.name!r}: the batch has no samples, expected one or"
          " more. Samples without ids are rows without ids."
      )
    is_declared = found * global_device_count == declared * num_devices
    shape = getattr(of_feature, "shape", ())
    # Of a dense array, what reads it checks the rest of the shape.
    if is_declared and len(shape) > 1 and not is_flat:
      continue
    # As declared, one row for each position, although the other reading, of more
    # samples, may be possible too.
    are_declared_rows = (
        found * global_device_count
        == declared * math.prod(positions) * num_devices
    )
    if (
        is_flat
        or are_declared_rows
        or shape[1 : 1 + len(positions)] != tuple(positions)
    ):
      # One row for each position of an example.
      num_rows, per_example = found, math.prod(positions)
      if num_rows % per_example:
        raise ValueError(
            f"Feature {feature.name!r}: the ids have {num_rows} rows, expected"
            f" a multiple of {per_example}: a row for each position of a sample,"
            f" of which output_shape {feature.output_shape} has so many."
        )
      found = num_rows // per_example
    elif _may_be_rows_of_positions(shape, feature):
      raise ValueError(
          f"Feature {feature.name!r}: ids of shape {shape} may be {found} samples"
          f" of {shape[1]} positions, or, as input_shape"
          f" {tuple(feature.input_shape)} has a row for each position,"
          f" {found // shape[1]} samples with {shape[1]} ids for each position."
          f" Give them three axes: {(found, shape[1], 1)} or"
          f" {(found // shape[1], shape[1], shape[1])}."
      )
    if found * global_device_count == declared * num_devices:
      continue
    if found % num_devices == 0:
      batches[feature.name] = found // num_devices * global_device_count
  return batches


def _may_be_rows_of_positions(
    shape: tuple[int, ...], feature: _tables.FeatureSpec
) -> bool:
  """Whether ids [samples, positions] may be [rows, ids] as declared."""
  declared, *positions = feature.output_shape[:-1]
  return (
      len(shape) == 2
      and shape[1] > 1
      and positions == [shape[1]]
      and feature.input_shape[0] == declared * shape[1]
      and shape[0] % shape[1] == 0
  )


def _num_rows(ids: Any, num_devices: int) -> tuple[int | None, bool]:
  """How many there are, and whether a row is a position of an example."""
  if isinstance(ids, tuple):
    num_splits = _length(ids[1]) if len(ids) == 2 else None
    if num_splits is None:
      return None, True
    # One pair for all devices, or a pair for each after one another.
    if num_devices > 1 and num_splits % num_devices == 0:
      return num_splits - num_devices, True
    return num_splits - 1, True
  dense_shape = getattr(ids, "dense_shape", None)
  if dense_shape is not None:
    return (int(dense_shape[0]) if _length(dense_shape) else None), True
  is_dense = hasattr(ids, "shape") and not hasattr(ids, "tocoo")  # SciPy
  return _length(ids), not is_dense


def _length(x: Any) -> int | None:
  """That of the first axis; None if there is none."""
  shape = getattr(x, "shape", None)
  if shape is not None:
    return shape[0] if shape else None
  return len(x) if hasattr(x, "__len__") else None


def layouts(
    features: Sequence[_tables.FeatureSpec],
    batches: Mapping[str, int],
    num_scs: int,
    *,
    keeps_places: bool,
) -> tuple[_buffers.StackLayout, ...]:
  """Where samples are, of stacks that are not laid out as planned.

  Those are stacks with a feature of another batch, with a part of the features
  that they were planned with, or with specs that were given another shape.

  Args:
    features: their prepared specs.
    batches: feature name -> its batch, over all devices. Others keep theirs.
    num_scs: SparseCores that share the batch.
    keeps_places: whether features keep the places of the plan if these do, and
      those of the others stay empty: so do buffers whose settings got lost. It
      does not suit STACK_THEN_SPLIT, where each sample of a stack counts.
  """
  if not batches and are_as_planned(features):
    return ()
  by_stack = collections.defaultdict(list)
  for feature in features:
    by_stack[feature.table_spec.setting_in_stack.stack_name].append(feature)
  result = []
  for of_stack in by_stack.values():
    layout = _layout(of_stack, batches, num_scs, keeps_places)
    if layout is not None:
      result.append(layout)
  return tuple(result)


def are_as_planned(features: Sequence[_tables.FeatureSpec]) -> bool:
  """Whether they are whole stacks, in the sizes of their plan."""
  # The order is mostly that of the plan.
  return _follow_each_other(features) or _follow_each_other(_in_order(features))


def _follow_each_other(features: Sequence[_tables.FeatureSpec]) -> bool:
  """Whether they are whole stacks in the order of their plan."""
  ends, stacks = {}, {}
  for feature in features:
    stack = feature.table_spec.stacked_table_spec
    # Tables of a stack have one spec of it, or equal ones.
    name = stack.stack_name
    end = ends.get(name, 0)
    if feature.id_transformation.row_offset != end:
      return False
    ends[name] = end + _num_samples(feature.output_shape)
    stacks[name] = stack
  return all(
      end == stacks[name].total_sample_count for name, end in ends.items()
  )


def _in_order(
    features: Sequence[_tables.FeatureSpec],
) -> list[_tables.FeatureSpec]:
  """By their places in the plan of a stack."""
  return sorted(features, key=lambda x: x.id_transformation.row_offset)


def _num_samples(output_shape: Sequence[int]) -> int:
  if len(output_shape) == 2:
    return output_shape[0]
  return math.prod(output_shape[:-1])


def _layout(
    features: Sequence[_tables.FeatureSpec],
    batches: Mapping[str, int],
    num_scs: int,
    keeps_places: bool,
) -> _buffers.StackLayout | None:
  """That of one stack; None if it is the planned one."""
  stack = features[0].table_spec.stacked_table_spec
  features = _in_order(features)
  if batches.keys().isdisjoint(feature.name for feature in features):
    planned = tuple(
        (f.name, f.id_transformation.row_offset, _num_samples(f.output_shape))
        for f in features
    )
    total = stack.total_sample_count
    ends = [0, *(first + size for _, first, size in planned)]
    begins = [*(first for _, first, _ in planned), total]
    if ends == begins:
      return None
    if (
        keeps_places
        and not stack.is_replicated
        and all(end <= begin for end, begin in zip(ends, begins))
        and not any(begin % num_scs for begin in begins)
    ):
      return _buffers.StackLayout(stack.stack_name, total, planned)
  placed, num_samples = [], 0
  for feature in features:
    batch, *others = feature.output_shape
    batch = batches.get(feature.name, batch)
    size = _num_samples((batch, *others))
    placed.append((feature.name, num_samples, size))
    num_samples += size
  return _buffers.StackLayout(stack.stack_name, num_samples, tuple(placed))


def of_settings(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    settings: _buffers.BufferSettings | None,
) -> Any:
  """`feature_specs` as the buffers with these settings were made for them.

  Raises:
    ValueError: see lay_out.
  """
  if settings is None:  # as declared
    return feature_specs
  batches = dict(settings.batches)
  if not settings.layouts:  # made or pickled by an earlier version
    return resize(feature_specs, batches)
  return lay_out(feature_specs, batches, settings.layouts)


def lay_out(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    batches: Mapping[str, int],
    layouts: Sequence[_buffers.StackLayout],
) -> Any:
  """`feature_specs` with these batches and places; they themselves if none.

  Args:
    feature_specs: prepared specs, any tree. Some of the features will do.
    batches: feature name -> its batch, over all devices. Others keep theirs.
    layouts: of all stacks that have such features, and of others.

  Raises:
    ValueError: if a layout lacks a feature, or has another number of samples.
  """
  if not layouts:
    return feature_specs
  by_stack = {layout.stack_name: layout for layout in layouts}
  features, structure = jax.tree.flatten(feature_specs)
  # One spec for all tables of a stack: who converts reads each object once.
  copies, tables, stacks = [], {}, {}
  for feature in features:
    table = feature.table_spec
    layout = by_stack.get(table.setting_in_stack.stack_name)
    if layout is not None:
      feature = copy.copy(feature)
      batch, *others = feature.output_shape
      feature.output_shape = (batches.get(feature.name, batch), *others)
      feature.id_transformation = dataclasses.replace(
          feature.id_transformation, row_offset=_place(feature, layout)
      )
      if table.name not in tables:
        if layout.stack_name not in stacks:
          stacks[layout.stack_name] = table.stacked_table_spec.replace(
              total_sample_count=layout.num_samples
          )
        tables[table.name] = copy.copy(table)
        tables[table.name].stacked_table_spec = stacks[layout.stack_name]
      feature.table_spec = tables[table.name]
    copies.append(feature)
  return jax.tree.unflatten(structure, copies)


def _place(feature: _tables.FeatureSpec, layout: _buffers.StackLayout) -> int:
  """The first sample of a feature."""
  found = {name: (first, size) for name, first, size in layout.features}
  first, size = found.get(feature.name, (0, 0))
  expected = _num_samples(feature.output_shape)
  if size != expected:
    sizes = {name: size for name, (_, size) in found.items()}
    raise ValueError(
        f"Stack {layout.stack_name!r}: feature {feature.name!r} has {expected}"
        f" samples, of output_shape {tuple(feature.output_shape)}, and the"
        f" inputs were preprocessed for the features and samples {sizes}."
        " Preprocess with the specs of all features that are looked up."
    )
  return first


def resize(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    batches: Mapping[str, int],
) -> Any:
  """`feature_specs` with other batches; they themselves if there are none.

  Args:
    feature_specs: prepared specs, any tree.
    batches: feature name -> its batch, over all devices. Others keep theirs.
  """
  if not batches:
    return feature_specs
  features = jax.tree.leaves(feature_specs)
  return lay_out(
      feature_specs,
      batches,
      layouts(features, batches, num_scs=1, keeps_places=False),
  )
