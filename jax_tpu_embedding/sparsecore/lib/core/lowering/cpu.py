# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for CPUs: native calls (cc/ffi), within a process in shared memory.

But for custom_update they run on the values of the program; see native_call.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering import small_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering import stacking
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import cpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import shared_memory
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_on_device
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update

# The optimizers with a native step, cc/kernels/update/update_rules.h.
FUSED_UPDATE_RULES = tuple(ffi_cpu.update_rules())

# Where each of several devices has all rows, they tell each other nothing. One
# that failed would leave the others waiting in their next collective, which ends
# the process: so what depends on its corrupt buffers is NaN.
_OR_NAN = (cpu_messages, cpu_on_device)

Arrays = Sequence[jax.Array]
Operands = Sequence[native_call.Operand]
Results = Sequence[Any]


def lookup(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the lookup."""
  axis = devices.axis_of(operands[-1])
  if axis is None and devices.are_several():
    return native_call.traced(plain.lookup, operands, params, devices, *_OR_NAN)
  if axis is None and operands[-1].ndim == 2:
    *coo, table = operands
    return cpu_calls.lookup(coo, table, params)
  if axis is None:
    return native_call.traced(_lookup_without_columns, operands, params)
  return native_call.traced(
      lambda operands: plain.look_up(
          [of_stacks.Operation("", "lookup", operands, params)],
          _way_of_lookup,
          axis,
      ),
      operands,
  )


def _lookup_without_columns(operands: Arrays, params: dict[str, Any]) -> Arrays:
  """The lookup in a table without columns, which has one, on one device."""
  *coo, table = operands
  (activations,) = cpu_calls.lookup(coo, table.reshape(-1, 1), params)
  return [activations.reshape(-1)]


def unstack_activations(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the cut of activations; that of stacking.py, as one call."""
  num_runs = stacking.num_sc_per_device_of(devices, params)
  stacking.check_shares(
      "per_feature_batch_sizes", params["per_feature_batch_sizes"], num_runs
  )
  return cpu_calls.unstack_activations(operands, num_runs)


def lookup_of_stacks(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results | None:
  """Rule of lookups that share messages or a call; None if there are none."""
  if devices.are_several():
    return plain.lookup_of_stacks(operands, params, devices, _way_of_lookup)
  return small_stacks.look_up(operands, **params)


_lookup_by_plain_messages = functools.partial(by_messages.lookup, messages)
_lookup_by_messages = functools.partial(by_messages.lookup, cpu_messages)


def _way_of_lookup(
    stack: stacks.Lookup, axis: mesh_axis.MeshAxis
) -> stacks.Way:
  if axis.is_in_one_process:
    return shared_memory.lookup
  if by_batches.serve_lookup(stack.coo, stack.table, stack.params, axis):
    return by_batches.lookup
  if stack.params.get("int8_columns") is not None:  # cpu_messages sends floats
    return _lookup_by_plain_messages
  return _lookup_by_messages


def update(
    rule: update_rules.UpdateRule,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the update with `rule`, in place where the table is donated."""
  with_options = plain.with_options(rule, params)
  named = with_options.group_operands(operands)
  axis = devices.axis_of(named.table)
  if axis is None and devices.are_several():
    return native_call.traced(
        lambda operands: plain.update(
            rule, operands, params, devices, *_OR_NAN
        ),
        operands,
    )
  if axis is None:
    return cpu_calls.update(with_options, named, params)
  return native_call.traced(
      lambda operands: _update_over_devices(
          with_options, operands, params, axis
      ),
      operands,
  )


def _update_over_devices(
    rule: update_rules.UpdateRule,
    operands: Arrays,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Arrays:
  stack = stacks.Update(rule, rule.group_operands(operands), params)
  (results,) = stacks.by_way([stack], _way_of_update, axis)
  return results


def custom_update(
    operands: Arrays, params: dict[str, Any], devices: mesh_axis.Devices
) -> Arrays:
  """Rule of the update with a computation of the caller: plain, but it raises.

  Unless other devices would wait for it; see _OR_NAN.
  """
  rule = plain.with_options(plain.custom_rule(operands, params), params)
  named = rule.group_operands(operands)
  axis = devices.axis_of(named.table)
  if axis is not None:
    return _update_over_devices(rule, operands, params, axis)
  if devices.are_several():  # NaN, as in `update`
    return plain.custom_update(operands, params, devices)
  (checked,) = check_buffers.or_raise(
      [stacks.Update(rule, named, params)], axis
  )
  return lookup_and_update.update_on_one_device(rule, checked.operands, params)


def update_of_stacks(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results | None:
  """Rule of updates that share messages or a call; None if there are none."""
  if devices.are_several():
    return plain.update_of_stacks(operands, params, devices, _way_of_update)
  return small_stacks.step(
      operands,
      updates=plain.updates(operands, params),
      fused_rules=FUSED_UPDATE_RULES,
      **params,
  )


def _update_by_plain_messages(
    updates: Sequence[stacks.Update], axis: mesh_axis.MeshAxis
) -> Sequence[Arrays]:
  """With the steps in jnp, as there are no others; buffers are checked."""
  if axis.is_in_one_process:
    updates = check_buffers.or_raise(updates, axis)
  return by_messages.update(messages, updates, axis)


_update_by_messages = functools.partial(by_messages.update, cpu_messages)


def _way_of_update(
    stack: stacks.Update, axis: mesh_axis.MeshAxis
) -> stacks.Way:
  if stack.rule.name not in FUSED_UPDATE_RULES:
    return _update_by_plain_messages
  if axis.is_in_one_process:
    return shared_memory.update
  operands = stack.operands
  if by_batches.are_smaller(
      operands.coo,
      operands.table,
      operands.gradient.shape[0],
      stack.params,
      axis,
  ):
    return by_batches.update
  return _update_by_messages


def row_gradients(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the gradients of rows."""
  axis = rows.axis_of_rows(operands[1], params, devices)
  if axis is None and not devices.are_several():
    return cpu_calls.row_gradients(operands, params)
  return native_call.traced(
      plain.row_gradients, operands, params, devices, cpu_messages
  )


def row_gradients_of_stacks(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results | None:
  """Rule of gradients of rows that share messages; None if there are none."""
  return plain.row_gradients_of_stacks(operands, params, devices, cpu_messages)


def sum_rows(
    operands: Operands,
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Results:
  """Rule of the sums of rows."""
  return cpu_calls.sum_rows(operands, sum(x.size for x in operands[::2]))


def convert_ids(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the conversion of raw ids.

  One of several devices does not fail by itself, the others would wait for it.
  It hands its error on in the buffers, and the lookup raises it on all of them.
  """
  keeps_errors = params.get("keeps_errors", False) or devices.are_several()
  return cpu_calls.convert_ids(operands, params, keeps_errors=keeps_errors)


def lookup_ids(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results | None:
  """Rule of the lookup from ids; None over several processes."""
  table = operands[0]
  axis = devices.axis_of(table)
  if axis is None and devices.are_several():  # NaN, as in `lookup`
    params = params | dict(keeps_errors=True)
  if axis is None and table.ndim == 2:
    return cpu_calls.lookup_ids(operands, params)
  if axis is None or axis.is_in_one_process:
    return native_call.traced(
        lambda operands: _lookup_ids(
            [of_stacks.Operation("", "lookup_ids", operands, params)], axis
        ),
        operands,
    )
  return None


def lookup_ids_of_stacks(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results | None:
  """Rule of lookups from ids that share messages; None if there are none."""
  tables = [x.operands[0] for x in of_stacks.read(operands, **params)]
  axis = of_stacks.axis_of(tables, devices)
  if axis is None or not axis.is_in_one_process:
    return None
  return native_call.traced(
      lambda operands: _lookup_ids(of_stacks.read(operands, **params), axis),
      operands,
  )


def _lookup_ids(
    operations: Sequence[of_stacks.Operation], axis: mesh_axis.MeshAxis | None
) -> Arrays:
  """The same over devices, or in a table without columns, which has one."""
  lookups = []
  for operation in operations:
    table, *ids = operation.operands
    matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
    lookups.append(
        stacks.LookupIds((matrix, *ids), operation.params, operation.scope)
    )
  if axis is None:
    results = [cpu_calls.lookup_ids(x.operands, x.params)[0] for x in lookups]
  else:
    results = shared_memory.lookup_ids(lookups, axis)
  return [
      activations.reshape(-1)
      if operation.operands[0].ndim == 1
      else activations
      for activations, operation in zip(results, operations, strict=True)
  ]
