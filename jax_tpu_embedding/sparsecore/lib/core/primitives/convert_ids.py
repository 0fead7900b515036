# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Raw ids of one stack on one device to COO buffers, as a primitive.

The converter's work, inside a compiled program. Operands: for each feature of
the stack, ordered by row offset, either ids [samples, valency] or, if it
is_ragged, values [capacity] and row_splits i32[samples + 1]; then, if it
has_weights, weights f32 shaped like the ids. Ids are int32, int64, uint32 or
uint64. All are this device's.
Results: row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B],
gains f32[B], laid out as without minibatching. Gains of cells without an entry
are 0, not NaN: jax_debug_nans looks at all results. The shapes of the ids bound the
number of entries, so B is large enough for any ids and nothing is dropped but
what a feature's policy says. With keeps_errors the buffers of a batch that is
wrong say so, for check_batch, where the program would fail.

`lowering/reference/conversion.py` defines it in jnp.

Source: docs/reference/buffer_format.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

_ID_TYPES = ("int32", "int64", "uint32", "uint64")
_MAX_INT32 = 2**31 - 1


def _abstract_eval(
    *operands,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    features: tuple[raw_ids.Feature, ...],
    feature_stacking_strategy: str,
    keeps_errors: bool = False,
) -> tuple[jax.core.ShapedArray, ...]:
  """Checks the operands; the shapes of the buffers."""
  del keeps_errors  # Either way the buffers are as large.
  _check_choice(combiner, raw_ids.COMBINERS, "combiner")
  _check_choice(
      feature_stacking_strategy,
      raw_ids.FEATURE_STACKING_STRATEGIES,
      "feature_stacking_strategy",
  )
  utils.ensure_positive(global_device_count, "global_device_count")
  utils.ensure_positive(num_sc_per_device, "num_sc_per_device")
  utils.ensure_positive(len(features), "the number of features")
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  num_operands = sum(feature.num_operands for feature in features)
  if len(operands) != num_operands:
    raise ValueError(
        f"convert_ids takes {num_operands} operands for the features"
        f" {', '.join(feature.name for feature in features)} (ids, row_splits"
        f" if ragged, weights if any), got {len(operands)}."
    )
  grouped = raw_ids.group_operands(features, operands)
  for feature, of_feature in zip(features, grouped):
    _check_feature(feature, topology)
    _check_operands(feature, of_feature)
  places = raw_ids.sample_places(
      features, grouped, topology, feature_stacking_strategy
  )
  _check_samples(features, grouped, topology, feature_stacking_strategy)

  cells_per_sc = raw_ids.cells_per_sc(grouped, places, topology)
  cells = cells_per_sc * num_sc_per_device
  # Elements that get no cell are numbered after the cells.
  num_ids = sum(of_feature.ids.size for of_feature in grouped)
  if cells + num_ids >= _MAX_INT32:
    raise ValueError(
        f"Feature {features[0].name!r} and those stacked with it: {num_ids} ids"
        f" per device need {cells} cells, more than int32 counts. Use smaller"
        " batches."
    )
  return tuple(
      jax.core.ShapedArray((size,), dtype)
      for size, dtype in (
          (layout.row_pointers_per_device(topology), jnp.int32),
          (cells, jnp.int32),
          (cells, jnp.int32),
          (cells, jnp.float32),
      )
  )


def _check_choice(value: str, choices: Sequence[str], name: str) -> None:
  if value not in choices:
    raise ValueError(
        f"{name} must be one of {', '.join(choices)}, got {value!r}."
    )


