# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The call of the converter: ids of a batch to buffers, in given limits."""

from __future__ import annotations

from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _samples
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

OutputPool = converter.OutputPool


def to_buffers(
    features: Any,
    features_weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
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
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    num_threads: int | None = None,
    output_pool: OutputPool | None = None,
    limits: _limits.Limits | None = None,
) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """preprocess_sparse_dense_matmul_input, where limits hold and never grow.

  Args, returns and raises as there; `limits` hold in place of those of specs.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(num_sc_per_device)
  if isinstance(limits, _limits.Limits):
    _check_minibatching(limits, enable_minibatching)
    feature_specs = limits.on_copies(feature_specs, num_sc_per_device)
  specs, structure = jax.tree.flatten(feature_specs)
  ids = _structure.flatten_as(features, structure, "features", "feature_specs")
  weights = _structure.flatten_weights(features_weights, structure)
  if (
      enable_minibatching
      and all_reduce_interface is None
      and local_device_count < global_device_count
  ):
    raise ValueError(
        "Minibatching with several processes needs an all_reduce_interface:"
        f" this process has {local_device_count} of {global_device_count}"
        " devices. get_all_reduce_interface makes one."
    )
  _plan.check_prepared(specs, global_device_count * num_sc_per_device)
  strategy = _feature_stacking.feature_stacking_strategy_to_enum(
      feature_stacking_strategy
  )
  batches = _batch_sizes.of_ids(
      ids, specs, local_device_count, global_device_count
  )
  specs = _batch_sizes.resize(specs, batches)
  for i, spec in enumerate(specs):
    if len(spec.output_shape) > 2:
      batch = spec.output_shape[0] * local_device_count // global_device_count
      ids[i] = _positions_as_samples(ids[i], spec, batch, "ids")
      weights[i] = _positions_as_samples(weights[i], spec, batch, "weights")

  # Plain calls and no helpers: this is most of the time of a small batch.
  converted = converter.preprocess_sparse_dense_matmul_input(
      ids,
      weights,
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
      feature_stacking_strategy=strategy,
      num_threads=num_threads,
      output_pool=output_pool,
  )
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches, stats = (
      converted
  )
  minibatches_per_device = np.empty(
      (local_device_count, 1) if has_leading_dimension else local_device_count,
      np.int32,
  )
  minibatches_per_device.fill(num_minibatches)
  return (
      _buffers.PreprocessedInput(
          _buffers.SparseDenseMatmulInput(
              row_pointers, embedding_ids, sample_ids, gains
          ),
          minibatches_per_device,
          _buffers.settings(
              _buffers.limits_of_specs(specs),
              tuple(batches.items()),
              global_device_count=global_device_count,
              num_sc_per_device=num_sc_per_device,
              enable_minibatching=enable_minibatching,
              feature_stacking_strategy=strategy.name,
          ),
      ),
      _stats.SparseDenseMatmulInputStats.from_cc(stats),
  )


def _positions_as_samples(
    values: Any, feature: embedding_spec.FeatureSpec, batch: int, name: str
) -> Any:
  """The `values` of a sequence, with a row for each position."""
  if not isinstance(values, (np.ndarray, jax.Array)) or values.ndim < 2:
    return values
  # Of a masked array too, which the converter refuses.
  values = np.asanyarray(values)
  return _samples.one_row_per_sample(values, feature, batch, name)


def _check_minibatching(limits: _limits.Limits, enable_minibatching: bool):
  if limits.enable_minibatching != enable_minibatching:
    raise ValueError(
        f"limits have enable_minibatching={limits.enable_minibatching}, and"
        f" the call has {enable_minibatching}."
    )


def sharding_strategy_to_enum(name: str) -> converter.ShardingStrategy:
  """The strategy called `name`, in any letter case.

  Raises:
    TypeError: if it is no string.
    ValueError: if there is none.
  """
  if not isinstance(name, str):
    raise TypeError(f"sharding_strategy must be 'MOD', got {name!r}.")
  if name.upper() != "MOD":
    raise ValueError(
        f"Unsupported sharding strategy {name!r}. The choices are: 'MOD'."
    )
  return converter.ShardingStrategy.MOD
