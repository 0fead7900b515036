# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches of another size than the specs declare: one sample, a last batch.

Rows of tables do not depend on the batch. Where the samples of a feature are
among the activations of its stack does: after those of the features before it.
So such a batch is planned anew, for as long as a call takes, on copies of the
specs that have the same tables.
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
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


def of_ids(
    ids: Sequence[Any],
    features: Sequence[embedding_spec.FeatureSpec],
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
    ValueError: there are no samples, or not a row for each of their positions.
  """
  batches = {}
  for of_feature, feature in zip(ids, features):
    declared, *positions = feature.output_shape[:-1]
    found, is_flat = _num_rows(of_feature, num_devices)
    if found is None:
      continue
    if not found:
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
    if found * global_device_count == declared * num_devices:
      continue
    if found % num_devices == 0:
      batches[feature.name] = found // num_devices * global_device_count
  return batches


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
  features, structure = jax.tree.flatten(feature_specs)
  features = [copy.copy(feature) for feature in features]
  by_stack = collections.defaultdict(list)
  for feature in features:
    by_stack[feature.table_spec.setting_in_stack.stack_name].append(feature)
  for of_stack in by_stack.values():
    of_stack.sort(key=lambda feature: feature.id_transformation.row_offset)
    num_samples = 0
    for feature in of_stack:
      batch, *others = feature.output_shape
      feature.output_shape = (batches.get(feature.name, batch), *others)
      feature.id_transformation = dataclasses.replace(
          feature.id_transformation, row_offset=num_samples
      )
      num_samples += math.prod(feature.output_shape[:-1])
    stack = of_stack[0].table_spec.stacked_table_spec.replace(
        total_sample_count=num_samples
    )
    tables = {}
    for feature in of_stack:
      table = feature.table_spec
      if table.name not in tables:
        tables[table.name] = copy.copy(table)
        tables[table.name].stacked_table_spec = stack
      feature.table_spec = tables[table.name]
  return jax.tree.unflatten(structure, features)
