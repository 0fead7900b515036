# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Shapes and sizes of what preprocessing returns, without preprocessing."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


def eval_preprocess_sparse_dense_matmul_input_shape(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    has_leading_dimension: bool = False,
    enable_minibatching: bool = False,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> _buffers.PreprocessedInput:
  """Shapes and dtypes of what preprocessing returns, as ShapeDtypeStructs.

  For L local devices with R row pointers and B cells each.

  Args:
    feature_specs: prepared specs, any tree.
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: those of the hardware.
    has_leading_dimension: [L, R] and [L, B] in place of [L * R] and [L * B].
    enable_minibatching: as in preprocessing.
    feature_stacking_strategy: as in preprocessing.

  Raises:
    ValueError: if a count is not positive, there are more local than global
      devices, specs are not prepared, or a suggested buffer size exceeds what
      the limits of the stack can fill.
  """
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
  )
  cells = _prepared.compute_coo_buffer_size_per_device(
      feature_specs,
      global_device_count,
      topology.num_sc_per_device,
      enable_minibatching,
  )
  num_row_pointers = layout.row_pointers_per_device(
      topology, enable_minibatching
  )

  strategy = _feature_stacking.feature_stacking_strategy_to_enum(
      feature_stacking_strategy
  ).name
  layouts = _batch_sizes.layouts(
      jax.tree.leaves(feature_specs),
      {},
      topology.num_scs,
      keeps_places=strategy == "SPLIT_THEN_STACK",
  )
  feature_specs = _batch_sizes.lay_out(feature_specs, {}, layouts)

  def per_device(size, dtype, *others):
    if has_leading_dimension:
      return jax.ShapeDtypeStruct((local_device_count, size, *others), dtype)
    return jax.ShapeDtypeStruct((local_device_count * size, *others), dtype)

  return _buffers.PreprocessedInput(
      _buffers.SparseDenseMatmulInput(
          {name: per_device(num_row_pointers, np.int32) for name in cells},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.float32) for name, size in cells.items()},
      ),
      per_device(1, np.int32),
      _buffers.BufferSettings(
          global_device_count=global_device_count,
          num_sc_per_device=topology.num_sc_per_device,
          limits=_prepared.limits_of_specs(jax.tree.leaves(feature_specs)),
          enable_minibatching=enable_minibatching,
          feature_stacking_strategy=strategy,
          layouts=layouts,
      ),
      _shapes_of_samples(feature_specs, global_device_count, per_device),
  )


def _shapes_of_samples(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    per_device: Callable[..., jax.ShapeDtypeStruct],
) -> dict[str, _buffers.SampleIds]:
  """Those of replicated stacks, whose features say how many ids samples have."""
  valency = {}
  for feature in jax.tree.leaves(feature_specs):
    stack = feature.table_spec.stacked_table_spec
    if not stack.is_replicated:
      continue
    shape = feature.input_shape
    if len(shape) < 2 or shape[-1] is None:
      raise ValueError(
          f"Feature {feature.name!r}: its table has placement 'tensorcore', for"
          " which the shape of preprocessed inputs depends on the ids of a"
          f" sample, and input_shape {tuple(shape)} does not say how many there"
          " are. Give it as (batch, ids per sample)."
      )
    most = valency.get(stack.stack_name, (stack, 1))[1]
    valency[stack.stack_name] = stack, max(most, shape[-1])
  result = {}
  for name, (stack, most) in valency.items():
    size = stack.total_sample_count // global_device_count
    result[name] = _buffers.SampleIds(
        ids=per_device(size, np.int32, most),
        gains=per_device(size, np.float32, most),
        has_failed=per_device(1, np.bool_),
    )
  return result


def compute_row_pointers_size_per_device(
    *,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Row pointers of one device.

  Raises:
    ValueError: if a count is not positive.
  """
  return layout.row_pointers_per_device(
      _one_process(global_device_count, num_sc_per_device), enable_minibatching
  )


def compute_theoretical_max_coo_buffer_size(
    max_ids_per_partition: int,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Cells of one device that hold any batch within `max_ids_per_partition`.

  Raises:
    ValueError: if a count of devices or SparseCores is not positive.
  """
  return layout.max_coo_cells_per_device(
      max_ids_per_partition,
      _one_process(global_device_count, num_sc_per_device),
      enable_minibatching,
  )


def _one_process(
    global_device_count: int, num_sc_per_device: int | None
) -> layout.Topology:
  return layout.Topology(
      local_device_count=global_device_count,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
  )
