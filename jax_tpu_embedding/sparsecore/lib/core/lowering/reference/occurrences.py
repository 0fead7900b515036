# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""First stage of the conversion in jnp: what each id of a feature becomes.

Source: cc/convert/stages/slice.h, cc/convert/stages/gains.h.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import float32_arithmetic
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import left_to_right
import numpy as np


class Occurrences(NamedTuple):
  """One element for each id, in order of occurrence."""

  is_kept: jax.Array  # bool; those that are not kept might as well not be here
  sc: jax.Array  # i32; the SparseCore that reads the row
  partition: jax.Array  # i32; the SparseCore that owns the row
  row: jax.Array  # i32; in the shard of that SparseCore
  sample: jax.Array  # i32; sample id
  gain: jax.Array  # f32


class _Samples(NamedTuple):
  """To which samples the ids of a feature belong."""

  row_splits: jax.Array  # i32[samples + 1]
  sample: jax.Array  # i32[ids]
  is_inside: jax.Array  # bool[ids]; of any sample
  is_wrong: jax.Array  # bool; the caller's row_splits are not a partition


def occurrences(
    feature: raw_ids.Feature,
    operands: raw_ids.Operands,
    places: raw_ids.SamplePlaces,
    combiner: str,
    topology: layout.Topology,
) -> tuple[Occurrences, jax.Array]:
  """The occurrences of one feature; of a ragged one, with unused capacity.

  Also bool[], whether the native converter would call anything an error.
  """
  num_scs = topology.num_scs
  samples = _samples(operands)
  ids, in_range, id_kept = _clean_ids(feature, operands.ids.reshape(-1))
  is_kept = id_kept
  weights = None
  if operands.weights is not None:
    weights, weight_kept = _clean_weights(feature, operands.weights.reshape(-1))
    is_kept &= weight_kept
  # What is wrong is shown, even if it would be dropped for another reason.
  is_wrong = jnp.broadcast_to(samples.is_wrong, in_range.shape)
  if feature.out_of_range_ids == "error":
    is_wrong |= ~in_range
  is_kept = samples.is_inside & (is_kept | is_wrong)

  has_error = samples.is_wrong | jnp.any(is_kept & is_wrong)
  must_be_finite = feature.non_finite_weights == "error"
  gain = _gains(combiner, samples, operands, weights, is_kept, must_be_finite)
  if weights is not None and must_be_finite:
    has_error |= jnp.any(is_kept & jnp.isnan(gain))
  sc, sample = places.place(samples.sample)
  of_feature = Occurrences(
      is_kept=is_kept,
      sc=sc,
      partition=(ids % num_scs + feature.col_shift % num_scs) % num_scs,
      row=ids // num_scs + feature.col_offset // num_scs,
      sample=sample,
      gain=jnp.where(is_wrong, jnp.nan, gain),
  )
  return of_feature, has_error


def _samples(operands: raw_ids.Operands) -> _Samples:
  num_samples = operands.num_samples
  if operands.row_splits is None:
    valency = operands.ids.shape[1]
    position = lax.iota(jnp.int32, num_samples * valency)
    return _Samples(
        row_splits=lax.iota(jnp.int32, num_samples + 1) * valency,
        sample=position // max(valency, 1),
        is_inside=jnp.ones(position.shape, bool),
        is_wrong=jnp.zeros((), bool),
    )
  capacity = operands.ids.shape[0]
  splits = operands.row_splits
  is_wrong = (
      (splits[0] != 0)
      | (splits[-1] > capacity)
      | jnp.any(splits[1:] < splits[:-1])
  )
  # The values must belong to samples for their gains to be seen.
  even = lax.iota(jnp.int64, num_samples + 1) * capacity // max(num_samples, 1)
  splits = jnp.where(is_wrong, even.astype(jnp.int32), splits)
  position = lax.iota(jnp.int32, capacity)
  sample = jnp.searchsorted(splits, position, side="right") - 1
  is_inside = position < splits[-1]
  return _Samples(
      row_splits=splits,
      sample=jnp.where(is_inside, sample, 0).astype(jnp.int32),
      is_inside=is_inside,
      is_wrong=is_wrong,
  )


