# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One step of an optimizer on distinct rows of a table, on SparseCores.

A worker takes chunks of rows: it gathers what table and slots have, runs the
step, and scatters the results to where it found them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_program
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_registers
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

NO_ROW = -1
# Columns that a step takes at once, if it needs no others.
_MOST_REGISTERS = 4


class Rounding(NamedTuple):
  """What random bits depend on."""

  seed: jax.Array  # u32[]
  row_ids: jax.Array  # integers[n]: what rows are called in the whole table


def step_rows(
    step: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]],
    table: jax.Array,
    slots: Sequence[jax.Array],
    rows: jax.Array,
    gradients: jax.Array,
    hyperparameters: Sequence[jax.Array],
    *,
    rounding: Rounding | None = None,
) -> tuple[jax.Array, ...]:
  """Steps the rows that are named, in place if table and slots are donated.

  Args:
    step: `step(gradient, row, slots, hyperparameters)`, as of
      update_rules.UpdateRule, with arrays of one row in float32.
    table: [R, D] of float32, bfloat16 or float16.
    slots: f32[R, D] each, or f32[R, 1].
    rows: i32[n], each row at most once; -1, no row, may be at the end only.
    gradients: f32[n, D], of each row.
    hyperparameters: f32[] or bool[] each.
    rounding: random bits for tables of 16 bits; None rounds to the nearest
      value.

  Returns:
    Table and slots. Rows that are not named keep their bits.

  Raises:
    NotTaken: if the step has an operation that does not run on registers, or
      rows are not in whole registers, or too large.
  """
  cores = subcores.of_chip()
  dim = table.shape[1]
  columns = row_registers.Columns(
      dim, cores.lanes, packing=4 // table.dtype.itemsize
  )
  numbers = [_as_float(x) for x in hyperparameters]
  if rounding is not None:
    numbers.append(_as_float(rounding.seed.astype(jnp.uint32)))
  program = _trace(step, table, slots, hyperparameters, rounding, dim)
  arrays = (table, *(_without_columns(x) for x in slots))
  words = dim + sum(
      subcores.words(x.shape[1] if x.ndim == 2 else 1, x.dtype) for x in arrays
  )
  chunk = cores.rows_of_chunk(words)
  size = layout.round_up(max(rows.size, 1), chunk)
  to_pad = size - rows.size
  rows = jnp.pad(rows, (0, to_pad), constant_values=NO_ROW)
  count = jnp.sum(rows >= 0, dtype=jnp.int32)
  lists = [jnp.full((cores.lanes,), count), rows]
  if rounding is not None:
    row_ids = jnp.pad(rounding.row_ids.astype(jnp.int32), (0, to_pad))
    lists.append(row_ids)
  spread = [jnp.full((cores.lanes,), x) for x in numbers]
  constants = [jnp.stack([*spread, jnp.zeros((cores.lanes,), jnp.float32)])]
  if program.constants:
    constants.append(jnp.stack(program.constants))
  num_operands = len(lists) + 1 + len(constants)
  width = dim
  if not program.needs_whole_rows:
    width = columns.width_of_windows(_MOST_REGISTERS)

  def body(*refs):
    operands, refs = refs[:num_operands], refs[num_operands:]
    tables, refs = refs[: len(arrays)], refs[len(arrays) :]
    count_v, row_v, *id_v = refs[: len(lists)]
    gradient_v, *constants_v = refs[len(lists) : num_operands]
    *buffers, semaphore = refs[num_operands:]
    count, row_list, *id_list = operands[: len(lists)]
    gradient, *constant_rows = operands[len(lists) :]

    pltpu.sync_copy(count, count_v)
    for source, target in zip(constant_rows, constants_v, strict=True):
      pltpu.sync_copy(source, target)
    num_rows = count_v[...][0]
    number_registers = [[constants_v[0][i]] for i in range(len(numbers))]

    def step_row(r, c):
      """Of a row of the chunk, the columns from c on."""
      window = columns.numbers(c, width)
      read = functools.partial(_read, columns, r, c, width)
      arguments = [read(gradient_v), *map(read, buffers), *number_registers]
      if id_v:
        arguments.append(read(id_v[0]))
      rows_of_constants = [
          columns.read(constants_v[1], i, c, width)
          for i in range(len(program.constants))
      ]
      results = program.run(arguments, window, rows_of_constants)
      for buffer, registers in zip(buffers, results, strict=True):
        _write(columns, r, c, width, buffer, registers)

    # Fewer turns than chunks: k * chunk is an int32.
    @pl.loop(0, -(-(size // chunk) // cores.num_workers))
    def _(i):
      k = i * cores.num_workers + cores.worker()

      @pl.when(k * chunk < num_rows)
      def _():
        here = pl.ds(pl.multiple_of(k * chunk, chunk), chunk)
        pltpu.sync_copy(row_list.at[here], row_v)
        named = plsc.Indices(row_v, ignored_value=NO_ROW)
        copies = [
            pltpu.async_copy(ref.at[named], buffer, semaphore)
            for ref, buffer in zip(tables, buffers, strict=True)
        ]
        pltpu.sync_copy(gradient.at[here], gradient_v)
        for source, target in zip(id_list, id_v, strict=True):
          pltpu.sync_copy(source.at[here], target)
        for copy in copies:
          copy.wait()

        _for_each_window(
            jnp.minimum(chunk, num_rows - k * chunk), dim, width, step_row
        )

        copies = [
            pltpu.async_copy(buffer, ref.at[named], semaphore)
            for ref, buffer in zip(tables, buffers, strict=True)
        ]
        for copy in copies:
          copy.wait()

  gradients = jnp.pad(gradients, ((0, to_pad), (0, 0)))
  results = cores.kernel(
      body,
      [
          pltpu.VMEM((cores.lanes,), jnp.int32),
          *[pltpu.VMEM((chunk,), jnp.int32) for _ in lists[1:]],
          pltpu.VMEM((chunk, dim), jnp.float32),
          *[pltpu.VMEM(x.shape, jnp.float32) for x in constants],
          *[pltpu.VMEM((chunk, *x.shape[1:]), x.dtype) for x in arrays],
          pltpu.SemaphoreType.DMA,
      ],
      in_place=tuple(range(num_operands, num_operands + len(arrays))),
      name="step_rows",
  )(*lists, gradients, *constants, *arrays)
  results = results if isinstance(results, tuple) else (results,)
  return tuple(
      x.reshape(old.shape)
      for x, old in zip(results, (table, *slots), strict=True)
  )


def _for_each_window(num_rows, dim, width, step_row) -> None:
  """step_row(r, c) for `num_rows` rows, and for every window of their columns.

  No turn of the loop reads what another writes: the compiler begins the next
  ones before one is done. One loop over rows and windows, as it does so in the
  innermost loop alone.
  """
  if width == dim:
    plsc.parallel_loop(0, num_rows)(lambda r: step_row(r, 0))
    return

  @plsc.parallel_loop(
      0, num_rows * (dim // width), carry=(jnp.int32(0), jnp.int32(0))
  )
  def _(_, place):
    r, c = place
    step_row(r, c)
    is_last = c + width == dim
    return jnp.where(is_last, r + 1, r), jnp.where(is_last, 0, c + width)


def _trace(step, table, slots, hyperparameters, rounding, dim):
  """The step, with rounding, as a program on registers."""
  row = jax.ShapeDtypeStruct((1, dim), jnp.float32)
  number = jax.ShapeDtypeStruct((), jnp.float32)
  of_slots = [jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype) for x in slots]

  def run(gradient, row, *rest):
    slots, rest = rest[: len(of_slots)], list(rest[len(of_slots) :])
    hyper = tuple(
        x != 0 if like.dtype == jnp.bool_ else x
        for like, x in zip(hyperparameters, rest)
    )
    new_row, new_slots = step(gradient, row, tuple(slots), hyper)
    bits = None
    if rounding is not None:
      seed, row_id = rest[len(hyper) :]
      seed = jax.lax.bitcast_convert_type(seed, jnp.uint32)
      bits = low_precision.random_bits(seed, row_id, dim)
    return low_precision.round_to(new_row, table.dtype, bits), *new_slots

  shapes = [row, row, *of_slots, *[number] * len(hyperparameters)]
  if rounding is not None:
    shapes += [number, jax.ShapeDtypeStruct((1,), jnp.int32)]
  return row_program.trace(run, shapes, dim)


def _as_float(x: jax.Array) -> jax.Array:
  """f32[]; the bits of integers."""
  x = jnp.asarray(x).reshape(())
  if x.dtype == jnp.uint32:
    return jax.lax.bitcast_convert_type(x, jnp.float32)
  return x.astype(jnp.float32)


def _without_columns(x: jax.Array) -> jax.Array:
  return x.reshape(-1) if x.shape[1] == 1 else x


def _read(columns, r, c, width, ref) -> list[Any]:
  """Registers of a row, or of the number that a row has."""
  if len(ref.shape) == 2:
    return columns.read(ref, r, c, width)
  place = jnp.full((columns.lanes,), r)
  return [plsc.load_gather(ref, [place])]


def _write(columns, r, c, width, ref, registers) -> None:
  if len(ref.shape) == 2:
    columns.write(ref, r, c, width, registers)
    return
  (register,) = registers
  lane = jax.lax.iota(jnp.int32, columns.lanes)
  place = jnp.full((columns.lanes,), r)
  plsc.store_scatter(ref, [place], register, mask=lane == 0)
