# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The same swap with pl.core_map and pl.run_scoped, which kernel() hides."""

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import running
import swap


def make(mesh, chip):
  x = np.arange(8 * mesh.size * 256, dtype=np.float32).reshape(-1, 256)
  cores = pallas.tensor_core_mesh(chip=chip)
  width = 256 // cores.shape["core"]

  def on_device(x):
    x_ref = jax.new_ref(x)
    o_ref = jax.new_ref(jax.lax.empty(x.shape, x.dtype))

    @pl.core_map(cores, compiler_params=pltpu.CompilerParams(collective_id=0))
    def on_core():
      half = pltpu.VMEM((8, width), jnp.float32)
      pl.run_scoped(
          functools.partial(swap.swap_and_double, x_ref, o_ref),
          half,
          half,
          pltpu.SemaphoreType.DMA,
          pltpu.SemaphoreType.DMA,
      )

    return o_ref[...]

  # Devices that are TPUs, here or of a slice by its name, need no engine.
  if mesh.devices.flat[0].platform != "tpu":
    on_device, mesh = pallas.emulate(on_device), pallas.on_chip(mesh, chip)
  run = jax.jit(
      jax.shard_map(
          on_device,
          mesh=mesh,
          in_specs=running.ROWS,
          out_specs=running.ROWS,
          check_vma=False,
      )
  )
  return run, x, 2 * np.roll(x, width, axis=1)


if __name__ == "__main__":
  running.main(make)
