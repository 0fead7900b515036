# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Features whose sizes, such as the batch, are known when the ids are.

Where a sample is in a stack depends on the batch, so a plan is for one batch.
The rows of a table that is alone in its stack do not depend on it. So features
of unknown size are planned anew for each shape of the ids, on copies of their
specs, and the same tables fit.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def complete(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    ids: Any | None,
    num_scs: int,
) -> Any:
  """`feature_specs` with all sizes; they themselves if they have them.

  Args:
    feature_specs: any tree.
    ids: the same tree with the raw ids of each feature, which tell the sizes;
      None: any sizes will do, as for making tables.
    num_scs: SparseCores that share the batch.

  Raises:
    ValueError: if the ids of a feature do not tell its sizes.
  """
  features, structure = jax.tree.flatten(feature_specs)
  if all(is_known(feature) for feature in features):
    return feature_specs
  if ids is None:
    shapes = [_any_shape(feature, num_scs) for feature in features]
  else:
    ids = _structure.flatten_like(
        ids, feature_specs, "features", "feature_specs"
    )
    shapes = [_shape_of(*pair) for pair in zip(features, ids)]
  tables = {}
  for feature in features:
    table = feature.table_spec
    if not table.is_stacked():
      # One copy per table: features that share it have to go on doing so.
      table = tables.setdefault(id(table), dataclasses.replace(table))
    tables[id(feature.table_spec)] = table
  return jax.tree.unflatten(
      structure,
      [
          dataclasses.replace(
              feature,
              table_spec=tables[id(feature.table_spec)],
              # That of the ids, if it is not that of the output.
              input_shape=(None, *feature.input_shape[1:]),
              output_shape=shape,
          )
          for feature, shape in zip(features, shapes)
      ],
  )


def is_known(feature: _tables.FeatureSpec) -> bool:
  return None not in feature.output_shape


def check_known(feature_specs: _tables.Nested[_tables.FeatureSpec]) -> None:
  """For inputs that do not tell sizes.

  Raises:
    ValueError: if a feature lacks one.
  """
  for feature in jax.tree.leaves(feature_specs):
    if not is_known(feature):
      raise ValueError(
          f"Feature {feature.name!r}: output_shape is"
          f" {tuple(feature.output_shape)}, and preprocessed inputs do not tell"
          " the sizes that are None. Give them, or pass raw ids."
      )


def _any_shape(feature: _tables.FeatureSpec, num_scs: int) -> tuple[int, ...]:
  batch, *lead, dim = feature.output_shape
  return (batch or num_scs, *(size or 1 for size in lead), dim)


def _shape_of(feature: _tables.FeatureSpec, ids: Any) -> tuple[int, ...]:
  """The output shape of a feature with these ids."""
  shape = tuple(feature.output_shape)
  if is_known(feature):
    return shape
  if not isinstance(ids, tuple):
    found = np.shape(ids)
    # The ids of a sample may have an axis of their own, after those of the
    # output.
    if len(found) < len(shape) - 1:
      raise ValueError(
          f"Feature {feature.name!r}: ids of shape {found} do not tell the"
          f" sizes that are None in the output_shape {shape}. Give ids"
          f" {len(shape) - 1} axes or more."
      )
    lead = [
        found[axis] if size is None else size
        for axis, size in enumerate(shape[:-1])
    ]
    return (*lead, shape[-1])
  num_samples = np.shape(ids[1])[0] - 1
  others = [size for size in shape[:-1] if size is not None]
  if len(others) != len(shape) - 2 or num_samples % math.prod(others):
    raise ValueError(
        f"Feature {feature.name!r}: the {num_samples} samples of its row_splits"
        f" do not tell the sizes that are None in the output_shape {shape}."
        " Leave out the batch only."
    )
  batch = num_samples // math.prod(others)
  return tuple(batch if size is None else size for size in shape)
