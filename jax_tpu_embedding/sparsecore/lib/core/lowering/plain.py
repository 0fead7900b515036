# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for any platform, in jnp: what is correct, reference/, on devices.

A rule is a function of the operands and parameters of an operation, and of the
devices that it sees. What has no rule of its own on a platform gets these.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
import types
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update

Arrays = Sequence[jax.Array]
WayOf = Callable[[Any, mesh_axis.MeshAxis], stacks.Way]


def lookup(
    operands: Arrays,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    steps: types.ModuleType = messages,
    on_device: types.ModuleType = lookup_and_update,
) -> Arrays:
  """Rule of the lookup.

  `steps` and `on_device` are modules like messages.py and lookup_and_update.py.
  """
  axis = devices.axis_of(operands[-1])
  operation = of_stacks.Operation("", "lookup", operands, params)
  if axis is not None:
    way = functools.partial(by_messages.lookup, steps)
    return look_up([operation], lambda *_: way, axis)
  stack = _lookup_in_matrix(operation)
  activations = check_buffers.lookup(stack.coo, stack.table, params, on_device)
  return [_as_wide_as(operands[-1], activations)]


def lookup_of_stacks(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    way_of: WayOf,
) -> Sequence[Any] | None:
  """Rule of lookups that share messages; None if there are none.

  Args:
    operands: of the operation.
    params: its parts.
    devices: of the operation.
    way_of: stack, axis -> how devices exchange what it needs.
  """
  tables = [x.operands[-1] for x in of_stacks.read(operands, **params)]
  axis = of_stacks.axis_of(tables, devices)
  if axis is None:
    return None
  return native_call.traced(
      lambda operands: look_up(
          of_stacks.read(operands, **params), way_of, axis
      ),
      operands,
  )


def look_up(
    operations: Sequence[of_stacks.Operation],
    way_of: WayOf,
    axis: mesh_axis.MeshAxis,
) -> Arrays:
  """The activations of each lookup, over the devices along `axis`."""
  lookups = [_lookup_in_matrix(operation) for operation in operations]
  activations = stacks.by_way(lookups, way_of, axis)
  return [
      _as_wide_as(operation.operands[-1], x)
      for x, operation in zip(activations, operations, strict=True)
  ]


def _lookup_in_matrix(operation: of_stacks.Operation) -> stacks.Lookup:
  """The lookup in [rows, D]: a table without columns has one."""
  *coo, table = operation.operands
  # A reshape moves nothing.
  matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
  return stacks.Lookup(coo, matrix, operation.params, operation.scope)


def _as_wide_as(table: jax.Array, activations: jax.Array) -> jax.Array:
  """The activations of the lookup in a matrix; without columns as the table."""
  return activations if table.ndim == 2 else activations.reshape(-1)


def update(
    rule: update_rules.UpdateRule,
    operands: Arrays,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    steps: types.ModuleType = messages,
    on_device: types.ModuleType = lookup_and_update,
) -> Arrays:
  """Rule of the update with `rule`, which is one without options."""
  rule = with_options(rule, params)
  named = rule.group_operands(operands)
  axis = devices.axis_of(named.table)
  if axis is None:
    return check_buffers.update(rule, named, params, on_device)
  stack = stacks.Update(rule, named, params)
  (results,) = by_messages.update(steps, [stack], axis)
  return results


def update_of_stacks(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    way_of: WayOf,
) -> Sequence[Any] | None:
  """Rule of updates that share messages; as `lookup_of_stacks`."""
  tables = [x.operands.table for x in updates(operands, params)]
  axis = of_stacks.axis_of(tables, devices)
  if axis is None:
    return None
  return native_call.traced(
      lambda operands: jax.tree.leaves(
          stacks.by_way(updates(operands, params), way_of, axis)
      ),
      operands,
  )


def updates(
    operands: Sequence[Any], params: dict[str, Any]
) -> list[stacks.Update]:
  """The updates that an operation on several stacks has."""
  result = []
  for operation in of_stacks.read(operands, **params):
    if operation.name == "custom_update":
      rule = custom_rule(operation.operands, operation.params)
    else:
      rule = update_rules.UPDATE_RULES[operation.name.removeprefix("update_")]
    rule = with_options(rule, operation.params)
    result.append(
        stacks.Update(
            rule,
            rule.group_operands(operation.operands),
            operation.params,
            operation.scope,
        )
    )
  return result


def custom_update(
    operands: Arrays,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    **modules: types.ModuleType,
) -> Arrays:
  """Rule of the update with a computation of the caller."""
  rule = custom_rule(operands, params)
  return update(rule, operands, params, devices, **modules)


def convert_ids(
    operands: Arrays, params: dict[str, Any], unused_devices: mesh_axis.Devices
) -> Arrays:
  """Rule of the conversion of raw ids, which is local to a device."""
  return conversion.convert_ids(*operands, **params)


def row_gradients(
    operands: Arrays,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    steps: types.ModuleType = messages,
) -> Arrays:
  """Rule of the gradients of rows."""
  axis = rows.axis_of_rows(operands[1], params, devices)
  (results,) = rows.row_gradients(
      steps, [rows.of_operands(operands, params)], axis
  )
  return results


def row_gradients_of_stacks(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
    steps: types.ModuleType = messages,
) -> Sequence[Any] | None:
  """Rule of gradients of rows that share messages; None if there are none."""
  axes = {
      rows.axis_of_rows(x.operands[1], x.params, devices)
      for x in of_stacks.read(operands, **params)
  }
  if len(axes) > 1 or None in axes:
    return None
  (axis,) = axes
  return native_call.traced(
      lambda operands: jax.tree.leaves(
          rows.row_gradients(
              steps,
              [
                  rows.of_operands(x.operands, x.params, x.scope)
                  for x in of_stacks.read(operands, **params)
              ],
              axis,
          )
      ),
      operands,
  )


def sum_rows(
    operands: Arrays,
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
    steps: types.ModuleType = messages,
) -> Arrays:
  """Rule of the sums of rows, which is local to a device."""
  num_rows = sum(x.size for x in operands[::2])
  return steps.sum_rows(operands[::2], operands[1::2], num_rows)


def with_options(
    rule: update_rules.UpdateRule, params: dict[str, Any]
) -> update_rules.UpdateRule:
  """`rule` with what the parameters of an update say beside it."""
  return update_rules.with_options(
      rule,
      params.get("row_options", ()),
      stochastic_rounding=params.get("stochastic_rounding", False),
  )


def custom_rule(
    operands: Arrays, params: dict[str, Any]
) -> update_rules.UpdateRule:
  """The rule, without options, of an update with a computation of the caller."""
  return custom_update_rule.custom_rule(
      custom_update_rule.computation_of(
          params.get("custom_computation_fn"), params.get("stablehlo")
      ),
      num_operands=len(operands),
      num_hyperparameters=params["num_hyperparameters"],
      row_options=params.get("row_options", ()),
      stochastic_rounding=params.get("stochastic_rounding", False),
  )
