# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the devices exchange at a time: the same operation on several stacks.

However many stacks there are, they share each message: a message costs the same
few microseconds to milliseconds whatever is in it, and at small batches that is
all the time there is. So an exchange takes a sequence of stacks and returns a
result for each. One stack is a sequence of one.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from typing import Any
from typing import NamedTuple

import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules


class Lookup(NamedTuple):
  """The lookup in one stack."""

  coo: Sequence[jax.Array]
  table: jax.Array  # [rows, D]
  params: dict[str, Any]
  scope: str = ""  # lookup/STACK, in traces; "" if it is the only one


class LookupIds(NamedTuple):
  """The lookup from ids in one stack."""

  operands: Sequence[jax.Array]  # table [rows, D], one minibatch, ids
  params: dict[str, Any]
  scope: str = ""


class Update(NamedTuple):
  """The update of one stack."""

  rule: update_rules.UpdateRule  # with its options
  operands: update_rules.UpdateOperands
  params: dict[str, Any]
  scope: str = ""


class RowGradients(NamedTuple):
  """The gradients of the rows of one stack."""

  coo: Sequence[jax.Array]
  gradient: jax.Array  # f32[samples, D], of the activations
  rows_per_device: int  # of the table
  params: dict[str, Any]
  scope: str = ""


Stack = Lookup | LookupIds | Update | RowGradients
# All that devices do with some stacks: a result for each.
Way = Callable[[Sequence[Any], mesh_axis.MeshAxis], Sequence[Any]]


def scope(stack: Stack) -> contextlib.AbstractContextManager[Any]:
  """For what is traced for one stack, its name if there are several."""
  return (
      jax.named_scope(stack.scope) if stack.scope else contextlib.nullcontext()
  )


def scope_of_all(
    stacks: Sequence[Stack],
) -> contextlib.AbstractContextManager[Any]:
  """For what is traced for all `stacks` together: lookup/all_stacks."""
  if len(stacks) == 1:
    return scope(*stacks)
  kind, _, _ = stacks[0].scope.partition("/")
  return jax.named_scope(f"{kind}/all_stacks")


def by_way(
    stacks: Sequence[Stack],
    way_of: Callable[[Any, mesh_axis.MeshAxis], Way],
    axis: mesh_axis.MeshAxis,
) -> list[Any]:
  """The result of each stack; those that go the same way go together.

  Args:
    stacks: in any order.
    way_of: stack, axis -> how devices exchange what it needs.
    axis: of the devices.
  """
  positions = collections.defaultdict(list)
  for position, stack in enumerate(stacks):
    positions[way_of(stack, axis)].append(position)
  results = [None] * len(stacks)
  for way, taken in positions.items():
    for position, result in zip(
        taken, way([stacks[k] for k in taken], axis), strict=True
    ):
      results[position] = result
  return results
