# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing on the host: ids of a batch to the buffers of every device."""

from __future__ import annotations

from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn import _inputs
from jax_tpu_embedding.sparsecore.lib.nn import _plan
from jax_tpu_embedding.sparsecore.lib.nn import _samples
from jax_tpu_embedding.sparsecore.lib.nn import _stats
from jax_tpu_embedding.sparsecore.lib.nn import _structure
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np


def preprocess_sparse_dense_matmul_input(
    features: Any,
    features_weights: Any | None,
    feature_specs: Any,
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    sharding_strategy: str = "MOD",
    has_leading_dimension: bool = False,
    allow_id_dropping: bool = False,
    batch_number: int = 0,
    enable_minibatching: bool = False,
    all_reduce_interface: Any | None = None,
) -> tuple[_inputs.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """Converts this process's part of a batch to the buffers of its devices.

  Runs on the host with NumPy arrays, releases the interpreter lock while it
  works, and may be called from several threads at once. The result depends on
  the arguments alone, not on the number of threads.

  Args:
    features: the tree of `feature_specs` with the ids of each feature, samples
      in device order: an integer array [samples, valency], or a 1-D object
      array of integer rows (ragged). A feature with one vector per position may
      also have the shape of its positions.
    features_weights: the same tree with a weight per id, or None for ones.
    feature_specs: prepared specs, any tree.
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: as JAX's first device.
    sharding_strategy: "MOD".
    has_leading_dimension: return [devices, size] arrays instead of flat ones.
    allow_id_dropping: drop and count the ids beyond the limits of a stack,
      instead of raising.
    batch_number: names the batch in reductions between hosts.
    enable_minibatching: let a batch take several passes.
    all_reduce_interface: how hosts agree on the number of minibatches.

  Returns:
    The buffers, and what they needed.

  Raises:
    ValueError: for bad arguments or data, and for ids beyond the limits of a
      stack without `allow_id_dropping`.
    TypeError: for ids that are not integers.
    NotImplementedError: with `enable_minibatching`.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(num_sc_per_device)
  _structure.assert_same_structure(
      features, feature_specs, "features", "feature_specs"
  )
  if features_weights is not None:
    _structure.assert_same_structure(
        features_weights, feature_specs, "features_weights", "feature_specs"
    )
  if (
      enable_minibatching
      and all_reduce_interface is None
      and local_device_count < global_device_count
  ):
    raise ValueError(
        "Minibatching with several processes needs an all_reduce_interface:"
        f" this process has {local_device_count} of {global_device_count}"
        " devices."
    )
  _plan.get_stacked_table_specs(feature_specs)  # raises if not prepared
  _plan.check_planned_for(
      _plan.get_table_specs(feature_specs),
      global_device_count * num_sc_per_device,
  )
  specs = jax.tree.leaves(feature_specs)

  def samples(tree, name):
    return [
        _positions_as_samples(
            leaf, spec, local_device_count, global_device_count, name
        )
        for leaf, spec in zip(jax.tree.leaves(tree), specs)
    ]

  *buffers, num_minibatches, stats = (
      converter.preprocess_sparse_dense_matmul_input(
          samples(features, "ids"),
          None
          if features_weights is None
          else samples(features_weights, "weights"),
          specs,
          local_device_count,
          global_device_count,
          num_sc_per_device=num_sc_per_device,
          sharding_strategy=sharding_strategy_to_enum(sharding_strategy),
          has_leading_dimension=has_leading_dimension,
          allow_id_dropping=allow_id_dropping,
          batch_number=batch_number,
          enable_minibatching=enable_minibatching,
          all_reduce_interface=all_reduce_interface,
      )
  )
  shape = (
      (local_device_count, 1) if has_leading_dimension else local_device_count
  )
  return (
      _inputs.PreprocessedInput(
          _inputs.SparseDenseMatmulInput(*buffers),
          np.full(shape, num_minibatches, np.int32),
      ),
      _stats.SparseDenseMatmulInputStats.from_cc(stats),
  )


def _positions_as_samples(
    values: Any,
    feature: embedding_spec.FeatureSpec,
    local_device_count: int,
    global_device_count: int,
    name: str,
) -> Any:
  """`values` with a row for each position, if the feature is a sequence."""
  if len(feature.output_shape) <= 2 or np.ndim(values) < 2:
    return values
  batch = feature.output_shape[0] * local_device_count // global_device_count
  return _samples.one_row_per_sample(np.asarray(values), feature, batch, name)


def sharding_strategy_to_enum(name: str) -> converter.ShardingStrategy:
  """The strategy called `name`, in any letter case.

  Raises:
    ValueError: if there is none.
  """
  if name.upper() != "MOD":
    raise ValueError(
        f"Unsupported sharding strategy {name!r}. The choices are: 'MOD'."
    )
  return converter.ShardingStrategy.MOD


def eval_preprocess_sparse_dense_matmul_input_shape(
    feature_specs: Any,
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int | None = None,
    has_leading_dimension: bool = False,
    enable_minibatching: bool = False,
) -> _inputs.PreprocessedInput:
  """Shapes and dtypes of what preprocessing returns, as ShapeDtypeStructs."""
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
  )
  cells = compute_coo_buffer_size_per_device(
      feature_specs,
      global_device_count,
      topology.num_sc_per_device,
      enable_minibatching,
  )
  num_row_pointers = layout.row_pointers_per_device(
      topology, enable_minibatching
  )

  def per_device(size, dtype):
    if has_leading_dimension:
      return jax.ShapeDtypeStruct((local_device_count, size), dtype)
    return jax.ShapeDtypeStruct((local_device_count * size,), dtype)

  return _inputs.PreprocessedInput(
      _inputs.SparseDenseMatmulInput(
          {name: per_device(num_row_pointers, np.int32) for name in cells},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.int32) for name, size in cells.items()},
          {name: per_device(size, np.float32) for name, size in cells.items()},
      ),
      per_device(1, np.int32),
  )


def compute_row_pointers_size_per_device(
    *,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Row pointers of one device."""
  return layout.row_pointers_per_device(
      _one_process(global_device_count, num_sc_per_device), enable_minibatching
  )


def compute_theoretical_max_coo_buffer_size(
    max_ids_per_partition: int,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> int:
  """Cells of one device that hold any batch within `max_ids_per_partition`."""
  return layout.max_coo_cells_per_device(
      max_ids_per_partition,
      _one_process(global_device_count, num_sc_per_device),
      enable_minibatching,
  )


def compute_coo_buffer_size_per_device(
    feature_specs: Any,
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> dict[str, int]:
  """Stack name -> cells of one device.

  Raises:
    ValueError: if specs are not prepared, or a suggested size exceeds what the
      limits of the stack can fill.
  """
  _plan.get_stacked_table_specs(feature_specs)  # raises if not prepared
  return converter.compute_coo_buffer_size_per_device(
      jax.tree.leaves(feature_specs),
      global_device_count,
      hardware.resolve_num_sc_per_device(num_sc_per_device),
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
