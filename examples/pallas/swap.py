# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The TensorCores of a device swap their halves of an array."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
import numpy as np
import running


def swap_and_double(x, o, mine, other, send_sem, receive_sem):
  """On every core; x and o are of the device, the rest is the core's own."""
  core, num_cores = jax.lax.axis_index("core"), jax.lax.axis_size("core")
  num_devices = jax.lax.axis_size("device")
  width = x.shape[1] // num_cores
  columns = pl.ds(core * width, width)

  # The other core's semaphores must exist before it is sent anything.
  ready = pltpu.get_barrier_semaphore()
  for device in range(num_devices):
    for i in range(num_cores):
      pl.semaphore_signal(ready, 1, device_id={"device": device, "core": i})
  pl.semaphore_wait(ready, num_devices * num_cores)

  pltpu.sync_copy(x.at[:, columns], mine)
  to_next = pltpu.make_async_remote_copy(
      mine,
      other,
      send_sem,
      receive_sem,
      device_id={"core": (core + 1) % num_cores},
  )
  to_next.start()
  to_next.wait()
  mine[...] = other[...] * 2
  pltpu.sync_copy(mine, o.at[:, columns])


def make(mesh, chip):
  x = np.arange(8 * mesh.size * 256, dtype=np.float32).reshape(-1, 256)
  cores = pallas.tensor_core_mesh(chip=chip)
  width = 256 // cores.shape["core"]
  half = pltpu.VMEM((8, width), jnp.float32)
  run = pallas.kernel(
      swap_and_double,
      cores,
      [half, half, pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
      running.ROWS,
      running.ROWS,
      compiler_params=pltpu.CompilerParams(collective_id=0),
      mesh=mesh,
  )
  return run, x, 2 * np.roll(x, width, axis=1)


if __name__ == "__main__":
  running.main(make)
