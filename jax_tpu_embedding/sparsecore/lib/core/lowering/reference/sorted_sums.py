# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update in jnp, with the same bits every time, on any platform.

A module like lookup_and_update.py, whose functions these are but for the order
of sums. Those add with scatters, and a GPU adds the terms of a scatter in any
order. Here terms are sorted, and those of a segment are added in pairs, pairs
of pairs, and so on: what is added to what depends on their places alone.
"""

from __future__ import annotations

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update


def segment_sum(
    terms: jax.Array,
    segments: jax.Array,
    *,
    num_segments: int,
    indices_are_sorted: bool = False,
) -> jax.Array:
  """f32[num_segments, D], the sums of terms; those beyond them are left out.

  Args:
    terms: f32[n, D].
    segments: i32[n], not negative.
    num_segments: of the result.
    indices_are_sorted: whether segments are ascending.
  """
  if not terms.shape[0]:  # Nothing to gather from.
    return jnp.zeros((num_segments, *terms.shape[1:]), terms.dtype)
  if not indices_are_sorted:
    order = jnp.argsort(segments, stable=True)
    segments, terms = segments[order], terms[order]
  place = lax.iota(jnp.int32, segments.size)
  is_first = (place == 0) | (segments != jnp.roll(segments, 1))
  rank = place - lax.cummax(jnp.where(is_first, place, 0))

  # sums[i]: of the last `width` terms up to i that are of its segment.
  def add_those_before(state):
    width, sums = state
    before = sums[jnp.maximum(place - width, 0)]
    return 2 * width, jnp.where((rank >= width)[:, None], before + sums, sums)

  most = jnp.max(rank, initial=0)
  _, sums = lax.while_loop(
      lambda state: state[0] <= most, add_those_before, (jnp.int32(1), terms)
  )
  number = lax.iota(jnp.int32, num_segments)
  last = jnp.searchsorted(segments, number, side="right") - 1
  last = jnp.maximum(last, 0)
  has_terms = segments[last] == number
  return jnp.where(has_terms[:, None], sums[last], 0)


_with_sorted_sums = functools.partial(
    functools.partial, segment_sum=segment_sum
)
lookup = _with_sorted_sums(lookup_and_update.lookup)
lookup_on_one_device = _with_sorted_sums(lookup_and_update.lookup_on_one_device)
update_on_one_device = _with_sorted_sums(lookup_and_update.update_on_one_device)
