# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows of a table by their numbers, on SparseCores."""

from __future__ import annotations

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

NO_ROW = -1


def gather_rows(
    table: jax.Array, rows: jax.Array, *, buffers: int = 8
) -> jax.Array:
  """`table[rows]`, with the bits that are there.

  Args:
    table: [R, D], of any type whose rows are whole words of 32 bits.
    rows: i32[n], each below R, in any order; -1 is no row.
    buffers: how many copies are under way at once. One copy has to wait for
      the memory, so that few of them leave it idle.

  Returns:
    [n, D]. What is there for no row is undefined.

  Raises:
    NotTaken: if rows do not fit into the memory of a subcore.
  """
  cores = subcores.of_chip()
  dim = table.shape[1]
  words = subcores.words(dim, table.dtype)
  chunk = cores.rows_of_chunk(words * buffers)
  of_turn = chunk * buffers  # rows that a worker takes in one turn
  num_turns = -(-rows.size // of_turn)
  excess = num_turns * of_turn - rows.size
  padded = jnp.pad(rows, (0, excess), constant_values=NO_ROW)

  def body(table, rows, out, row_v, place_v, buffer, semaphores):
    @pl.loop(0, -(-num_turns // cores.num_workers))
    def _(i):
      turn = i * cores.num_workers + cores.worker()

      @pl.when(turn < num_turns)
      def _():
        first = pl.multiple_of(turn * of_turn, of_turn)
        pltpu.sync_copy(rows.at[pl.ds(first, of_turn)], row_v)
        # The last turn has places that the result does not have.
        for b in range(buffers):

          @pl.loop(0, chunk, step=cores.lanes)
          def _(r, b=b):
            place = first + b * chunk + r + jax.lax.iota(jnp.int32, cores.lanes)
            place = jnp.where(place < rows.shape[0] - excess, place, NO_ROW)
            place_v[b, pl.ds(r, cores.lanes)] = place

        # A copy out has the semaphore of the copy in before it.
        copies = []
        for b in range(buffers):
          wanted = plsc.Indices(
              row_v.at[pl.ds(b * chunk, chunk)], ignored_value=NO_ROW
          )
          copies.append(
              pltpu.async_copy(table.at[wanted], buffer.at[b], semaphores.at[b])
          )
        copies_out = []
        for b, copy in enumerate(copies):
          copy.wait()
          copies_out.append(
              pltpu.async_copy(
                  buffer.at[b],
                  out.at[plsc.Indices(place_v.at[b], ignored_value=NO_ROW)],
                  semaphores.at[b],
              )
          )
        for copy in copies_out:
          copy.wait()

  return cores.kernel(
      body,
      [
          pltpu.VMEM((of_turn,), jnp.int32),
          pltpu.VMEM((buffers, chunk), jnp.int32),
          pltpu.VMEM((buffers, chunk, dim), table.dtype),
          pltpu.SemaphoreType.DMA((buffers,)),
      ],
      out_type=jax.ShapeDtypeStruct((rows.size, dim), table.dtype),
      name="gather_rows",
  )(table, padded)
