# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing inside jit: raw ids to the buffers of one device."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids as primitive
from jax_tpu_embedding.sparsecore.lib.nn import _inputs
from jax_tpu_embedding.sparsecore.lib.nn import _plan
from jax_tpu_embedding.sparsecore.lib.nn import _samples
from jax_tpu_embedding.sparsecore.lib.nn import _structure


def convert_ids(
    features: Any,
    features_weights: Any | None,
    feature_specs: Any,
    topology: layout.Topology,
) -> _inputs.PreprocessedInput:
  """Converts one device's ids to buffers, as part of a jitted program.

  Buffers are sized from the shapes of the ids so that every batch of these
  shapes fits: nothing can be dropped, and the limits of the stacks play no
  role.

  Args:
    features: the tree of `feature_specs` with integer arrays, shaped as
      _samples.one_row_per_sample takes them.
    features_weights: the same tree with a float32 weight per id, or None.
    feature_specs: prepared specs, any tree.
    topology: devices and SparseCores that the tables are split over.

  Raises:
    ValueError: if trees or shapes do not fit the specs.
    TypeError: if ids are not integers.
    jax.errors.JaxRuntimeError: when it runs on CPU, for an id outside of its
      table. Other platforms cannot raise; there the activation is NaN.
  """
  _structure.assert_same_structure(
      features, feature_specs, "features", "feature_specs"
  )
  _plan.check_planned_for(
      _plan.get_table_specs(feature_specs), topology.num_scs
  )
  weights = [None] * len(jax.tree.leaves(feature_specs))
  if features_weights is not None:
    _structure.assert_same_structure(
        features_weights, feature_specs, "features_weights", "feature_specs"
    )
    weights = jax.tree.leaves(features_weights)

  by_stack = collections.defaultdict(list)
  for ids, weight, feature in zip(
      jax.tree.leaves(features), weights, jax.tree.leaves(feature_specs)
  ):
    batch = feature.output_shape[0] // topology.global_device_count
    ids = _samples.one_row_per_sample(
        _as_int32(ids, feature.name), feature, batch
    )
    if weight is not None:
      weight = _samples.one_row_per_sample(
          jnp.asarray(weight, jnp.float32), feature, batch, "weights"
      )
    stack_name = feature.table_spec.setting_in_stack.stack_name
    by_stack[stack_name].append((feature, ids, weight))

  arrays = _inputs.SparseDenseMatmulInput({}, {}, {}, {})
  for name, stack in _plan.get_stacked_table_specs(feature_specs).items():
    members = sorted(
        by_stack[name], key=lambda m: m[0].id_transformation.row_offset
    )
    specs, ids, weights = zip(*members)
    has_weights = weights[0] is not None
    transforms = [spec.id_transformation for spec in specs]
    buffers = primitive.convert_ids_p.bind(
        *ids,
        *(weights if has_weights else ()),
        combiner=stack.combiner,
        feature_names=tuple(spec.name for spec in specs),
        row_offsets=tuple(int(t.row_offset) for t in transforms),
        col_offsets=tuple(int(t.col_offset) for t in transforms),
        col_shifts=tuple(int(t.col_shift) for t in transforms),
        vocabulary_sizes=tuple(
            spec.table_spec.vocabulary_size for spec in specs
        ),
        has_weights=has_weights,
        global_device_count=topology.global_device_count,
        num_sc_per_device=topology.num_sc_per_device,
    )
    for by_name, buffer in zip(arrays, buffers):
      by_name[name] = buffer
  return _inputs.PreprocessedInput(arrays)


def _as_int32(ids: Any, feature_name: str) -> jax.Array:
  ids = jnp.asarray(ids)
  if not jnp.issubdtype(ids.dtype, jnp.integer):
    raise TypeError(
        f"Feature {feature_name!r}: ids must be integers, got {ids.dtype}."
    )
  return ids.astype(jnp.int32)
