# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Sums of weighted rows over runs of entries, on SparseCores.

A lookup is one: runs are samples, and rows those of a table. So are the gradients
of rows: runs are rows of a table, and rows those of the gradient.

A worker gathers the rows of a chunk of entries, and replaces each by the sum of
its run so far. What the last entry of each run then has is scattered to the
result. There is no branch for an entry, and no two workers write one row.
"""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_program
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_registers
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import runs
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

# Registers of running sums: more of them do not stay in registers.
_MOST_REGISTERS = 16
# Of the numbers that say what a worker does.
_ORDERS = 16


def sum_runs(
    source: jax.Array,
    index: jax.Array,
    gain: jax.Array,
    run: jax.Array,
    *,
    num_runs: int,
    of_each_row: Callable[[jax.Array], jax.Array] | None = None,
    int8_columns: int | None = None,
) -> jax.Array:
  """`result[r]` is the sum of `gain * source[index]` over entries of run r.

  Sums are in float32, in the order of the entries.

  Args:
    source: [R, D] of float32, bfloat16 or float16; or with `int8_columns`
      i32[R, W], rows of quantized_rows.py.
    index: i32[E], each below R.
    gain: f32[E].
    run: i32[E], ascending; -1 at the end, for cells that are no entries and may
      have anything else.
    num_runs: more than any run.
    of_each_row: what is taken of a row in its place: a function of f32[1, D],
      column by column.
    int8_columns: D, of rows that are codes.

  Returns:
    f32[num_runs, D], zero for runs without entries.

  Raises:
    NotTaken: if rows are not in whole registers, or too large.
  """
  cores = subcores.of_chip()
  dim = int8_columns or source.shape[1]
  packing = 4 if int8_columns else 4 // source.dtype.itemsize
  columns = row_registers.Columns(dim, cores.lanes, packing)
  read = columns.read_int8 if int8_columns else columns.read
  program = _program(of_each_row, dim)
  width = columns.width_of_windows(_MOST_REGISTERS)
  words = 2 * subcores.words(source.shape[1], source.dtype) + dim
  chunk = cores.rows_of_chunk(words)
  size = layout.round_up(max(index.size, 1), chunk * cores.num_workers)
  pad = functools.partial(jnp.pad, pad_width=(0, size - index.size))
  run = pad(run, constant_values=runs.NO_RUN)
  shares = runs.share(run, cores.num_workers, chunk)
  index = jnp.where(run >= 0, pad(index), 0)
  orders = jnp.zeros((cores.num_workers, _ORDERS), jnp.int32)
  orders = orders.at[:, 0].set(shares.num_chunks)
  orders = orders.at[:, 1].set(shares.end_of_part)

  def body(
      source,
      index,
      gain,
      first,
      target,
      orders,
      out,
      parts,
      order_v,
      index_v,
      gain_v,
      first_v,
      target_v,
      rows,
      sums,
      last,
      semaphores,
  ):
    worker = cores.worker()
    pltpu.sync_copy(orders.at[worker], order_v)
    order = order_v[pl.ds(0, cores.lanes)]
    num_chunks, end_of_part = order[0], order[1]
    for c in range(0, dim, cores.lanes):
      last[pl.ds(c, cores.lanes)] = jnp.zeros((cores.lanes,), jnp.float32)

    def cells(k):
      return pl.ds(
          pl.multiple_of((worker * num_chunks + k) * chunk, chunk), chunk
      )

    def fetch(b):
      """The copy of the rows of a chunk, whose numbers are there."""
      return pltpu.make_async_copy(
          source.at[index_v.at[b]], rows.at[b], semaphores.at[b]
      )

    def start(k, b):
      pltpu.sync_copy(index.at[cells(k)], index_v.at[b])
      fetch(b).start()

    @pl.when(num_chunks > 0)
    def _():
      start(0, 0)

    @pl.loop(0, num_chunks)
    def _(k):
      b = jax.lax.rem(k, 2)

      @pl.when(k + 1 < num_chunks)
      def _():
        start(k + 1, 1 - b)

      pltpu.sync_copy(gain.at[cells(k)], gain_v)
      pltpu.sync_copy(first.at[cells(k)], first_v)
      pltpu.sync_copy(target.at[cells(k)], target_v)
      fetch(b).wait()

      @pl.loop(0, dim, step=width)
      def _(c):
        _sum_chunk(
            program,
            columns,
            read,
            c,
            width,
            rows.at[b],
            gain_v,
            first_v,
            sums,
            last,
        )

      pltpu.sync_copy(
          sums, out.at[plsc.Indices(target_v, ignored_value=runs.NO_RUN)]
      )
      place = end_of_part - k * chunk

      @pl.when((place >= 0) & (place < chunk))
      def _():
        pltpu.sync_copy(sums.at[place], parts.at[worker])

  num_registers = len(columns.numbers(0, dim))
  sums, parts = cores.kernel(
      body,
      [
          pltpu.VMEM((_ORDERS,), jnp.int32),
          pltpu.VMEM((2, chunk), jnp.int32),
          pltpu.VMEM((chunk,), jnp.float32),
          pltpu.VMEM((chunk,), jnp.int32),
          pltpu.VMEM((chunk,), jnp.int32),
          pltpu.VMEM((2, chunk, source.shape[1]), source.dtype),
          pltpu.VMEM((chunk, dim), jnp.float32),
          pltpu.VMEM((num_registers * cores.lanes,), jnp.float32),
          pltpu.SemaphoreType.DMA((2,)),
      ],
      in_place=(6, 7),
      name="sum_runs",
  )(
      source,
      index,
      pad(gain),
      shares.is_first,
      shares.target,
      orders,
      jnp.zeros((num_runs, dim), jnp.float32),
      jnp.zeros((cores.num_workers, dim), jnp.float32),
  )
  return _add_parts(sums, parts, shares.run_of_part)


def _add_parts(sums, parts, run_of_part):
  """Adds what workers have made of runs that others began, in their order."""

  def add(worker, sums):
    run = run_of_part[worker]
    here = jnp.maximum(run, 0)
    row = jax.lax.dynamic_slice_in_dim(sums, here, 1)
    part = jnp.where(run >= 0, parts[worker], 0)
    return jax.lax.dynamic_update_slice_in_dim(sums, row + part, here, 0)

  return jax.lax.fori_loop(0, run_of_part.size, add, sums)


def _sum_chunk(
    program, columns, read, c, width, rows, gain_v, first_v, sums_v, last
):
  """Running sums of the columns of a window; `last` is that before the chunk."""
  lanes = columns.lanes
  numbers = columns.numbers(c, width)
  # The registers of a window are one after another in `last`.
  places = [pl.ds(c + i * lanes, lanes) for i in range(len(numbers))]

  def entries(e, sums):
    first, gain = first_v[pl.ds(e, lanes)], gain_v[pl.ds(e, lanes)]
    for j in range(lanes):
      row = read(rows, e + j, c, width)
      if program is not None:
        (row,) = program.run([row], numbers)
      zero = jnp.zeros((lanes,), jnp.float32)
      sums = [
          jnp.where(first[j] == 0, s, zero) + gain[j] * x
          for s, x in zip(sums, row, strict=True)
      ]
      columns.write(sums_v, e + j, c, width, sums)
    return sums

  sums = pl.loop(
      0, rows.shape[0], step=lanes, init_carry=[last[p] for p in places]
  )(entries)
  for place, s in zip(places, sums, strict=True):
    last[place] = s


def _program(of_each_row, dim):
  if of_each_row is None:
    return None
  row = jax.ShapeDtypeStruct((1, dim), jnp.float32)
  program = row_program.trace(lambda x: [of_each_row(x)], [row], dim)
  if program.needs_whole_rows or program.constants:
    raise ValueError(
        "of_each_row must work column by column, without constant rows."
    )
  return program
