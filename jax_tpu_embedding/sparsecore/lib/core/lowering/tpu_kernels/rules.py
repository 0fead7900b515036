# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules by kernels: those for any platform, with other modules in them."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import types
from typing import Any

import jax
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import checks
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import messages_by_kernels
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import on_device
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

_MODULES: dict[str, types.ModuleType] = dict(
    steps=messages_by_kernels, on_device=on_device
)

# Operation -> a function of arrays.
RULES: dict[str, Callable[..., Any]] = {
    "custom_update": functools.partial(plain.custom_update, **_MODULES),
    "lookup": functools.partial(plain.lookup, **_MODULES),
    **{
        f"update_{name}": functools.partial(plain.update, rule, **_MODULES)
        for name, rule in update_rules.UPDATE_RULES.items()
    },
}


def lowering_rule(operation: str, *, emulated: bool = False) -> Any:
  """What JAX takes for a lowering rule, by kernels.

  Args:
    operation: one of RULES.
    emulated: for programs that run on CPUs, in tests.
  """

  def lower(ctx: mlir.LoweringRuleContext, *values, **params):
    if emulated:
      ctx = _on_chip(ctx)
    operands = native_call.operands_of(ctx, values)
    _check_table(operation, operands, params)
    with _chip_of(ctx), contextlib.ExitStack() as stack:
      if not emulated:
        stack.enter_context(pallas.for_tpu())
      return native_call.traced(
          RULES[operation], operands, params, mesh_axis.devices_of(ctx)
      )

  return lower


def _check_table(operation, operands, params):
  """Raises NotTaken for a table without columns."""
  named = operands
  table = operands[-1]
  if operation == "custom_update":
    named = plain.with_options(plain.custom_rule(operands, params), params)
    table = named.group_operands(operands).table
  elif operation != "lookup":
    table = operands[len(update_rules.COO_OPERANDS)]
  if table.ndim != 2 or table.shape[1] == 1:
    raise subcores.NotTaken(
        f"Kernels of SparseCores take tables of two columns or more, got shape"
        f" {tuple(table.shape)}."
    )


def _on_chip(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
  """The context with a mesh of the chip that its CPUs stand for."""

  def of_chip(aval):
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
      return aval
    mesh = pallas.on_chip(sharding.mesh)
    return aval.update(sharding=jax.sharding.NamedSharding(mesh, sharding.spec))

  return ctx.replace(avals_in=[of_chip(aval) for aval in ctx.avals_in])


def _chip_of(ctx: mlir.LoweringRuleContext) -> Any:
  """A context in which the chip of the program is known to kernels."""
  # That of jax.shard_map, or of an operand: with JAX 0.12 a table on a mesh of one
  # device says so in traced code, too, and a batch that is on none does not.
  for aval in ctx.avals_in:
    sharding = getattr(aval, "sharding", None)
    if sharding is not None and not sharding.mesh.empty:
      return jax.sharding.use_abstract_mesh(sharding.mesh)
  device = checks.tpu_of(ctx)
  chip = None if device is None else _name_of(device.device_kind)
  one_device = jax.sharding.AbstractMesh((1,), ("device",))
  return jax.sharding.use_abstract_mesh(pallas.on_chip(one_device, chip))


def _name_of(kind: str) -> str | None:
  return next(
      (c.name for c in pallas.CHIPS.values() if kind in c.device_kinds), None
  )
