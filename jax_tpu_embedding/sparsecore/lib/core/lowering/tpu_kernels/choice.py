# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which of three ways lowers an operation on a TPU.

| way | |
|---|---|
| "calls" | XLA's custom calls of SparseCores: tables of float32 |
| "kernels" | Pallas kernels of SparseCores: other types and steps, not run on a TPU yet |
| "plain" | jnp, on TensorCores: any chip; what it writes of a table in their layout may copy it |

Calls are used wherever they work.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import os
from typing import Any
import warnings

from jax.experimental import xla_metadata
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import checks
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import step_operations
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

WAYS = ("calls", "kernels", "plain")
ENVIRONMENT_VARIABLE = "JAX_TPU_EMBEDDING_TPU"

# As that of mesh_axis.py: JAX keeps it with the operations, XLA ignores it.
_METADATA_KEY = "jte_lower_by"
_HALF_TYPES = (jnp.bfloat16, jnp.float16)


def lower_by(way: str) -> contextlib.AbstractContextManager[Any]:
  """On TPUs, lookups and updates that are traced within are lowered so.

  Args:
    way: one of WAYS. Without this it is what the environment variable
      JAX_TPU_EMBEDDING_TPU says, or the first that takes the operation.

  Raises:
    ValueError: if there is no such way.
  """
  return xla_metadata.set_xla_metadata(
      **{_METADATA_KEY: _checked("lower_by", way)}
  )


def lowering_rule(
    operation: str, rules: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
  """The rule that chooses among those of each way."""

  def lower(ctx, *values, **params):
    return _lower(operation, rules, ctx, values, params)

  return lower


def _lower(operation, rules, ctx, values, params):
  device = checks.tpu_of(ctx)
  has_sparsecores = device is None or not hardware.is_tpu_without_sparsecores(
      device
  )
  asked = _asked(ctx)
  if asked is not None:
    if asked != "plain" and not has_sparsecores:
      raise NotImplementedError(
          f"{operation}: asked for {asked!r}, and {device.device_kind!r} has no"
          " SparseCores. Ask for 'plain', or for nothing."
      )
    return rules[asked](ctx, *values, **params)
  if not has_sparsecores:
    return rules["plain"](ctx, *values, **params)
  if device is None:  # no telling which chip kernels would be for
    return rules["calls"](ctx, *values, **params)
  if not any(x.dtype in _HALF_TYPES for x in ctx.avals_in):
    try:
      return rules["calls"](ctx, *values, **params)
    except step_operations.StepNotTaken:
      pass
  try:
    return rules["kernels"](ctx, *values, **params)
  except subcores.NotTaken as refused:
    warnings.warn(
        f"{operation}: neither XLA's calls nor kernels of SparseCores take it:"
        f" {refused} TensorCores do it, which may copy the table in every step.",
        stacklevel=2,
    )
    return rules["plain"](ctx, *values, **params)


def _asked(ctx: mlir.LoweringRuleContext) -> str | None:
  metadata = jax_private.metadata_of_operation(ctx) or {}
  if _METADATA_KEY in metadata:
    return metadata[_METADATA_KEY]
  way = os.environ.get(ENVIRONMENT_VARIABLE)
  return _checked(ENVIRONMENT_VARIABLE, way) if way else None


def _checked(name: str, way: str) -> str:
  if way not in WAYS:
    raise ValueError(
        f"{name}: there is no way {way!r} to lower for TPUs. Use one of"
        f" {', '.join(WAYS)}."
    )
  return way
