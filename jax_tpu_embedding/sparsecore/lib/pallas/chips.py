# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The TPU chips that kernels are written for, and programs for them on CPUs."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu

MeshLike = jax.sharding.Mesh | jax.sharding.AbstractMesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """A generation of TPUs, as JAX sees one device of it."""

  name: str
  device_kinds: tuple[str, ...]  # JAX's names; the first is what it reports
  num_tensor_cores: int  # of a device
  topology: str  # a small slice, for compiling; see lib/core/tpu/topology.py
  # Semaphores of a vector subcore that libtpu 0.0.42 leaves to a kernel: with
  # one more it does not compile. No page has the number.
  max_semaphores_of_subcore: int = 0

  @property
  def facts(self) -> Any:
    """pltpu.TpuInfo: sizes of memories, lanes, and `sparse_core` or None."""
    with tracing_for(self.name):
      return pltpu.get_tpu_info()


CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v5p",
            device_kinds=("TPU v5", "TPU v5p"),
            num_tensor_cores=2,
            topology="v5p:2x2x1",
            max_semaphores_of_subcore=27,
        ),
        Chip(
            name="v6e",
            device_kinds=("TPU v6 lite", "TPU v6e"),
            num_tensor_cores=1,
            topology="v6e:2x2",
            max_semaphores_of_subcore=27,
        ),
        Chip(
            name="7x",
            device_kinds=("TPU7x",),
            num_tensor_cores=1,
            topology="tpu7x:2x2x1",
            max_semaphores_of_subcore=59,
        ),
        Chip(
            name="v5e",
            device_kinds=("TPU v5 lite", "TPU v5e"),
            num_tensor_cores=1,
            topology="v5e:2x2",
        ),
        Chip(
            name="v4",
            device_kinds=("TPU v4",),
            num_tensor_cores=2,
            topology="v4:2x2x1",
        ),
    )
}

# What a CPU stands for where nothing else is said: the chip of JAX's guide.
DEFAULT_CHIP = "v5p"


def find_chip(chip: str | MeshLike | None = None) -> Chip:
  """The chip of a name, a mesh of TPUs, or where the program runs.

  Args:
    chip: a name ("v5p", "v6e", "7x", "v5e", "v4"), or a mesh: of TPUs, or from
      on_chip. None is the current mesh, else the first device, where that is a
      TPU; else, as on a CPU, "v5p".

  Raises:
    ValueError: if the chip is not one of CHIPS.
  """
  if isinstance(chip, str):
    if chip not in CHIPS:
      raise ValueError(
          f"There is no chip {chip!r}. Use one of: {', '.join(CHIPS)}."
      )
    return CHIPS[chip]
  kind = None
  if chip is not None:
    kind = _tpu_kind_of_mesh(chip)
    if kind is None:
      return CHIPS[DEFAULT_CHIP]
  else:
    kind = _tpu_kind_of_mesh(jax.sharding.get_abstract_mesh())
    if kind is None and jax.default_backend() == "tpu":
      kind = jax.devices()[0].device_kind
    if kind is None:
      return CHIPS[DEFAULT_CHIP]
  for known in CHIPS.values():
    if kind in known.device_kinds:
      return known
  raise ValueError(
      f"Devices are {kind!r}, which no chip of lib/pallas/chips.py is:"
      f" {', '.join(CHIPS)}."
  )


def on_chip(
    mesh: MeshLike, chip: str | None = None
) -> jax.sharding.AbstractMesh:
  """`mesh` with devices that say they are `chip` while a program is traced.

  Arrays stay on the devices of `mesh`, which may be CPUs; it is for the `mesh`
  of jax.shard_map, or of `kernel`, when what runs inside is emulated.

  Args:
    mesh: of any devices.
    chip: as of find_chip.
  """
  return _abstract_mesh(
      mesh.axis_sizes, mesh.axis_names, find_chip(chip or mesh), mesh.axis_types
  )


def tracing_for(
    chip: str | None = None,
) -> contextlib.AbstractContextManager[Any]:
  """A context in which JAX, asked for facts of the device, has those of a chip.

  Args:
    chip: as of find_chip.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
  # Within jax.shard_map it must be the mesh of that.
  return jax.sharding.use_abstract_mesh(on_chip(mesh, chip))


def _abstract_mesh(sizes, names, chip, axis_types):
  return jax.sharding.AbstractMesh(
      sizes,
      names,
      axis_types=axis_types,
      abstract_device=jax.sharding.AbstractDevice(
          device_kind=chip.device_kinds[0],
          num_cores=chip.num_tensor_cores,
          platform="tpu",
      ),
  )


def _tpu_kind_of_mesh(mesh: MeshLike) -> str | None:
  """The device kind, if it is a mesh of TPUs."""
  if isinstance(mesh, jax.sharding.Mesh):
    device = mesh.devices.flat[0]
  else:
    device = mesh.abstract_device
  if device is None or getattr(device, "platform", "tpu") != "tpu":
    return None
  kind = device.device_kind
  return kind if kind.startswith("TPU") else None
