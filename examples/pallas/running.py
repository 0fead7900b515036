# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs an example on CPU devices, or compiles it for a slice of TPUs."""

from __future__ import annotations

from collections.abc import Callable
import os
import pathlib
import sys
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology
import numpy as np

_COMPILE_FOR = flags.DEFINE_multi_enum(
    "compile_for",
    [],
    ["v5p", "v6e", "7x", "v5e", "v4"],
    "Compile for a small slice of this chip, which needs libtpu and no TPU. May"
    " be given several times.",
)

# Sharded over the devices along rows.
ROWS = jax.sharding.PartitionSpec("device")


def main(
    make: Callable[..., tuple[Callable[..., Any], np.ndarray, np.ndarray]],
) -> None:
  """Runs the program that make(mesh, chip) returns, on the mesh, and checks it.

  Args:
    make: a function of a mesh of devices, and of the name of the chip they are
      or stand for, that returns a function, its operand, and its result.
  """
  app.run(lambda _: _main(make))


def _main(make):
  name = pathlib.Path(sys.argv[0]).stem
  if not _COMPILE_FOR.value:
    mesh = jax.make_mesh((jax.device_count(),), ("device",))
    run, x, expected = make(mesh, "v5p")
    x = jax.device_put(x, jax.sharding.NamedSharding(mesh, ROWS))
    np.testing.assert_array_equal(run(x), expected)
    print(f"{name} is right on {mesh.size} {jax.default_backend()} devices")
  for chip in map(pallas.find_chip, _COMPILE_FOR.value):
    _compile(name, make, chip)


def _compile(name, make, chip):
  mesh = topology.topology_mesh(chip.topology, ("device",))
  run, x, _ = make(mesh, chip.name)
  shape = jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=jax.sharding.NamedSharding(mesh, ROWS)
  )
  memory = run.lower(shape).compile().memory_analysis()
  print(
      f"{name} is compiled for {chip.topology}, not run; temporary bytes of a device:"
      f" {memory.temp_size_in_bytes}"
  )


# Four devices, unless the environment says how many; before JAX looks.
if "JAX_NUM_CPU_DEVICES" not in os.environ:
  jax.config.update("jax_num_cpu_devices", 4)
