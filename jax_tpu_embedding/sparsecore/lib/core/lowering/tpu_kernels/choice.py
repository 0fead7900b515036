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
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import contextvars
import os
from typing import Any
from typing import NamedTuple
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

_record = contextvars.ContextVar("choices", default=None)


class Choice(NamedTuple):
  """The way in which an operation was lowered."""

  operation: str
  way: str
  reason: str  # that another one was not taken; empty if none was


@contextlib.contextmanager
def recorded() -> Iterator[list[Choice]]:
  """A list of what is chosen for the operations that are lowered within."""
  token = _record.set([])
  try:
    yield _record.get()
  finally:
    _record.reset(token)


def lower_by(way: str) -> contextlib.AbstractContextManager[Any]:
  """On TPUs, lookups and updates that are traced within are lowered so.

  On CPUs "kernels" are emulated, as on a v5p or the chip of pallas.on_chip, and
  the other ways change nothing.

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


def asks_for_emulation(ctx: mlir.LoweringRuleContext) -> bool:
  """Whether an operation on CPUs is to be by kernels.

  By `lower_by` only: the environment variable is about TPUs.
  """
  metadata = jax_private.metadata_of_operation(ctx) or {}
  return metadata.get(_METADATA_KEY) == "kernels"


def _lower(operation, rules, ctx, values, params):
  device = checks.tpu_of(ctx)
  has_sparsecores = device is None or not hardware.is_tpu_without_sparsecores(
      device
  )
  asked = _asked(ctx)

  def lowered_by(way, reason=""):
    results = rules[way](ctx, *values, **params)
    if _record.get() is not None:
      _record.get().append(Choice(operation, way, reason))
    return results

  has_codes = params.get("int8_columns") is not None
  if asked is not None:
    if asked == "calls" and has_codes:
      raise NotImplementedError(
          f"{operation}: asked for 'calls', which do not know int8 rows. Ask for"
          " 'kernels', 'plain', or for nothing."
      )
    if asked != "plain" and not has_sparsecores:
      raise NotImplementedError(
          f"{operation}: asked for {asked!r}, and {device.device_kind!r} has no"
          " SparseCores. Ask for 'plain', or for nothing."
      )
    return lowered_by(asked, "asked for")
  if not has_sparsecores:
    return lowered_by("plain", f"{device.device_kind} has no SparseCores")
  if device is None:  # no telling which chip kernels would be for
    return lowered_by("plain" if has_codes else "calls")
  half_types = [x.dtype for x in ctx.avals_in if x.dtype in _HALF_TYPES]
  if has_codes:
    reason = "calls take float32, not codes of int8"
  elif half_types:
    reason = f"calls take float32, not {half_types[0].name}"
  else:
    try:
      return lowered_by("calls")
    except step_operations.StepNotTaken as refused:
      reason = f"calls: {refused}"
  try:
    return lowered_by("kernels", reason)
  except subcores.NotTaken as refused:
    warnings.warn(
        f"{operation}: neither XLA's calls nor kernels of SparseCores take it:"
        f" {refused} TensorCores do it, which may copy the table in every step.",
        stacklevel=2,
    )
    return lowered_by("plain", f"{reason}; kernels: {refused}")


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
