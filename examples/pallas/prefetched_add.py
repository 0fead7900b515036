# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A pipeline over columns that a number in scalar memory chooses."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import pipelined_add
import running

_FIRST_COLUMN, _NUM_COLUMNS = 256, 512


def prefetched_add(xs, o, first_column):
  """On every core; first_column is scalar memory, which indices can read."""
  x, first_column_hbm = xs
  pltpu.sync_copy(first_column_hbm, first_column)
  core, num_cores = jax.lax.axis_index("core"), jax.lax.axis_size("core")
  share = x.shape[0] // num_cores

  def rows(i):
    return pl.ds(pl.multiple_of(core * share + i * 8, 8), 8)

  def columns(j):
    return pl.ds(pl.multiple_of(first_column[0] + j * 128, 128), 128)

  pltpu.emit_pipeline(
      pipelined_add.add_one,
      grid=(share // 8, _NUM_COLUMNS // 128),
      in_specs=[
          pl.BlockSpec(
              (pl.BoundedSlice(8), pl.BoundedSlice(128)),
              lambda i, j: (rows(i), columns(j)),
          )
      ],
      out_specs=[
          pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i, j: (rows(i), j))
      ],
  )(x, o)


def make(mesh, chip):
  x = np.arange(16 * mesh.size * 1024, dtype=np.float32).reshape(-1, 1024)
  first = np.array([_FIRST_COLUMN], np.int32)  # on every device
  kernel = pallas.kernel(
      prefetched_add,
      pallas.tensor_core_mesh(chip=chip),
      [pltpu.SMEM((1,), jnp.int32)],
      in_specs=((running.ROWS, jax.sharding.PartitionSpec()),),
      out_specs=running.ROWS,
      out_shape=(16, _NUM_COLUMNS),
      mesh=mesh,
  )
  run = jax.jit(lambda x: kernel((x, jnp.asarray(first))))
  chosen = slice(_FIRST_COLUMN, _FIRST_COLUMN + _NUM_COLUMNS)
  return run, x, x[:, chosen] + 1


if __name__ == "__main__":
  running.main(make)