def _check_feature(feature: raw_ids.Feature, topology: layout.Topology) -> None:
  """Checks that all rows of the feature's table are columns of the stack."""
  prefix = f"Feature {feature.name!r}: "
  for field, choices in (
      ("out_of_range_ids", raw_ids.ID_POLICIES),
      ("non_finite_weights", raw_ids.WEIGHT_POLICIES),
  ):
    _check_choice(getattr(feature, field), choices, prefix + field)
  if not 0 < feature.vocabulary_size <= _MAX_INT32:
    raise ValueError(
        f"{prefix}the vocabulary_size of its table must be in"
        f" [1, {_MAX_INT32}], got {feature.vocabulary_size}."
    )
  num_scs = topology.num_scs
  offsets = (feature.row_offset, feature.col_offset, feature.col_shift)
  if min(offsets) < 0 or feature.col_offset % num_scs:
    raise ValueError(
        f"{prefix}row_offset, col_offset and col_shift must not be negative,"
        f" and col_offset must be a multiple of the {num_scs} SparseCores, got"
        f" {offsets}. Stack its table for this topology."
    )
  if raw_ids.last_row(feature, topology) >= _MAX_INT32 // num_scs:
    raise ValueError(
        f"{prefix}vocabulary_size={feature.vocabulary_size} at"
        f" col_offset={feature.col_offset} on {num_scs} SparseCores needs"
        " stack rows beyond int32. Put its table into a smaller stack."
    )


def _check_operands(
    feature: raw_ids.Feature, operands: raw_ids.Operands
) -> None:
  prefix = f"Feature {feature.name!r}: "
  ids, row_splits, weights = operands
  if ids.dtype.name not in _ID_TYPES:
    raise ValueError(
        f"{prefix}ids must have type {', '.join(_ID_TYPES[:-1])} or"
        f" {_ID_TYPES[-1]}, got {ids.dtype.name}."
    )
  utils.ensure_dim(ids, 1 if feature.is_ragged else 2, f"{prefix}ids")
  if row_splits is not None:
    utils.ensure_dtype(row_splits, jnp.int32, f"{prefix}row_splits")
    utils.ensure_dim(row_splits, 1, f"{prefix}row_splits")
    if not row_splits.shape[0]:
      raise ValueError(
          f"{prefix}row_splits must have one element more than there are"
          " samples, got none."
      )
  if weights is not None:
    utils.ensure_dtype(weights, jnp.float32, f"{prefix}weights")
    utils.ensure_shape(weights, ids.shape, f"{prefix}weights")


def _check_samples(
    features: Sequence[raw_ids.Feature],
    operands: Sequence[raw_ids.Operands],
    topology: layout.Topology,
    feature_stacking_strategy: str,
) -> None:
  """Checks that SparseCores can share the samples, each with its own id."""
  num_scs = topology.num_sc_per_device
  split_first = feature_stacking_strategy == "SPLIT_THEN_STACK"
  end, last_name = 0, None  # of the samples before, counted on one device
  total = 0
  for feature, of_feature in zip(features, operands):
    num_samples = of_feature.num_samples
    total += num_samples
    if split_first and num_samples % num_scs:
      raise ValueError(
          f"Feature {feature.name!r}: ids must have a number of samples that"
          f" the {num_scs} SparseCores of a device can share equally, got"
          f" {num_samples} samples. Use a multiple of {num_scs}."
      )
    if not num_samples:
      continue  # They overlap nothing.
    if split_first:
      begin = feature.row_offset // topology.num_scs * num_scs
    else:
      begin = feature.row_offset // topology.global_device_count
    if begin < end or (begin > end and not split_first):
      raise ValueError(
          f"Feature {feature.name!r}: row_offset={feature.row_offset} is"
          f" sample {begin} of the device, and the samples before it"
          + (f", of feature {last_name!r}," if last_name else "")
          + f" end at {end}. Pass features by row_offset, and batches of the"
          " sizes that the features declare. Those that declare another batch"
          " than they were stacked for are best left as they were: they take"
          " any."
      )
    end, last_name = begin + num_samples, feature.name
  if not split_first and total % num_scs:
    raise ValueError(
        f"Feature {features[0].name!r} and those stacked with it: the"
        f" {num_scs} SparseCores of a device cannot share {total} samples"
        " equally."
    )
  if end > constants.MAX_SAMPLES_PER_DEVICE:
    raise ValueError(
        f"Feature {last_name!r} and those stacked with it have {end} samples"
        f" per device, more than {constants.MAX_SAMPLES_PER_DEVICE}, which is all that"
        " SparseCores can count. Use smaller batches or more devices."
    )


convert_ids_p = define.primitive(
    "convert_ids",
    _abstract_eval,
    operation="convert_ids",
    multiple_results=True,
    differentiation_hint=(
        "ids and weights have no gradients. Pass them through"
        " jax.lax.stop_gradient."
    ),
)
