# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One operation on several stacks, as a primitive has it: in parts.

The part of a stack is what it would be by itself, a primitive and its
parameters. Where devices exchange something, rules read the parts and have the
stacks share messages. Everywhere else each part is lowered by itself, so that
XLA sees what it would see without: on TPUs that is a call for each stack, which
can run beside others.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis


class _Installed(NamedTuple):
  operation: str  # in table.py
  lower: Callable[..., Sequence[mlir.ir.Value]]  # as JAX takes it


_INSTALLED: dict[core.Primitive, _Installed] = {}


def install(
    primitive: core.Primitive,
    operation: str,
    lower: Callable[..., Sequence[mlir.ir.Value]],
) -> None:
  """Lets `primitive`, which `lower` lowers, be a part."""
  _INSTALLED[primitive] = _Installed(operation, lower)


def can_be_part(primitive: core.Primitive) -> bool:
  """Whether it is one of ours. Those of users are lowered as users say."""
  return primitive in _INSTALLED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """The operation on one stack. A parameter of primitives, so it has a hash."""

  scope: str  # lookup/STACK and the like, in traces and profiles
  primitive: core.Primitive  # one that table.py has installed
  params: tuple[tuple[str, Any], ...]
  num_operands: int
  num_results: int


class Operation(NamedTuple):
  """A part with its operands: what a rule for one stack gets, and the names."""

  scope: str
  name: str  # in table.py
  operands: Sequence[Any]
  params: dict[str, Any]


def read(operands: Sequence[Any], parts: Sequence[Part]) -> list[Operation]:
  """The parts with theirs of the `operands` of all."""
  rest = iter(operands)
  return [
      Operation(
          part.scope,
          _INSTALLED[part.primitive].operation,
          [next(rest) for _ in range(part.num_operands)],
          dict(part.params),
      )
      for part in parts
  ]


def axis_of(
    tables: Sequence[Any], devices: mesh_axis.Devices
) -> mesh_axis.MeshAxis | None:
  """The axis that splits the rows of all `tables`; None if no one axis does."""
  axes = {devices.axis_of(table) for table in tables}
  return axes.pop() if len(axes) == 1 else None


def each_by_itself(
    ctx: mlir.LoweringRuleContext,
    *values: mlir.ir.Value,
    parts: Sequence[Part],
) -> Sequence[mlir.ir.Value]:
  """Lowers every part as if there were no others."""
  results = []
  operands, avals_in = iter(values), iter(ctx.avals_in)
  avals_out = iter(ctx.avals_out)
  for part in parts:
    with location(ctx, f"{part.scope}/{part.primitive.name}"):
      results += _INSTALLED[part.primitive].lower(
          ctx.replace(
              primitive=part.primitive,
              name_stack=ctx.name_stack.extend(part.scope),
              avals_in=[next(avals_in) for _ in range(part.num_operands)],
              avals_out=[next(avals_out) for _ in range(part.num_results)],
          ),
          *[next(operands) for _ in range(part.num_operands)],
          **dict(part.params),
      )
  return results


def location(ctx: mlir.LoweringRuleContext, name: str) -> mlir.ir.Location:
  """Of what is lowered within it: `name`, in the scope of the operation."""
  return mlir.ir.Location.name(
      f"{ctx.name_stack}/{name}", childLoc=mlir.ir.Location.current
  )
