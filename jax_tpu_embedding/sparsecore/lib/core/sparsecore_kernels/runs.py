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
  none = jnp.full(1, NO_RUN, run.dtype)
  before = jnp.concatenate([none, run[:-1]])
  after = jnp.concatenate([run[1:], none])
  is_first = (run != before) | (place == 0)
  is_last = (run != after) | (place == of_worker - 1)

  # Of each entry, the run that its worker begins with, and whether it goes on.
  # Runs ascend, so the latest is the largest; gathers would take longer.
  start = 2 * run + (run == before)
  start = jax.lax.cummax(jnp.where((place == 0) & (run >= 0), start, -1))
  is_part = (run >= 0) & (start == 2 * run + 1) & (entry >= of_worker)
  parts_until = jnp.cumsum(is_part, dtype=jnp.int32)

  first = jnp.arange(num_workers, dtype=jnp.int32) * of_worker
  first = jnp.minimum(first, run.size - 1)
  last = jnp.minimum(first + of_worker, run.size) - 1
  continues = is_part[first]
  end_of_part = parts_until[last] - parts_until[first]
  return Shares(
      is_first=is_first.astype(jnp.int32),
      target=jnp.where(is_last & ~is_part & (run >= 0), run, NO_RUN),
      num_chunks=num_chunks,
      end_of_part=jnp.where(continues, end_of_part, -1),
      run_of_part=jnp.where(continues, run[first], NO_RUN),
  )
