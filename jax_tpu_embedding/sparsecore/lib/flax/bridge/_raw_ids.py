# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a layer is called with; raw ids become buffers, if any are needed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _convert
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

P = jax.sharding.PartitionSpec


def as_preprocessed(
    inputs: Any,
    weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> embedding.PreprocessedInput | None:
  """`inputs` if they were preprocessed; None for raw ids.

  Args:
    inputs: what a layer was called with.
    weights: that came with them.
    feature_specs: of the layer.

  Raises:
    ValueError: if inputs are preprocessed, and there are weights, or specs of
      unknown size.
  """
  if isinstance(inputs, embedding.SparseDenseMatmulInput):
    inputs = embedding.PreprocessedInput(inputs)
  if not isinstance(inputs, embedding.PreprocessedInput):
    return None
  if weights is not None:
    raise ValueError(
        "weights go with raw ids. Preprocessed inputs contain theirs: pass"
        " them to preprocess_sparse_dense_matmul_input."
    )
  _partial_shapes.check_known(feature_specs)
  return inputs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Feature:
  """The arrays of one feature, of all devices."""

  ids: jax.Array  # or the values of a pair
  row_splits: jax.Array | None
  weights: jax.Array | None
  # Whether the arrays are one pair for all devices.
  is_shared: bool = dataclasses.field(metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RawIds:
  """A global batch of raw ids, checked, in the order of the feature specs."""

  features: tuple[_Feature, ...]


def read(
    config: _lookup_config.LookupConfig, ids: Any, weights: Any | None = None
) -> RawIds:
  """Checks a global batch of raw ids.

  Args:
    config: specs and devices.
    ids: the tree of the feature specs with, for each feature, an integer array
      whose first axis is the batch; or a pair (values [capacity], row_splits
      [samples + 1]). The values of a pair are sent to every device. Those that
      are split already have one pair per device, after one another: values
      [devices * capacity] and row_splits [devices * (samples / devices + 1)].
    weights: the same tree with a weight per id, or None for ones, of some
      features or all. Those of a pair are shaped like its values.

  Raises:
    ValueError and TypeError: see embedding.convert_ids.
    NotImplementedError: where weights are differentiated.
  """
  return RawIds(
      features=tuple(
          _read_feature(config, spec, of_feature, weights_of_feature)
          for spec, of_feature, weights_of_feature in zip(
              jax.tree.leaves(config.feature_specs),
              _structure.flatten_like(
                  ids, config.feature_specs, "features", "feature_specs"
              ),
              _structure.flatten_weights(
                  weights, jax.tree.structure(config.feature_specs)
              ),
          )
      )
  )


def convert(
    config: _lookup_config.LookupConfig,
    inputs: RawIds | embedding.PreprocessedInput,
) -> embedding.PreprocessedInput:
  """The buffers of all devices after one another, each of its own samples.

  If an id is wrong, they say so; see _checked_batch.py. What is preprocessed
  stays as it is.

  Args:
    config: specs and devices.
    inputs: of `read`, or preprocessed.
  """
  if not isinstance(inputs, RawIds):
    return inputs
  buffers = config.on_each_device(
      _convert_of_device,
      (partition(config, inputs),),
      config.data_partition,
  )(inputs)
  return buffers.replace(num_minibatches=np.array(1, np.int32))


def _convert_of_device(
    config: _lookup_config.LookupConfig, inputs: RawIds
) -> embedding.PreprocessedInput:
  """`convert` with one device's parts."""
  buffers = _convert.convert_ids(
      *of_device(config, inputs),
      config.feature_specs,
      config.topology,
      feature_stacking_strategy=config.feature_stacking_strategy,
      keeps_errors=True,
  )
  return buffers.replace(num_minibatches=None)  # no part of a device


def partition(config: _lookup_config.LookupConfig, inputs: RawIds) -> Any:
  """How the devices share the arrays."""
  return RawIds(features=tuple(_partition(config, f) for f in inputs.features))


def of_device(
    config: _lookup_config.LookupConfig, inputs: RawIds
) -> tuple[Any, Any]:
  """One device's ids and weights, as embedding.convert_ids takes them."""
  specs, structure = jax.tree.flatten(config.feature_specs)
  ids, weights = zip(
      *(
          _part_of_device(config, spec, feature)
          for spec, feature in zip(specs, inputs.features)
      )
  )
  return jax.tree.unflatten(structure, ids), jax.tree.unflatten(
      structure, weights
  )


def resize(config: _lookup_config.LookupConfig, ids: Any) -> Any:
  """The feature specs, with the number of samples that one device's ids have."""
  specs = jax.tree.leaves(config.feature_specs)
  ids = _structure.flatten_like(
      ids, config.feature_specs, "features", "feature_specs"
  )
  return _batch_sizes.resize(
      config.feature_specs,
      _batch_sizes.of_ids(ids, specs, 1, config.num_shards),
  )


@jax.custom_jvp
def _without_gradient(weights: jax.Array) -> jax.Array:
  """`weights`, which a lookup cannot be differentiated by."""
  return weights


@_without_gradient.defjvp
def _refuse_gradient(unused_primals, unused_tangents):
  raise NotImplementedError(
      "ids and weights have no gradients. Pass them through"
      " jax.lax.stop_gradient."
  )


def _read_feature(
    config: _lookup_config.LookupConfig, spec: Any, ids: Any, weights: Any
) -> _Feature:
  """Checks that the arrays can be split over the devices."""
  if weights is not None:
    weights = _without_gradient(_convert.as_weights(weights, spec))
  num_devices = config.num_shards
  if not isinstance(ids, tuple):
    ids = _convert.as_ids(ids, spec)
    _check_divisible(spec, "ids", ids.shape, num_devices)
    if weights is not None:
      _check_divisible(spec, "weights", weights.shape, num_devices)
    return _Feature(ids=ids, row_splits=None, weights=weights, is_shared=False)
  if len(ids) != 2:
    raise ValueError(
        f"Feature {spec.name!r}: ragged ids must be a pair (values,"
        f" row_splits), got a tuple of {len(ids)}."
    )
  values, row_splits = _convert.as_ids(ids[0], spec), _convert.as_row_splits(
      ids[1], spec
  )
  num_samples = math.prod(spec.output_shape[:-1])
  is_shared = row_splits.shape == (num_samples + 1,)
  if not is_shared:
    if row_splits.shape != (num_samples + num_devices,):
      raise ValueError(
          f"Feature {spec.name!r}: row_splits have shape {row_splits.shape},"
          f" expected {(num_samples + 1,)}, one more than samples, or"
          f" {(num_samples + num_devices,)}, those of each of the"
          f" {num_devices} devices after one another."
      )
    _check_divisible(spec, "values", values.shape, num_devices)
  return _Feature(
      ids=values, row_splits=row_splits, weights=weights, is_shared=is_shared
  )


def _check_divisible(
    spec: Any, name: str, shape: tuple[int, ...], num_devices: int
) -> None:
  if not shape or shape[0] % num_devices:
    raise ValueError(
        f"Feature {spec.name!r}: {name} have shape {shape}, whose first axis"
        f" must be divisible by {num_devices}, the number of devices that"
        " share the batch."
    )


def _partition(config: _lookup_config.LookupConfig, feature: _Feature) -> Any:
  spec = P() if feature.is_shared else config.data_partition
  return jax.tree.map(lambda unused_array: spec, feature)


def _part_of_device(
    config: _lookup_config.LookupConfig, spec: Any, feature: _Feature
) -> tuple[Any, Any]:
  """Ids and weights as embedding.convert_ids takes them, for one device."""
  if feature.row_splits is None:
    return feature.ids, feature.weights
  if not feature.is_shared:
    return (feature.ids, feature.row_splits), feature.weights
  # The device's samples have a range of the values, which moves to the front.
  # What no splits may be, none of its own becomes allowed by that: those of
  # the first device start where they start, and what is beyond the values
  # stays there.
  num_samples = math.prod(spec.output_shape[:-1]) // config.num_shards
  device = jax.lax.axis_index(config.axes) if config.num_shards > 1 else 0
  row_splits = jax.lax.dynamic_slice_in_dim(
      feature.row_splits, device * num_samples, num_samples + 1
  )
  first = jnp.where(device == 0, 0, row_splits[0])
  capacity = feature.ids.shape[0]
  row_splits = jnp.where(row_splits > capacity, row_splits, row_splits - first)
  values = jnp.roll(feature.ids, -first)
  weights = feature.weights
  if weights is not None:
    weights = jnp.roll(weights, -first)
  return (values, row_splits), weights
