# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rules of the check of a seal: an error on CPU, else NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call


def cpu(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[native_call.Operand]:
  """The lookup waits for the check by the number of minibatches."""
  seal, num_minibatches, *gains = operands
  (checked,) = native_call.call(
      "jte_check_seal_cpu",
      (seal, num_minibatches),
      [num_minibatches.aval],
      aliases={1: 0},
      message=params["message"],
  )
  return [checked, *gains]


def any_platform(
    operands: Sequence[jax.Array],
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Where a program cannot raise: gains that make all activations NaN."""
  return nan_if_broken(*operands)


def nan_if_broken(
    seal: jax.Array, num_minibatches: jax.Array, *gains: jax.Array
) -> tuple[jax.Array, ...]:
  """The operands after the seal, with NaN for gains if it is broken."""
  first, h, h_square, g, g_square = seal
  is_intact = (first == 1) & (h_square == h * h) & (g_square == g * g)
  return num_minibatches, *(jnp.where(is_intact, x, jnp.nan) for x in gains)
