# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups, updates and gradients of several stacks, as one primitive of each.

A step binds what it does to its stacks here, all at once. Over several devices
with CPUs or GPUs they then share messages, so that a step has as many
collectives with twelve stacks as with one; on one CPU device many small
stacks share native calls. Elsewhere each is lowered by itself.
The results are those of one primitive after the other, bit by bit.

Operands: those of the stacks, one after the other. Results: theirs, likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax.extend import core
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import update


class OfStack(NamedTuple):
  """What is to be done to one stack."""

  stack: str  # its name
  primitive: core.Primitive
  operands: Sequence[Any]
  params: dict[str, Any]
  num_results: int = 1


def bind(
    kind: core.Primitive, each: Sequence[OfStack], *, num_devices: int
) -> list[list[jax.Array]]:
  """The results for each stack.

  Args:
    kind: one of the primitives below.
    each: what it is of; primitives of users among them are bound by themselves.
    num_devices: that split the rows. One exchanges nothing.
  """
  # What traces and profiles have around the name of a stack.
  scope = kind.name.removesuffix("_of_stacks")
  results = [None] * len(each)
  together = [
      k
      for k, x in enumerate(each)
      if (num_devices > 1 or kind in _SHARE_CALLS)
      and of_stacks.can_be_part(x.primitive)
  ]
  if len(together) < 2:
    together = []
  for k, x in enumerate(each):
    if k not in together:
      with jax.named_scope(f"{scope}/{x.stack}"):
        results[k] = jax.tree.leaves(x.primitive.bind(*x.operands, **x.params))
  if together:
    parts = tuple(
        of_stacks.Part(
            scope=f"{scope}/{x.stack}",
            primitive=x.primitive,
            params=tuple(sorted(x.params.items())),
            num_operands=len(x.operands),
            num_results=x.num_results,
        )
        for x in (each[k] for k in together)
    )
    operands = (x for k in together for x in each[k].operands)
    values = iter(kind.bind(*operands, parts=parts))
    for k in together:
      results[k] = [next(values) for _ in range(each[k].num_results)]
  return results


def _abstract_eval(
    *operands, parts: Sequence[of_stacks.Part]
) -> list[jax.core.ShapedArray]:
  """Checks the operands of every stack; the shapes of its results."""
  results = []
  rest = iter(operands)
  for part in parts:
    own = [next(rest) for _ in range(part.num_operands)]
    try:
      of_part, _ = part.primitive.abstract_eval(*own, **dict(part.params))
    except (TypeError, ValueError) as error:
      error.add_note(f"In {part.scope}.")
      raise
    results += jax.tree.leaves(of_part)
  return results


def _convert_and_look_up(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Lookups from ids on any platform: conversions, and lookups together."""
  operations = of_stacks.read(operands, **params)
  axis = of_stacks.axis_of([x.operands[0] for x in operations], devices)
  lookups = []
  for operation in operations:
    with jax.named_scope(operation.scope):
      lookups.append(
          lookup_ids.convert(operation.operands, operation.params, axis)
      )
  with lookup_ids.rows_are_split(axis):
    activations = bind(
        lookup_of_stacks_p,
        [
            OfStack(
                operation.scope.partition("/")[2],
                lookup.lookup_p,
                x.operands,
                x.params,
            )
            for operation, x in zip(operations, lookups, strict=True)
        ],
        num_devices=1 if axis is None else axis.size,
    )
  return [
      lookup_ids.nan_if_failed(values, x)
      for (values,), x in zip(activations, lookups, strict=True)
  ]


def _primitive(
    operation: str,
    differentiation_hint: str,
    *,
    parts: Callable[..., Any] = of_stacks.each_by_itself,
    **kwargs: Any,
) -> core.Primitive:
  return define.primitive(
      operation,
      _abstract_eval,
      operation=operation,
      multiple_results=True,
      differentiation_hint=differentiation_hint,
      parts=parts,
      **kwargs,
  )


lookup_of_stacks_p = _primitive(
    "lookup_of_stacks", lookup.DIFFERENTIATION_HINT, can_be_mapped=True
)
lookup_ids_of_stacks_p = _primitive(
    "lookup_ids_of_stacks",
    lookup_ids.DIFFERENTIATION_HINT,
    parts=table.lowering_rule(_convert_and_look_up),
)
row_gradients_of_stacks_p = _primitive(
    "row_gradients_of_stacks", row_gradients.DIFFERENTIATION_HINT
)
update_of_stacks_p = _primitive("update_of_stacks", update.DIFFERENTIATION_HINT)
# Those that have something to share on one device, too.
_SHARE_CALLS = frozenset({lookup_of_stacks_p, update_of_stacks_p})
