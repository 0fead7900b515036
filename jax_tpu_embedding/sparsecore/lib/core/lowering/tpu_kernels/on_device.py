# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update on one device, by kernels of SparseCores.

A module like reference/lookup_and_update.py, whose functions these are but for
the order in which sums are rounded. Sorting is left to XLA; what reads and
writes rows is in sparsecore_kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import runs
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import step_rows
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import sum_runs


def lookup(
    row_pointers: jax.Array,
    embedding_ids: jax.Array,
    sample_ids: jax.Array,
    gains: jax.Array,
    num_minibatches: jax.Array,
    table: jax.Array,
    *,
    device_batch_size: int,
    num_sc_per_device: int,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    int8_columns: int | None = None,
    adds_in_blocks: bool = False,
) -> jax.Array:
  """lookup_and_update.lookup."""
  del adds_in_blocks  # Sums have the order of sum_runs.
  entries = lookup_and_update.read_entries(
      (row_pointers, embedding_ids, sample_ids, gains, num_minibatches),
      num_table_rows=table.shape[0],
      batch_size=device_batch_size,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  order = jnp.argsort(entries.sample, stable=True)
  row, sample, gain, _ = (x[order] for x in entries)
  # What is out of range makes NaN of its sample.
  has_row = row < table.shape[0]
  of_each_row = None
  if quantization_config is not None:
    of_each_row = lambda x: lookup_and_update.quantize(x, *quantization_config)
  return sum_runs.sum_runs(
      table,
      jnp.where(has_row, row, 0),
      jnp.where(has_row, gain, jnp.nan),
      jnp.where(sample < device_batch_size, sample, runs.NO_RUN),
      num_runs=device_batch_size,
      of_each_row=of_each_row,
      int8_columns=int8_columns,
  )


def lookup_on_one_device(
    coo: Sequence[jax.Array], table: jax.Array, params: dict[str, Any]
) -> jax.Array:
  """`lookup` with the parameters of the primitive."""
  return lookup(
      *coo,
      table,
      device_batch_size=params["device_batch_size"],
      quantization_config=params.get("quantization_config"),
      int8_columns=params.get("int8_columns"),
      **lookup_and_update.layout_of(coo, params),
  )


def update_on_one_device(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
) -> Sequence[jax.Array]:
  """lookup_and_update.update with the parameters of the primitive."""
  num_rows = operands.table.shape[0]
  batch_size = operands.gradient.shape[0]
  sizes = lookup_and_update.layout_of(operands.coo, params)
  entries = lookup_and_update.read_entries(
      operands.coo, num_table_rows=num_rows, batch_size=batch_size, **sizes
  )
  gradient = operands.gradient.reshape(batch_size, -1)
  rows, grads = _sum_per_row(entries, gradient, num_rows)
  seed, row_ids = lookup_and_update.seed_and_row_ids(
      operands,
      rows,
      sizes["num_sc_per_device"],
      params.get("rounding_shards"),
  )
  rounding = None
  if rule.takes_rounding_seed:
    rounding = step_rows.Rounding(seed=seed, row_ids=row_ids)
  table, *slots = step_rows.step_rows(
      functools.partial(_step, rule, params),
      operands.table,
      operands.slots,
      rows,
      grads,
      operands.hyperparameters,
      rounding=rounding,
  )
  return table, *slots


def _sum_per_row(entries, gradient, num_table_rows):
  """The distinct rows i32[B], then -1, and the gradient f32[B, D] of each."""
  order = jnp.argsort(entries.row, stable=True)
  row, sample, gain, _ = (x[order] for x in entries)
  is_entry = row < num_table_rows
  is_first = is_entry.at[1:].set(is_entry[1:] & (row[1:] != row[:-1]))
  run = jnp.cumsum(is_first, dtype=jnp.int32) - 1
  rows = jnp.full_like(row, step_rows.NO_ROW)
  rows = rows.at[jnp.where(is_first, run, row.size)].set(row, mode="drop")
  grads = sum_runs.sum_runs(
      gradient,
      sample,
      gain,
      jnp.where(is_entry, run, runs.NO_RUN),
      num_runs=row.size,
  )
  return rows, grads


def _step(rule, params, gradient, row, slots, hyperparameters):
  """The step of a rule on one row, with what an update does around it."""
  new_row, new_slots = rule.step(
      gradient,
      row,
      slots,
      hyperparameters,
      **{name: params[name] for name in rule.static_params},
  )
  new_row = row_options.clamp(
      new_row, params.get("min_value"), params.get("max_value")
  )
  if not rule.skips_non_finite_gradients:
    return new_row, new_slots
  is_skipped = row_options.is_non_finite(gradient) > 0
  choose = functools.partial(jnp.where, is_skipped)
  return choose(row, new_row), tuple(map(choose, slots, new_slots))
