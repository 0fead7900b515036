# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing inside jit: raw ids to the buffers of one device."""

from __future__ import annotations

import collections
from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids as primitive
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _sample_ids
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _samples
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

_INT32 = np.iinfo(np.int32)


def convert_ids(
    features: Any,
    features_weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    topology: layout.Topology,
    *,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    keeps_errors: bool = False,
) -> _buffers.PreprocessedInput:
  """Converts one device's ids to buffers, as part of a jitted program.

  Buffers are sized from the shapes of the ids so that every batch of these
  shapes fits: nothing can be dropped but what a feature's policies say. The
  limits of the stacks play no role: those of the result hold for any ids of
  these shapes.

  Args:
    features: the tree of `feature_specs` with, for each feature, an integer
      array, shaped as _samples.one_row_per_sample takes them; or the pair
      (values [capacity], row_splits i32[samples + 1]): sample r has the values
      from row_splits[r] on, up to row_splits[r + 1]. Values after the last
      split are ignored, so that batches of any number of ids have one shape.
    features_weights: the same tree with a float32 weight per id; None for all
      features, or for some of them, whose weights are 1. Those of a ragged
      feature are one array, shaped like its values.
    feature_specs: prepared specs, any tree. Another batch than they declare is
      looked up as it is, if SparseCores can share it evenly.
    topology: devices and SparseCores that the tables are split over.
    feature_stacking_strategy: "SPLIT_THEN_STACK" or "STACK_THEN_SPLIT", in any
      letter case.
    keeps_errors: for layers. Whether ids that are wrong are no error here, but
      one of the program that looks the buffers up.

  Raises:
    ValueError: if trees or shapes do not fit the specs; for masked arrays; for
      an id beyond int32 where out_of_range_ids is "error".
    TypeError: if ids are not integers.
    jax.errors.JaxRuntimeError, or ValueError if JAX runs it at once: on CPU,
      for an id outside of its table or a weight that is not finite, where the
      feature's policy is "error", and for row_splits that descend or lead
      beyond the values. What was donated to the program is lost. Other
      platforms cannot raise; there the activations are NaN.
  """
  batch = read_ids(
      features,
      features_weights,
      feature_specs,
      topology,
      feature_stacking_strategy,
  )
  arrays = _buffers.SparseDenseMatmulInput({}, {}, {}, {})
  samples = {}
  for name, stack in batch.stacks.items():
    if stack.is_replicated:
      samples[name] = batch.samples_of(name, keeps_errors=keeps_errors)
      continue
    with jax.named_scope(f"convert/{name}"):
      buffers = primitive.convert_ids_p.bind(
          *batch.operands[name],
          **batch.conversion_of(name),
          keeps_errors=keeps_errors,
      )
    for by_name, buffer in zip(arrays, buffers):
      by_name[name] = buffer
  return _buffers.PreprocessedInput(
      arrays, settings=batch.settings, samples=samples
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawBatch:
  """One device's ids as the primitives take them, by stack name."""

  # Of the specs: those given, with the sizes of this batch.
  feature_specs: _tables.Nested[_tables.FeatureSpec]
  stacks: Mapping[str, _tables.StackedTableSpec]
  features: Mapping[str, tuple[raw_ids.Feature, ...]]
  operands: Mapping[str, tuple[jax.Array, ...]]
  # What buffers of these ids are made for, which is no more than their shapes
  # say.
  settings: _buffers.BufferSettings

  def conversion_of(self, stack_name: str) -> dict[str, Any]:
    """Parameters of the conversion of a stack."""
    return dict(
        combiner=self.stacks[stack_name].combiner,
        features=self.features[stack_name],
        feature_stacking_strategy=self.settings.feature_stacking_strategy,
        global_device_count=self.settings.global_device_count,
        num_sc_per_device=self.settings.num_sc_per_device,
    )

  def samples_of(
      self, stack_name: str, *, keeps_errors: bool
  ) -> _buffers.SampleIds:
    """The samples of a replicated stack.

    Raises what _sample_ids.of_device does.
    """
    strategy = _feature_stacking.feature_stacking_strategy_to_enum(
        self.settings.feature_stacking_strategy
    )
    with jax.named_scope(f"convert/{stack_name}"):
      return _sample_ids.of_device(
          self.features[stack_name],
          self.operands[stack_name],
          combiner=self.stacks[stack_name].combiner,
          num_devices=self.settings.global_device_count,
          num_runs=_feature_stacking.runs_per_device(
              strategy, self.settings.num_sc_per_device
          ),
          keeps_errors=keeps_errors,
      )


def read_ids(
    features: Any,
    features_weights: Any | None,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    topology: layout.Topology,
    feature_stacking_strategy: str,
) -> RawBatch:
  """Checks one device's ids; see convert_ids."""
  _tables.check_planned_for(
      _prepared.get_table_specs(feature_specs).values(),
      topology.num_scs,
  )
  all_ids = _structure.flatten_like(
      features, feature_specs, "features", "feature_specs"
  )
  batches = _batch_sizes.of_ids(
      all_ids,
      jax.tree.leaves(feature_specs),
      1,
      topology.global_device_count,
  )
  strategy = _feature_stacking.feature_stacking_strategy_to_enum(
      feature_stacking_strategy
  ).name
  layouts = _batch_sizes.layouts(
      jax.tree.leaves(feature_specs),
      batches,
      topology.num_scs,
      keeps_places=strategy == "SPLIT_THEN_STACK",
  )
  feature_specs = _batch_sizes.lay_out(feature_specs, batches, layouts)
  by_stack = collections.defaultdict(list)
  for ids, weights, spec in zip(
      all_ids,
      _structure.flatten_weights(
          features_weights, jax.tree.structure(feature_specs)
      ),
      jax.tree.leaves(feature_specs),
  ):
    operands = _operands(ids, weights, spec, topology)
    stack_name = spec.table_spec.setting_in_stack.stack_name
    by_stack[stack_name].append((_raw_feature(spec, operands), operands))

  stacks = _prepared.get_stacked_table_specs(feature_specs)
  features_of, operands_of, limits = {}, {}, {}
  for name, stack in stacks.items():
    members = sorted(by_stack[name], key=lambda member: member[0].row_offset)
    raw_features, operands = zip(*members)
    features_of[name] = raw_features
    operands_of[name] = tuple(
        x for of_feature in operands for x in of_feature if x is not None
    )
    if stack.is_replicated:
      continue  # No partitions, and no limits of them.
    num_ids = raw_ids.max_ids_per_sc(
        operands,
        raw_ids.sample_places(raw_features, operands, topology, strategy),
        topology,
    )
    limits[name] = layout.PartitionLimits(
        max_ids_per_partition=max(num_ids, 1),
        max_unique_ids_per_partition=max(
            min(num_ids, stack.stack_vocab_size // topology.num_scs), 1
        ),
    )
  return RawBatch(
      feature_specs=feature_specs,
      stacks=stacks,
      features=features_of,
      operands=operands_of,
      settings=_buffers.BufferSettings(
          global_device_count=topology.global_device_count,
          num_sc_per_device=topology.num_sc_per_device,
          limits=tuple(limits.items()),
          feature_stacking_strategy=strategy,
          batches=tuple(batches.items()),
          layouts=layouts,
      ),
  )


def _raw_feature(
    spec: _tables.FeatureSpec, operands: raw_ids.Operands
) -> raw_ids.Feature:
  transform = spec.id_transformation
  return raw_ids.Feature(
      name=spec.name,
      vocabulary_size=spec.table_spec.vocabulary_size,
      row_offset=int(transform.row_offset),
      col_offset=int(transform.col_offset),
      col_shift=int(transform.col_shift),
      is_ragged=operands.row_splits is not None,
      has_weights=operands.weights is not None,
      out_of_range_ids=spec.out_of_range_ids,
      non_finite_weights=spec.non_finite_weights,
  )


def _operands(
    ids: Any,
    weights: Any | None,
    spec: _tables.FeatureSpec,
    topology: layout.Topology,
) -> raw_ids.Operands:
  """One feature's arrays as the primitive takes them."""
  batch = spec.output_shape[0] // topology.global_device_count
  if weights is not None:
    weights = as_weights(weights, spec)
  if not isinstance(ids, tuple):
    ids, weights = _samples.ids_and_weights(
        as_ids(ids, spec), weights, spec, batch
    )
    return raw_ids.Operands(ids, None, weights)

  if len(ids) != 2:
    raise ValueError(
        f"Feature {spec.name!r}: ragged ids must be a pair (values,"
        f" row_splits), got a tuple of {len(ids)}."
    )
  values, row_splits = ids
  num_samples = batch * math.prod(spec.output_shape[1:-1])
  if np.shape(row_splits) != (num_samples + 1,):
    raise ValueError(
        f"Feature {spec.name!r}: row_splits must have shape"
        f" {(num_samples + 1,)}, one more than its {num_samples} samples here,"
        f" got {np.shape(row_splits)}."
    )
  return raw_ids.Operands(
      as_ids(values, spec), as_row_splits(row_splits, spec), weights
  )


def as_row_splits(row_splits: Any, spec: _tables.FeatureSpec) -> jax.Array:
  """Row splits as the primitive takes them, i32."""
  row_splits = _as_integers(row_splits, spec, "row_splits")
  if row_splits.dtype.itemsize < 4:
    return jnp.asarray(row_splits, jnp.int32)
  # A split that int32 does not have stays one that leads nowhere. The bounds
  # are numbers of the type of the splits.
  least = -1 if jnp.issubdtype(row_splits.dtype, jnp.signedinteger) else 0
  return jnp.asarray(row_splits.clip(least, _INT32.max), jnp.int32)


def _as_array(
    x: Any, spec: _tables.FeatureSpec, name: str
) -> np.ndarray | jax.Array:
  """An array of a type that JAX may have, in the byte order of this machine."""
  if isinstance(x, jax.Array):
    return x
  x = np.asanyarray(x)
  _samples.refuse_masked(x, spec, name)
  if x.dtype == object:
    raise TypeError(_objects(x, spec, name))
  return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _as_integers(
    x: Any, spec: _tables.FeatureSpec, name: str
) -> np.ndarray | jax.Array:
  x = _as_array(x, spec, name)
  if not jnp.issubdtype(x.dtype, jnp.integer):
    raise TypeError(
        f"Feature {spec.name!r}: {name} must be integers, got {x.dtype}."
    )
  return x


def as_weights(weights: Any, spec: _tables.FeatureSpec) -> jax.Array:
  """Weights as the primitive takes them, f32.

  Raises:
    TypeError: if they are no real numbers; truth values are 0 and 1.
    ValueError: if they are a masked array.
  """
  if isinstance(weights, tuple):
    raise TypeError(
        f"Feature {spec.name!r}: weights must be one array, got a tuple of"
        f" {len(weights)}. Pass those of a ragged feature without row_splits."
    )
  weights = _as_array(weights, spec, "weights")
  if weights.dtype != bool and not any(
      jnp.issubdtype(weights.dtype, kind)
      for kind in (jnp.integer, jnp.floating)
  ):
    raise TypeError(
        f"Feature {spec.name!r}: weights must be real numbers, got"
        f" {weights.dtype}."
    )
  # JAX has no types of more than 64 bits.
  return jnp.asarray(weights.astype(jnp.float32))


def _objects(x: np.ndarray, spec: _tables.FeatureSpec, name: str) -> str:
  """Why an array of Python objects is neither ids nor weights."""
  found = type(x.item()).__name__ if not x.ndim else "an array of objects"
  return (
      f"Feature {spec.name!r}: {name} must be numbers, got {found}. Inside of"
      " programs, ragged ids are a pair (values, row_splits), and their weights"
      " are shaped like the values; preprocessing takes other forms."
  )


def as_ids(ids: Any, spec: _tables.FeatureSpec) -> jax.Array:
  """Ids as one of the types of the primitive.

  Ids of 64 bits stay what they are, or raise, where JAX would cut them to 32.
  """
  ids = _as_integers(ids, spec, "ids")
  if ids.dtype.itemsize < 4:
    return jnp.asarray(ids, jnp.int32)
  if ids.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
    ids = _to_int32(ids, spec)
  return jnp.asarray(ids)


def _to_int32(ids: np.ndarray, spec: _tables.FeatureSpec) -> np.ndarray:
  """What JAX would cut to the low 32 bits, as ids that mean the same."""
  if spec.out_of_range_ids == "modulo":
    ids = ids % ids.dtype.type(spec.table_spec.vocabulary_size)
  lowest = max(_INT32.min, np.iinfo(ids.dtype).min)
  clipped = ids.clip(lowest, _INT32.max)
  if spec.out_of_range_ids == "error" and (clipped != ids).any():
    raise ValueError(
        f"Feature {spec.name!r}: id {ids[clipped != ids][0]} is outside of [0,"
        f" {spec.table_spec.vocabulary_size}), the range of its table. Map ids"
        " into the range, raise vocabulary_size, or set the feature's"
        " out_of_range_ids to 'drop', 'clamp' or 'modulo'."
    )
  # No table has a row 2^31 - 1, so what was outside stays outside.
  return clipped.astype(np.int32)
