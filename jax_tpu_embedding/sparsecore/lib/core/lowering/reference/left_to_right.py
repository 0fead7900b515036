# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Sums of consecutive elements in the order in which they stand.

Floating point addition is not associative, so the usual parallel sums give
other bits than a loop does. Here all runs advance together, one element of each
at a time. Elements are put in order of their place in the run, and runs in
order of length, the longest first:

    runs      a0 a1 | b0 | c0 c1 c2
    elements  c0 a0 b0 | c1 a1 | c2

so that the second elements are added to a prefix of the first ones, and so on:
contiguous slices, without gathers or scatters in the loop. The loop takes a
bounded chunk at a time, so its work is that of the elements plus a chunk for
each element of the longest run, however uneven the runs are.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp

# Wide enough to be worth a turn of the loop, and narrow enough that a single
# long run wastes little.
_CHUNK = 512


def fold_runs(
    step: Callable[[jax.Array, jax.Array], jax.Array],
    initial: jax.Array,
    values: jax.Array,
    is_first: jax.Array,
) -> jax.Array:
  """Folds each run of elements from left to right.

  Must be traced with 64-bit types enabled.

  Args:
    step: (total, value) -> total, element by element.
    initial: f32[n]; the first element of a run has the total it starts with.
    values: f32[n], n < 2^31.
    is_first: bool[n], whether a run starts here; true for the first element.

  Returns:
    f32[n]: the total of the run that each element belongs to.
  """
  position = lax.iota(jnp.int32, values.size)
  begin = lax.cummax(jnp.where(is_first, position, 0))
  rank = position - begin  # in the run

  def fold():
    run, place = _places(is_first, begin, rank)

    def in_order(x):
      return jnp.zeros_like(x).at[place].set(x, unique_indices=True)

    totals = _fold_ranks(
        step, in_order(initial), in_order(values), in_order(rank)
    )
    return totals[run]

  return lax.cond(jnp.any(rank > 0), fold, lambda: initial)


def _places(
    is_first: jax.Array, begin: jax.Array, rank: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """i32[n] each: the number of the element's run, and the element's place.

  Args:
    is_first: bool[n].
    begin: i32[n], where the element's run begins.
    rank: i32[n], the element's place in its run.
  """
  n = is_first.size
  position = lax.iota(jnp.int32, n)
  next_begin = jnp.where(is_first, position, n)[1:]
  end = lax.cummin(
      jnp.concatenate([next_begin, jnp.full_like(position, n, shape=1)]),
      reverse=True,
  )
  # One key that is unique sorts several times as fast as keys with values.
  key = jnp.where(is_first, n - (end - begin), n).astype(jnp.uint64)
  key = lax.sort(key << 32 | position.astype(jnp.uint64), is_stable=False)
  order = key.astype(jnp.uint32).astype(jnp.int32)
  number = jnp.zeros_like(order).at[order].set(position, unique_indices=True)
  run = number[begin]
  of_rank = jnp.zeros_like(rank).at[rank].add(1)
  return run, (jnp.cumsum(of_rank, dtype=jnp.int32) - of_rank)[rank] + run


def _fold_ranks(
    step: Callable[[jax.Array, jax.Array], jax.Array],
    totals: jax.Array,
    values: jax.Array,
    ranks: jax.Array,
) -> jax.Array:
  """Adds the elements of each rank to the first totals, rank after rank."""
  n = values.size
  chunk = min(n, _CHUNK)
  # Slices of a chunk start at any element.
  totals = jnp.pad(totals, (0, chunk))
  values = jnp.pad(values, (0, chunk))
  ranks = jnp.pad(ranks, (0, chunk), constant_values=-1)

  def is_inside(state):
    position, _, _ = state
    return position < n

  def add_chunk(state):
    position, run, totals = state
    chunk_ranks = lax.dynamic_slice(ranks, (position,), (chunk,))
    rank = chunk_ranks[0]
    is_added = chunk_ranks == rank
    total = lax.dynamic_slice(totals, (run,), (chunk,))
    value = lax.dynamic_slice(values, (position,), (chunk,))
    total = jnp.where(is_added, step(total, value), total)
    totals = lax.dynamic_update_slice(totals, total, (run,))
    count = jnp.sum(is_added, dtype=jnp.int32)
    next_rank = ranks[position + count]
    next_run = jnp.where(next_rank == rank, run + count, 0)
    return position + count, next_run, totals

  num_runs = jnp.sum(ranks == 0, dtype=jnp.int32)
  state = num_runs, jnp.zeros_like(num_runs), totals
  return lax.while_loop(is_inside, add_chunk, state)[2][:n]
