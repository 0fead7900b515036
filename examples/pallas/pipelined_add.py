# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Each TensorCore adds one to its rows, block by block, while others move."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import running

_BLOCK = (8, 128)


def add_one(x, o):
  o[...] = x[...] + 1


def pipelined_add(x, o):
  """On every core: a pipeline over the blocks of its part of the rows."""
  core, num_cores = jax.lax.axis_index("core"), jax.lax.axis_size("core")
  share = x.shape[0] // num_cores
  rows, columns = _BLOCK

  def slice_of(i, j):
    # A slice in place of a number of blocks: the part begins anywhere.
    start = pl.multiple_of(core * share + i * rows, rows)
    return pl.ds(start, rows), j

  spec = pl.BlockSpec((pl.BoundedSlice(rows), columns), slice_of)
  pltpu.emit_pipeline(
      add_one,
      grid=(share // rows, x.shape[1] // columns),
      in_specs=[spec],
      out_specs=[spec],
  )(x, o)


def make(mesh, chip):
  x = np.arange(64 * mesh.size * 256, dtype=np.float32).reshape(-1, 256)
  run = pallas.kernel(
      pipelined_add,
      pallas.tensor_core_mesh(chip=chip),
      [],
      running.ROWS,
      running.ROWS,
      mesh=mesh,
  )
  return run, x, x + 1


if __name__ == "__main__":
  running.main(make)
