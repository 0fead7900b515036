# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The vector subcores of all SparseCores add one, in registers."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import running


def add_one(x, o):
  lanes = pltpu.get_tpu_info().sparse_core.num_lanes  # numbers of a register

  @pl.loop(0, x.shape[0])
  def _(row):
    @pl.loop(0, x.shape[1], step=lanes)
    def _(column):
      at = row, pl.ds(column, lanes)
      o[at] = x[at] + 1


def subcore_add(x, o):
  """On every subcore of every SparseCore: a pipeline over its rows."""
  num_cores, num_subcores = map(jax.lax.axis_size, ("core", "subcore"))
  core, subcore = map(jax.lax.axis_index, ("core", "subcore"))
  worker = core * num_subcores + subcore
  share = x.shape[0] // (num_cores * num_subcores)

  def slice_of(i, j):
    return pl.ds(pl.multiple_of(worker * share + i * 8, 8), 8), j

  spec = pl.BlockSpec((pl.BoundedSlice(8), 128), slice_of)
  pltpu.emit_pipeline(
      add_one,
      grid=(share // 8, x.shape[1] // 128),
      in_specs=[spec],
      out_specs=[spec],
  )(x, o)


def make(mesh, chip):
  x = np.arange(1024 * mesh.size * 128, dtype=np.int32).reshape(-1, 128)
  run = pallas.kernel(
      subcore_add,
      pallas.vector_subcore_mesh(chip=chip),
      [],
      running.ROWS,
      running.ROWS,
      mesh=mesh,
  )
  return run, x, x + 1


if __name__ == "__main__":
  running.main(make)
