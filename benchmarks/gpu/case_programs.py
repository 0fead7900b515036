# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The programs that are run on a GPU: of a case, and what they take."""

from __future__ import annotations

from collections.abc import Callable
import functools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
import numpy as np

from benchmarks.gpu import cases as cases_lib
from benchmarks.gpu import platforms


def conversion_params(case: cases_lib.Case) -> dict[str, Any]:
  """The parameters of the conversion of a case's ids."""
  return dict(
      combiner="sum",
      global_device_count=1,
      num_sc_per_device=1,
      features=(
          raw_ids.Feature(name="feature", vocabulary_size=case.num_rows),
      ),
      feature_stacking_strategy="SPLIT_THEN_STACK",
  )


def convert_program(
    lowering: every_lowering.Lowering, case: cases_lib.Case
) -> Callable[..., Any]:
  """A jitted function of ids: what lookups and updates take."""

  @jax.jit
  def program(ids):
    buffers = lowering.bind("convert_ids", ids, **conversion_params(case))
    return (*buffers, jnp.int32(1))  # one minibatch

  return program


def step_from_ids_program(
    where: platforms.Platform, case: cases_lib.Case, optimizer: str
) -> Callable[..., Any]:
  """A jitted function of ids, tables and a gradient: activations and tables."""
  convert = convert_program(where.lowering, case)
  lookup = lookup_program(where, case)
  update = update_program(where, optimizer)

  @functools.partial(jax.jit, donate_argnums=1)
  def program(ids, tables, gradient):
    coo = convert(ids)
    activations = lookup(coo, tables[0])
    # As in training, there is no gradient before there are activations.
    activations, gradient = jax.lax.optimization_barrier(
        (activations, gradient)
    )
    return activations, update(coo, tables, gradient)

  return program


def lookup_program(
    where: platforms.Platform, case: cases_lib.Case
) -> Callable[..., Any]:
  """A jitted function of buffers and a table."""

  @jax.jit
  def program(coo, table):
    (activations,) = where.lowering.bind(
        "lookup",
        *coo,
        table,
        device_batch_size=case.batch_size,
        max_ids_per_partition=coo[1].size,
        max_unique_ids_per_partition=coo[1].size,
    )
    return activations

  return program


def update_program(
    where: platforms.Platform, optimizer: str, donate: bool = True
) -> Callable[..., Any]:
  """A jitted function of buffers, tables and a gradient: the tables after."""
  case = update_cases.CASES[optimizer]
  hyperparameters = [
      np.bool_(x) if name in case.rule.bool_hyperparameters else np.float32(x)
      for name, x in zip(
          case.rule.hyperparameters, case.hyperparameters, strict=True
      )
  ]

  @functools.partial(jax.jit, donate_argnums=1 if donate else ())
  def program(coo, tables, gradient):
    return where.lowering.bind(
        f"update_{optimizer}",
        *coo,
        *tables,
        gradient,
        *hyperparameters,
        **case.static_params
        | (
            {"embedding_dim": tables[0].shape[1]} if case.rule.row_slots else {}
        ),
        max_ids_per_partition=coo[1].size,
        max_unique_ids_per_partition=coo[1].size,
    )

  return program


def make_tables(
    where: platforms.Platform, case: cases_lib.Case, optimizer: str
):
  """A table and slots, made on the device."""
  rule = update_rules.UPDATE_RULES[optimizer]
  shape = (case.num_rows, case.dim)
  # One fused loop: random numbers would take as much memory again.
  wave = lambda: jnp.sin(
      jax.lax.broadcasted_iota(jnp.float32, shape, 0)
      + jax.lax.broadcasted_iota(jnp.float32, shape, 1)
  )
  with jax.default_device(where.device):
    table = jax.jit(wave)()
    slots = [jnp.full(rule.slot_shape(n, shape), 0.1) for n in rule.slots]
  return [table, *slots]


def make_batches(where: platforms.Platform, case: cases_lib.Case):
  """Batches that take turns, and their buffers on the device."""
  batches = [cases_lib.make_batch(case, seed) for seed in range(3)]
  return batches, [jax.device_put(b.coo, where.device) for b in batches]


@jax.jit
def digest(arrays: Any) -> jax.Array:
  """u32[arrays]: of the bits and where they are, summed up on the device."""

  def of_array(x):
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    places = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
    return jnp.sum(bits * (2 * places + 1))

  return jnp.stack([of_array(x) for x in jax.tree.leaves(arrays)])


def seconds(
    where: platforms.Platform, run: Callable[[int], Any], num_calls: int = 20
) -> float:
  """Of one of many calls, run(number), that are under way together: a median."""
  if not where.is_timed:
    num_calls = 2
  for i in range(3):
    last = run(i)
  jax.block_until_ready(last)
  times = []
  for _ in range(7):
    start = time.perf_counter()
    for i in range(num_calls):
      last = run(i)
    jax.block_until_ready(last)
    times.append((time.perf_counter() - start) / num_calls)
  return statistics.median(times)


def make_gradient(where: platforms.Platform, case: cases_lib.Case) -> jax.Array:
  """That of the activations, on the device."""
  return jax.device_put(
      np.full((case.batch_size, case.dim), 1e-3, np.float32), where.device
  )


def lookup_seconds(where, case, buffers) -> float:
  """Of a lookup, of batches that take turns."""
  lookup = lookup_program(where, case)
  (table,) = make_tables(where, case, "sgd")
  return seconds(where, lambda i: lookup(buffers[i % 3], table))


def update_seconds(where, case, buffers, optimizer) -> float:
  """Of an update in place, of batches that take turns."""
  update = update_program(where, optimizer)
  tables = make_tables(where, case, optimizer)
  gradient = make_gradient(where, case)

  def run(i):
    nonlocal tables
    tables = update(buffers[i % 3], tables, gradient)
    return tables

  return seconds(where, run)


@functools.cache
def copy_rate(where: platforms.Platform) -> float:
  """Bytes per second, read and written, of a copy that no cache holds."""
  n = 2**28 if where.is_timed else 2**10
  with jax.default_device(where.device):
    x = jnp.ones(n, jnp.float32)
    negate = jax.jit(jnp.negative)
    return 8 * n / seconds(where, lambda _: negate(x))