def _clean_ids(
    feature: raw_ids.Feature, ids: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """i32 ids of the table's rows, which of them were, and which are kept."""
  vocabulary_size = feature.vocabulary_size
  in_range = (ids >= 0) & (ids < vocabulary_size)
  if feature.out_of_range_ids == "modulo":
    rows = ids % vocabulary_size
  else:
    rows = jnp.clip(ids, 0, vocabulary_size - 1)
  is_kept = in_range | (feature.out_of_range_ids != "drop")
  return rows.astype(jnp.int32), in_range, is_kept


def _clean_weights(
    feature: raw_ids.Feature, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The weights to use, and those whose ids are kept."""
  is_finite = jnp.isfinite(weights)
  is_kept = is_finite | (feature.non_finite_weights != "drop")
  if feature.non_finite_weights == "error":
    # One that makes its sample's gains NaN, whatever the combiner.
    weights = jnp.where(is_finite, weights, jnp.nan)
  elif feature.non_finite_weights == "clamp":
    largest = float(np.finfo(np.float32).max)
    clamped = jnp.where(weights > 0, largest, -largest)
    clamped = jnp.where(jnp.isnan(weights), 0, clamped)
    weights = jnp.where(is_finite, weights, clamped.astype(jnp.float32))
  return weights, is_kept


def _gains(
    combiner: str,
    samples: _Samples,
    operands: raw_ids.Operands,
    weights: jax.Array | None,
    is_kept: jax.Array,
    must_be_finite: bool,
) -> jax.Array:
  """f32[ids]: what each id counts in its sample.

  Where divisors must be finite, what is divided by others is NaN.
  """
  if not is_kept.size or not operands.num_samples:
    # Nothing to gather from, and nobody reads the gains.
    return jnp.ones(is_kept.shape, jnp.float32)
  if weights is None:
    if combiner == "sum":
      return jnp.ones(is_kept.shape, jnp.float32)
    count = _count_kept(samples, is_kept)
    if combiner == "sqrtn":
      count = float32_arithmetic.sqrt(count)
    gain = float32_arithmetic.divide(jnp.ones_like(count), count)
    return gain[samples.sample]
  if combiner == "sum":
    return weights
  # Adding zero changes nothing, as if the id were not there.
  divisor = _divisors(
      float32_arithmetic.add
      if combiner == "mean"
      else float32_arithmetic.add_square,
      jnp.where(is_kept, weights, 0),
      samples,
      operands,
  )
  if combiner == "sqrtn":
    divisor = float32_arithmetic.sqrt(divisor)
  divisor = divisor[samples.sample]
  if must_be_finite:
    weights = jnp.where(jnp.isfinite(divisor), weights, jnp.nan)
  return float32_arithmetic.divide_or_zero(weights, divisor)


def _count_kept(samples: _Samples, is_kept: jax.Array) -> jax.Array:
  """f32[samples]: how many ids each sample keeps."""
  kept_before = jnp.pad(jnp.cumsum(is_kept, dtype=jnp.int32), (1, 0))
  count = jnp.diff(kept_before[samples.row_splits])
  return count.astype(jnp.float32)


def _divisors(
    step,
    weights: jax.Array,
    samples: _Samples,
    operands: raw_ids.Operands,
) -> jax.Array:
  """f32[samples]: the weights of each sample, added up from left to right."""
  if operands.row_splits is None:
    columns = weights.reshape(operands.ids.shape).T
    # Zeros of the weights, so that they vary over a mesh as the sums do.
    total = jnp.zeros_like(columns, shape=columns.shape[1])
    return lax.scan(lambda total, w: (step(total, w), None), total, columns)[0]
  is_first = samples.sample != jnp.roll(samples.sample, 1)
  is_first = (is_first | ~samples.is_inside).at[:1].set(True)
  totals = left_to_right.fold_runs(
      step, step(jnp.zeros_like(weights), weights), weights, is_first
  )
  # A sample without ids gets any total, and nobody reads its divisor.
  return totals[jnp.minimum(samples.row_splits[:-1], totals.size - 1)]
