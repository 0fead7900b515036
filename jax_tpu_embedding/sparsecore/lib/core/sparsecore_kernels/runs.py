# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How workers share entries that are summed run by run, in plain JAX.

Workers take as many entries each, one after another. A worker may begin inside
of a run that another has begun: of that run it makes a part, which is added to
the sum when all are done, in the order of workers. So bits depend on how many
workers there are, and never on which of them is faster.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout

NO_RUN = -1


class Shares(NamedTuple):
  """What workers W are to do with entries E."""

  is_first: jax.Array  # i32[E]: 1 where a sum begins
  target: jax.Array  # i32[E]: the run, at its last entry; else -1
  num_chunks: jax.Array  # i32[]: of every worker
  # i32[W]: of the part of a run that a worker has to continue, its last entry
  # among those of the worker; -1 if it has none.
  end_of_part: jax.Array
  run_of_part: jax.Array  # i32[W]: the run; -1 if there is no part


def share(run: jax.Array, num_workers: int, chunk: int) -> Shares:
  """Shares of entries for workers, which take them in chunks.

  Args:
    run: i32[E], ascending; NO_RUN at the end. E is a multiple of `chunk` times
      `num_workers`.
    num_workers: W.
    chunk: how many entries a worker takes at once.
  """
  count = jnp.sum(run >= 0, dtype=jnp.int32)
  num_chunks = layout.round_up(count, num_workers * chunk) // (
      num_workers * chunk
  )
  of_worker = num_chunks * chunk
  entry = jnp.arange(run.size, dtype=jnp.int32)
  place = entry % jnp.maximum(of_worker, 1)
  worker = jnp.minimum(entry // jnp.maximum(of_worker, 1), num_workers - 1)
  none = jnp.full(1, NO_RUN, run.dtype)
  before = jnp.concatenate([none, run[:-1]])
  after = jnp.concatenate([run[1:], none])
  is_first = (run != before) | (place == 0)
  is_last = (run != after) | (place == of_worker - 1)

  first = jnp.minimum(
      jnp.arange(num_workers, dtype=jnp.int32) * of_worker, run.size - 1
  )
  continues = (run[first] == before[first]) & (run[first] >= 0) & (first > 0)
  run_of_part = jnp.where(continues, run[first], NO_RUN)
  ascending = jnp.where(run >= 0, run, jnp.iinfo(run.dtype).max)
  end = jnp.searchsorted(ascending, run_of_part, side="right").astype(jnp.int32)
  end_of_part = jnp.minimum(end - first, of_worker) - 1
  is_part = run == run_of_part[worker]
  return Shares(
      is_first=is_first.astype(jnp.int32),
      target=jnp.where(is_last & ~is_part & (run >= 0), run, NO_RUN),
      num_chunks=num_chunks,
      end_of_part=jnp.where(continues, end_of_part, -1),
      run_of_part=run_of_part,
  )
