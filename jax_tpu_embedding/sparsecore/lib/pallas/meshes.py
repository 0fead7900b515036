# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Meshes of the cores of one device, for kernels; no TPU is needed.

They are JAX's own, and good for pl.core_map and pl.kernel too. `.shape` maps
the names of their axes to sizes.
"""

from __future__ import annotations

from typing import Any

from jax.experimental.pallas import tpu_sc as plsc
from jax_tpu_embedding.sparsecore.lib.pallas import chips
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions


def tensor_core_mesh(
    axis: str = "core", chip: str | chips.MeshLike | None = None
) -> Any:
  """The TensorCores of a device.

  Args:
    axis: name of the axis along which they are.
    chip: as of chips.find_chip.
  """
  return jax_versions.tensor_core_mesh(
      axis, chips.find_chip(chip).num_tensor_cores
  )


def vector_subcore_mesh(
    core_axis: str = "core",
    subcore_axis: str = "subcore",
    chip: str | chips.MeshLike | None = None,
) -> Any:
  """The vector subcores of the SparseCores of a device.

  Args:
    core_axis: name of the axis of SparseCores.
    subcore_axis: name of the axis of the subcores of a SparseCore.
    chip: as of chips.find_chip.

  Raises:
    ValueError: if the chip has no SparseCores.
  """
  with _facts_of(chip):
    return plsc.VectorSubcoreMesh(
        core_axis_name=core_axis, subcore_axis_name=subcore_axis
    )


def scalar_subcore_mesh(
    axis: str = "core", chip: str | chips.MeshLike | None = None
) -> Any:
  """The scalar subcores of the SparseCores of a device, one each.

  Args:
    axis: name of the axis of SparseCores.
    chip: as of chips.find_chip.

  Raises:
    ValueError: if the chip has no SparseCores.
  """
  with _facts_of(chip):
    return plsc.ScalarSubcoreMesh(axis_name=axis)


def _facts_of(chip):
  """A context in which JAX knows the SparseCores of a chip."""
  chip = chips.find_chip(chip)
  if chip.facts.sparse_core is None:
    raise ValueError(
        f"Chip {chip.name!r} has no SparseCores. Use tensor_core_mesh, or one"
        " of: "
        + ", ".join(
            name
            for name, other in chips.CHIPS.items()
            if other.facts.sparse_core
        )
        + "."
    )
  return chips.tracing_for(chip.name)
