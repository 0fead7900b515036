# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for CPUs: native calls (cc/ffi), within a process in shared memory.

But for custom_update they run on the values of the program; see native_call.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_batches
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import cpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import shared_memory
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update

# The optimizers with a native step, cc/kernels/update/update_rules.h.
FUSED_UPDATE_RULES = tuple(ffi_cpu.update_rules())

Arrays = Sequence[jax.Array]
Operands = Sequence[native_call.Operand]
Results = Sequence[Any]


def lookup(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the lookup."""
  if params.get("int8_columns") is not None:  # no call knows such rows
    return native_call.traced(plain.lookup, operands, params, devices)
  axis = devices.axis_of(operands[-1])
  if axis is None and operands[-1].ndim == 2:
    *coo, table = operands
    return cpu_calls.lookup(coo, table, params)
  return native_call.traced(_lookup, operands, params, axis)


def _lookup(
    operands: Arrays, params: dict[str, Any], axis: mesh_axis.MeshAxis | None
) -> Arrays:
  """The lookup over devices, or in a table without columns, which has one."""
  *coo, table = operands
  matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
  if axis is None:
    (activations,) = cpu_calls.lookup(coo, matrix, params)
  elif axis.is_in_one_process:
    activations = shared_memory.lookup(coo, matrix, params, axis)
  elif by_batches.serve_lookup(coo, matrix, params, axis):
    activations = by_batches.lookup(coo, matrix, params, axis)
  else:
    activations = by_messages.lookup(cpu_messages, coo, matrix, params, axis)
  return [activations.reshape(-1, *table.shape[1:])]


def update(
    rule: update_rules.UpdateRule,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the update with `rule`, in place where the table is donated."""
  rule = plain.with_options(rule, params)
  named = rule.group_operands(operands)
  axis = devices.axis_of(named.table)
  if axis is None:
    return cpu_calls.update(rule, named, params)
  return native_call.traced(_update_over_devices, operands, rule, params, axis)


def _update_over_devices(
    operands: Arrays,
    rule: update_rules.UpdateRule,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Arrays:
  named = rule.group_operands(operands)
  if axis.is_in_one_process:
    return shared_memory.update(rule, named, params, axis)
  if by_batches.are_smaller(
      named.coo, named.table, named.gradient.shape[0], params, axis
  ):
    return by_batches.update(rule, named, params, axis)
  return by_messages.update(cpu_messages, rule, named, params, axis)


def custom_update(
    operands: Arrays, params: dict[str, Any], devices: mesh_axis.Devices
) -> Arrays:
  """Rule of the update with a computation of the caller: plain, but it raises."""
  rule = plain.with_options(plain.custom_rule(operands, params), params)
  named = rule.group_operands(operands)
  axis = devices.axis_of(named.table)
  if axis is None or axis.is_in_one_process:
    named = check_buffers.or_raise(named, params, axis)
  if axis is None:
    return lookup_and_update.update_on_one_device(rule, named, params)
  return by_messages.update(messages, rule, named, params, axis)


def row_gradients(
    operands: Operands, params: dict[str, Any], devices: mesh_axis.Devices
) -> Results:
  """Rule of the gradients of rows."""
  axis = rows.axis_of_rows(operands[1], params, devices)
  if axis is None:
    return cpu_calls.row_gradients(operands, params)
  return native_call.traced(
      rows.row_gradients, operands, cpu_messages, params, axis
  )


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
  if axis is None and table.ndim == 2:
    return cpu_calls.lookup_ids(operands, params)
  if axis is None or axis.is_in_one_process:
    return native_call.traced(_lookup_ids, operands, params, axis)
  return None


def _lookup_ids(
    operands: Arrays, params: dict[str, Any], axis: mesh_axis.MeshAxis | None
) -> Arrays:
  """The same over devices, or in a table without columns, which has one."""
  table, *ids = operands
  matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
  if axis is None:
    (activations,) = cpu_calls.lookup_ids((matrix, *ids), params)
  else:
    activations = shared_memory.lookup_ids((matrix, *ids), params, axis)
  return [activations.reshape(-1, *table.shape[1:])]
