# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rules of the check of a batch, and of NaN for one that failed.

On CPU the check says what is wrong, and the lookup kernels write NaN themselves
(cc/ffi/failed_buffers.h), since another pass over activations would cost more
than the check. Elsewhere a batch that failed is looked up as one without ids,
and a select follows, which XLA fuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import corrupt_buffers
import numpy as np


def cpu(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[native_call.Operand]:
  """Rule of the check with the native call."""
  sizes = {
      name: np.int64(params[name])
      for name in (
          "num_devices",
          "num_sc_per_device",
          "rows_per_device",
          "batch_size",
      )
  }
  return native_call.call(
      "jte_check_batch_cpu",
      operands,
      enable_minibatching=params["enable_minibatching"],
      **sizes,
  )


def any_platform(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of the check in jnp."""
  *coo, unused_device = operands
  params = dict(params)
  del params["num_sc_per_device"]  # that of the row pointers
  _, is_valid = corrupt_buffers.nan_if_corrupt(coo, **params)
  return _empty_if(~is_valid, coo[0])


def tpu(
    operands: Sequence[jax.Array],
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of the check where SparseCores read the buffers.

  Of buffers it sees only whether their conversion failed, since to look at
  every cell would take longer than the lookup.
  """
  row_pointers, *_ = operands
  return _empty_if(row_pointers[0] < 0, row_pointers)


def _empty_if(
    has_failed: jax.Array, row_pointers: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The results of the check; no partition has an entry if it failed."""
  return jnp.where(has_failed, 0, row_pointers), has_failed[None]


def nan_on_cpu(
    operands: Sequence[native_call.Operand],
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[native_call.Operand]:
  """Rule of NaN where the lookup writes it."""
  activations, _ = operands
  return [activations]


def nan_on_any_platform(
    operands: Sequence[jax.Array],
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of NaN in jnp."""
  activations, has_failed = operands
  return [jnp.where(has_failed[0], jnp.nan, activations)]
