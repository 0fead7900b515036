# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Activations and gradients of features, cut out of a stack and put together.

Reshapes and slices: the TPU compiler has custom calls for both, and does not
compile them (libtpu 0.0.51: "Custom emitter not found"). On CPUs there is a call
for the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis


def unstack_activations(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of the cut: each SparseCore has a run of samples of each feature."""
  (activations,) = operands
  batch_sizes = params["per_feature_batch_sizes"]
  num_scs = num_sc_per_device_of(devices, params)
  check_shares("per_feature_batch_sizes", batch_sizes, num_scs)
  spans = _spans([size // num_scs for size in batch_sizes])
  runs = activations.reshape(num_scs, -1, activations.shape[1])
  return [
      runs[:, begin:end, :dim].reshape(-1, dim)
      for (begin, end), dim in zip(
          spans, params["per_feature_dims"], strict=True
      )
  ]


def stack_gradients(
    gradients: Sequence[jax.Array],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of the inverse; columns that a feature does not have are zero."""
  stacked_dim = params["stacked_feature_dim"]
  num_scs = num_sc_per_device_of(devices, params)
  check_shares("gradients", [g.shape[0] for g in gradients], num_scs)
  runs = [
      jnp.pad(g, ((0, 0), (0, stacked_dim - g.shape[1]))).reshape(
          num_scs, -1, stacked_dim
      )
      for g in gradients
  ]
  return [jnp.concatenate(runs, axis=1).reshape(-1, stacked_dim)]


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
  return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def check_shares(name: str, sizes: Sequence[int], num_scs: int) -> None:
  """Raises ValueError unless SparseCores share each batch evenly."""
  for number, size in enumerate(sizes):
    if size % num_scs:
      raise ValueError(
          f"{name}: feature {number} has {size} samples on a device, which"
          f" {num_scs} SparseCores cannot share evenly. Make its batch a"
          f" multiple of {num_scs}, or pass num_sc_per_device."
      )


def num_sc_per_device_of(
    devices: mesh_axis.Devices, params: dict[str, Any]
) -> int:
  """The number given, or that of the devices that are compiled for."""
  num_sc_per_device = params.get("num_sc_per_device")
  if num_sc_per_device is None and devices.mesh is not None:
    # Not the process's own devices when a program is compiled for others.
    return hardware.num_sparsecores_per_device(
        devices.mesh.abstract_mesh.abstract_device
    )
  return hardware.resolve_num_sc_per_device(num_sc_per_device)
