# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The call of the converter: ids of a batch to buffers, in given limits."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _sample_ids
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _samples
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _spec_facts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

_STRATEGIES = dict(converter.FeatureStackingStrategy.__members__)


def to_buffers(
    conversion: _conversion.Conversion,
    features: Any,
    features_weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    allow_id_dropping: bool,
    batch_number: int,
    limits: _limits.Limits | None = None,
) -> tuple[_buffers.PreprocessedInput, _stats.SparseDenseMatmulInputStats]:
  """preprocess_sparse_dense_matmul_input, in limits that are given.

  Args, returns and raises as there; without limits, the specs' hold.
  """
  # Names, and not a mapping for the converter, which takes 3 us to make: a
  # fifth of what a small batch takes.
  (
      local_device_count,
      global_device_count,
      num_sc_per_device,
      has_leading_dimension,
      enable_minibatching,
      all_reduce_interface,
      strategy,
      num_threads,
      output_pool,
  ) = conversion
  specs, structure = jax.tree_util.tree_flatten(feature_specs)
  num_shards = global_device_count * num_sc_per_device
  facts = _spec_facts.of_specs(
      feature_specs, specs, num_shards, num_sc_per_device, limits
  )
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
  batches = _batch_sizes.of_ids(
      ids, specs, local_device_count, global_device_count
  )
  layouts = ()
  if batches or not facts.are_as_planned:
    layouts = _batch_sizes.layouts(
        specs,
        batches,
        num_shards,
        keeps_places=strategy == "SPLIT_THEN_STACK",
    )
  split_specs = facts.split_specs
  if layouts:
    if limits is not None:
      specs = limits.on_copies(specs, num_sc_per_device)
    specs = _batch_sizes.lay_out(specs, batches, layouts)
    split_specs = [specs[i] for i in facts.split]
  for i in facts.of_positions:
    spec = specs[i]
    batch = spec.output_shape[0] * local_device_count // global_device_count
    ids[i], weights[i] = _positions_as_samples(ids[i], weights[i], spec, batch)

  samples, dropped = {}, {}
  if facts.replicated:
    samples, dropped = _sample_ids.of_host(
        [ids[i] for i in facts.replicated],
        [weights[i] for i in facts.replicated],
        [specs[i] for i in facts.replicated],
        local_device_count=local_device_count,
        global_device_count=global_device_count,
        num_runs=_feature_stacking.runs_per_device(
            _STRATEGIES[strategy], num_sc_per_device
        ),
        has_leading_dimension=has_leading_dimension,
        num_threads=num_threads,
    )
    ids, weights = (
        [values[i] for i in facts.split] for values in (ids, weights)
    )
    if not facts.split:
      return (
          _buffers.PreprocessedInput(
              _buffers.SparseDenseMatmulInput({}, {}, {}, {}),
              _minibatches_per_device(
                  1, local_device_count, has_leading_dimension
              ),
              _buffers.settings(
                  global_device_count,
                  num_sc_per_device,
                  (),
                  enable_minibatching,
                  strategy,
                  tuple(batches.items()) if batches else (),
                  layouts,
              ),
              samples,
          ),
          _stats.SparseDenseMatmulInputStats({}, {}, id_drop_counters=dropped),
      )

  # Plain calls and no helpers: this is most of the time of a small batch.
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches, stats = (
      converter.preprocess_sparse_dense_matmul_input(
          ids,
          weights,
          split_specs,
          local_device_count,
          global_device_count,
          num_sc_per_device=num_sc_per_device,
          has_leading_dimension=has_leading_dimension,
          allow_id_dropping=allow_id_dropping,
          batch_number=batch_number,
          enable_minibatching=enable_minibatching,
          all_reduce_interface=all_reduce_interface,
          feature_stacking_strategy=_STRATEGIES[strategy],
          num_threads=num_threads,
          output_pool=output_pool,
      )
  )
  stats = _stats.SparseDenseMatmulInputStats.from_cc(stats)
  if dropped:
    stats = stats.replace(
        id_drop_counters={**stats.id_drop_counters, **dropped}
    )
  return (
      _buffers.PreprocessedInput(
          _buffers.SparseDenseMatmulInput(
              row_pointers, embedding_ids, sample_ids, gains
          ),
          _minibatches_per_device(
              num_minibatches, local_device_count, has_leading_dimension
          ),
          _buffers.settings(
              global_device_count,
              num_sc_per_device,
              facts.limits,
              enable_minibatching,
              strategy,
              tuple(batches.items()) if batches else (),
              layouts,
          ),
          samples,
      ),
      stats,
  )


@functools.lru_cache(maxsize=64)
def _minibatches_per_device(
    num_minibatches: int, num_devices: int, has_leading_dimension: bool
) -> np.ndarray:
  """i32[num_devices], or [num_devices, 1]; one array for all batches."""
  shape = (num_devices, 1) if has_leading_dimension else (num_devices,)
  result = np.full(shape, num_minibatches, np.int32)
  result.flags.writeable = False
  return result


def _positions_as_samples(
    ids: Any,
    weights: Any | None,
    feature: _tables.FeatureSpec,
    batch: int,
) -> tuple[Any, Any | None]:
  """Those of sequences, with a row for each position; others as they are."""
  if not _is_matrix(ids):
    return ids, weights
  # Of a masked array too, which the converter refuses.
  ids = np.asanyarray(ids)
  if _is_matrix(weights):
    weights = np.asanyarray(weights)
  elif weights is not None:
    return _samples.one_row_per_sample(ids, feature, batch), weights
  return _samples.ids_and_weights(ids, weights, feature, batch)


def _is_matrix(x: Any) -> bool:
  """Whether it is a dense array of rows, or of rows of rows."""
  return isinstance(x, (np.ndarray, jax.Array)) and x.ndim > 1
