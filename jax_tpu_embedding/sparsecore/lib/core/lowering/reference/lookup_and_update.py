# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update in plain jnp: what is correct, on any platform.

Every platform without a faster rule runs these functions; every faster rule is
tested against them. Work and memory are in proportion to the cells of the COO
buffers, never to the table. Only cells that the row pointers declare to be
entries are used; all others may hold anything.

jnp cannot raise inside a compiled program. What is out of range, which no
converter writes, is not read: in the lookup the row is NaN, and else the entry
is left out. That it shows is for those to see to who call: check_buffers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import partitions
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import step_rows

# Terms of a row from one source SparseCore that are added from left to right; of
# more, the sums of such blocks are added. As kTermsPerBlock of
# cc/kernels/update/sum_rows.h.
BLOCK_SIZE = 512

# As jax.ops.segment_sum, with the arguments that it is called with here.
SegmentSum = Callable[..., jax.Array]


class Entries(NamedTuple):
  """The cells of one device's COO buffers, with absolute positions."""

  row: jax.Array  # i32[B], in the device's table; its row count if not valid
  sample: jax.Array  # i32[B], in the device's batch; its size if not valid
  gain: jax.Array  # f32[B]
  source: jax.Array  # i32[B], the SparseCore that owns the sample


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
    segment_sum: SegmentSum = jax.ops.segment_sum,
) -> jax.Array:
  """Sums gain * table row over the entries of each sample.

  Args:
    row_pointers: i32[R].
    embedding_ids: i32[B].
    sample_ids: i32[B].
    gains: f32[B].
    num_minibatches: i32[]; used with `enable_minibatching` only.
    table: [rows, D] of one of low_precision.TABLE_DTYPES; or i32[rows, W], see
      int8_columns.
    device_batch_size: samples of the device.
    num_sc_per_device: S; divides rows and samples.
    quantization_config: (min, max, buckets) that rows are rounded to, if any.
    enable_minibatching: which layout the buffers have.
    int8_columns: D, if rows are those of quantized_rows.py.
    adds_in_blocks: whether the terms of a sample, which are neighbours, are
      added as those of a row are in an update.
    segment_sum: adds the terms of each sample.

  Returns:
    f32[device_batch_size, D]. A sample without entries is zero.

  Source: docs/reference/primitives.md, "Lookup".
  """
  entries = read_entries(
      (row_pointers, embedding_ids, sample_ids, gains, num_minibatches),
      num_table_rows=table.shape[0],
      batch_size=device_batch_size,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  if int8_columns is None:
    rows = table.at[entries.row].get(mode="fill", fill_value=jnp.nan)
    rows = rows.astype(jnp.float32)
  else:
    words = table.at[entries.row].get(mode="clip")
    rows = quantized_rows.decode(words, int8_columns)
    is_row = entries.row < table.shape[0]
    rows = jnp.where(is_row[:, None], rows, jnp.nan)
  if quantization_config is not None:
    rows = quantize(rows, *quantization_config)
  terms, sample = entries.gain[:, None] * rows, entries.sample
  if adds_in_blocks:
    (sample,), terms = _sum_blocks(
        (sample,), terms, device_batch_size, segment_sum
    )
  return segment_sum(terms, sample, num_segments=device_batch_size)


def update(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    *,
    num_sc_per_device: int,
    min_value: float | None = None,
    max_value: float | None = None,
    enable_minibatching: bool = False,
    rounding_shards: tuple[int, int] | None = None,
    segment_sum: SegmentSum = jax.ops.segment_sum,
    **static_params: object,
) -> tuple[jax.Array, ...]:
  """Steps `rule` once for each row that has an entry, with the summed gradient.

  Args:
    rule: the optimizer, with its options.
    operands: the COO buffers as in `lookup`, table [rows, D] of one of
      low_precision.TABLE_DTYPES, slots f32[rows, D] (row_slots: f32[rows, 1]),
      gradient f32[samples, D], hyperparameters f32[], and the rounding_seed
      u32[] if the rule takes one. Table, slots and gradient of one column may
      have one dimension.
    num_sc_per_device: S; divides rows and samples.
    min_value: lower bound of the new rows of the table, if any.
    max_value: upper bound, if any.
    enable_minibatching: which layout the buffers have.
    rounding_shards: the shards of a table that was cut into several of which
      this is one, and those of this one. The rounding_seed then is u32[2]: the
      seed, and the number of the first of these shards.
    segment_sum: adds the terms of each row.
    **static_params: those of the rule.

  Returns:
    Table and slots. Rows without an entry are as they were.

  Source: docs/reference/primitives.md, "Update".
  """
  num_rows = operands.table.shape[0]
  batch_size = operands.gradient.shape[0]
  entries = read_entries(
      operands.coo,
      num_table_rows=num_rows,
      batch_size=batch_size,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  gradient = operands.gradient.reshape(batch_size, -1)
  rows, grads = _sum_per_row(entries, gradient, num_rows, segment_sum)
  seed, row_ids = seed_and_row_ids(
      operands, rows, num_sc_per_device, rounding_shards
  )
  return step_rows.step_rows(
      rule,
      operands._replace(rounding_seed=seed),
      rows,
      grads,
      row_ids=row_ids,
      min_value=min_value,
      max_value=max_value,
      **static_params,
  )


def seed_and_row_ids(
    operands: update_rules.UpdateOperands,
    rows: jax.Array,
    num_sc_per_device: int,
    rounding_shards: tuple[int, int] | None,
) -> tuple[jax.Array | None, jax.Array]:
  """What random bits depend on: the seed, and the rows in the whole table.

  Args:
    operands: of the update.
    rows: i32[n], in the device's table.
    num_sc_per_device: S.
    rounding_shards: as of `update`.
  """
  seed, first_shard = operands.rounding_seed, 0
  if rounding_shards is None:  # this is the whole table
    rounding_shards = (num_sc_per_device, num_sc_per_device)
  else:
    seed, first_shard = operands.rounding_seed
  num_shards, num_local_shards = rounding_shards
  rows_per_shard = operands.table.shape[0] // num_local_shards
  shard, local_row = jnp.divmod(rows, rows_per_shard)
  return seed, local_row * num_shards + first_shard + shard


def lookup_on_one_device(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    segment_sum: SegmentSum = jax.ops.segment_sum,
) -> jax.Array:
  """`lookup` with the parameters of the primitive.

  Limits are not among what it needs: there are no buffers that they could size.
  """
  return lookup(
      *coo,
      table,
      device_batch_size=params["device_batch_size"],
      quantization_config=params.get("quantization_config"),
      int8_columns=params.get("int8_columns"),
      segment_sum=segment_sum,
      **layout_of(coo, params),
  )


def update_on_one_device(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    segment_sum: SegmentSum = jax.ops.segment_sum,
) -> tuple[jax.Array, ...]:
  """`update` with the parameters of the primitive; `rule` has its options."""
  return update(
      rule,
      operands,
      min_value=params.get("min_value"),
      max_value=params.get("max_value"),
      rounding_shards=params.get("rounding_shards"),
      segment_sum=segment_sum,
      **layout_of(operands.coo, params),
      **{name: params[name] for name in rule.static_params},
  )


def layout_of(
    coo: Sequence[jax.Array], params: dict[str, Any]
) -> dict[str, Any]:
  """How the buffers of one device are laid out."""
  enable_minibatching = params.get("enable_minibatching", False)
  return dict(
      num_sc_per_device=layout.num_sc_per_device_from_row_pointers(
          coo[0].size, 1, enable_minibatching
      ),
      enable_minibatching=enable_minibatching,
  )


def read_entries(
    coo: tuple[jax.Array, ...],
    *,
    num_table_rows: int,
    batch_size: int,
    num_sc_per_device: int,
    enable_minibatching: bool,
) -> Entries:
  """The entries, each beside the cells that are none."""
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches = coo
  rows_per_shard = num_table_rows // num_sc_per_device
  batch_size_per_sc = batch_size // num_sc_per_device
  is_entry, _, source, target = partitions.read_partitions(
      row_pointers,
      num_minibatches,
      num_cells=embedding_ids.shape[0],
      num_sources=num_sc_per_device,
      num_targets=num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  has_sample = is_entry & (0 <= sample_ids) & (sample_ids < batch_size_per_sc)
  has_row = has_sample & (0 <= embedding_ids) & (embedding_ids < rows_per_shard)
  return Entries(
      row=jnp.where(
          has_row, embedding_ids + target * rows_per_shard, num_table_rows
      ),
      sample=jnp.where(
          has_sample, sample_ids + source * batch_size_per_sc, batch_size
      ),
      gain=jnp.asarray(gains),
      source=source,
  )


def _sum_per_row(
    entries: Entries,
    gradient: jax.Array,
    num_table_rows: int,
    segment_sum: SegmentSum,
) -> tuple[jax.Array, jax.Array]:
  """The distinct rows i32[B], ascending, and the gradient f32[B, D] of each.

  There are as many results as cells; the surplus has row `num_table_rows`.
  Terms are summed per source SparseCore first, in blocks, each in the order of
  the buffers; then blocks, and then sources.
  """
  order = jnp.argsort(entries.row, stable=True)
  row, sample, gain, source = (x[order] for x in entries)
  terms = gain[:, None] * gradient.at[sample].get(mode="fill", fill_value=0)
  keys, sums = _sum_blocks((row, source), terms, num_table_rows, segment_sum)
  (row, _), sums = _sum_runs(keys, sums, num_table_rows, segment_sum)
  (row,), sums = _sum_runs((row,), sums, num_table_rows, segment_sum)
  return row, sums


def _sum_blocks(
    keys: tuple[jax.Array, ...],
    terms: jax.Array,
    surplus: int,
    segment_sum: SegmentSum,
) -> tuple[tuple[jax.Array, ...], jax.Array]:
  """Sums each BLOCK_SIZE `terms` of a run of equal keys, and what is left of it.

  Returns:
    The keys of blocks, and their sums, as of _sum_runs. Or keys and terms as
    they are, if all runs are short.
  """
  if terms.shape[0] <= BLOCK_SIZE:
    return keys, terms
  place = lax.iota(jnp.int32, terms.shape[0])
  rank = place - lax.cummax(jnp.where(_is_start(keys), place, 0))
  block = rank // BLOCK_SIZE

  def sum_blocks():
    (*of_blocks, _), sums = _sum_runs(
        (*keys, block), terms, surplus, segment_sum
    )
    return tuple(of_blocks), sums

  # Cells that are no entries are long runs of the surplus.
  has_blocks = jnp.any((block > 0) & (keys[0] < surplus))
  return lax.cond(has_blocks, sum_blocks, lambda: (keys, terms))


def _sum_runs(
    keys: tuple[jax.Array, ...],
    terms: jax.Array,
    surplus: int,
    segment_sum: SegmentSum,
) -> tuple[tuple[jax.Array, ...], jax.Array]:
  """Sums `terms` over runs of equal keys; keys and sum of each run.

  Of the results, as many as there are terms, the surplus has `surplus` as first
  key, and sum 0.
  """
  run = jnp.cumsum(_is_start(keys)) - 1
  sums = segment_sum(terms, run, num_segments=run.size, indices_are_sorted=True)
  of_runs = (jnp.full_like(key, surplus).at[run].set(key) for key in keys)
  return tuple(of_runs), sums


def _is_start(keys: tuple[jax.Array, ...]) -> jax.Array:
  """bool[n], where other keys begin."""
  is_start = jnp.zeros(keys[0].shape, bool).at[:1].set(True)
  for key in keys:
    is_start = is_start.at[1:].set(is_start[1:] | (key[1:] != key[:-1]))
  return is_start


def quantize(
    rows: jax.Array, min_value: float, max_value: float, num_buckets: int
) -> jax.Array:
  """`rows` rounded to one of `num_buckets` values from min to max."""
  span = jnp.float32(max_value - min_value)
  steps = jnp.float32(num_buckets - 1)
  values = jnp.clip(rows, min_value, max_value) - jnp.float32(min_value)
  bucket = jnp.floor(values * (steps / span) + jnp.float32(0.5))
  return bucket * (span / steps) + jnp.float32(min_value)
