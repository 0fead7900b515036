# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for GPUs: native calls, over several devices by messages.

What kernels do not take has the plain rules: rows of int8, and custom updates
of tables without columns. Their sums are those of sorted_sums.py: whatever runs
on a GPU has the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_lookup as entries
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import gpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import sorted_sums

Operands = Sequence[native_call.Operand]
Arrays = Sequence[jax.Array]
Results = Sequence[Any]


# Operation -> the plain rule, whose sums have the same bits every time here.
_STEPS = messages.with_rules(sorted_sums)
_SUMS = dict(steps=_STEPS, on_device=sorted_sums)
PLAIN_RULES = {
    "custom_update": functools.partial(plain.custom_update, **_SUMS),
    "local_lookup": functools.partial(
        entries.any_platform, segment_sum=sorted_sums.segment_sum
    ),
    "lookup": functools.partial(plain.lookup, **_SUMS),
    "row_gradients": functools.partial(plain.row_gradients, steps=_STEPS),
    "sum_rows": functools.partial(plain.sum_rows, steps=_STEPS),
    **{
        f"update_{name}": functools.partial(plain.update, rule, **_SUMS)
        for name, rule in update_rules.UPDATE_RULES.items()
    },
}


def rules(library: gpu_calls.Library) -> dict[str, Callable[..., Results]]:
  """Operation -> its rule, with the calls of `library`."""
  by_operation = {
      "custom_update": custom_update,
      "local_lookup": local_lookup,
      "lookup": lookup,
      "row_gradients": row_gradients,
      "sum_rows": sum_rows,
  }
  return {
      **{
          operation: functools.partial(rule, library)
          for operation, rule in by_operation.items()
      },
      **{
          f"update_{name}": functools.partial(update, library, rule)
          for name, rule in update_rules.UPDATE_RULES.items()
      },
  }


def lookup(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the lookup."""
  table = operands[-1]
  if params.get("int8_columns") is not None:
    return native_call.traced(PLAIN_RULES["lookup"], operands, params, devices)
  axis = devices.axis_of(table)
  if axis is None and table.ndim == 2:
    return _look_up(operands, library, params)
  return native_call.traced(_lookup, operands, library, params, axis)


def _lookup(
    operands: Arrays,
    library: gpu_calls.Library,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis | None,
) -> Arrays:
  """The lookup over devices, or in a table without columns, which has one."""
  *coo, table = operands
  matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
  if axis is None:
    (activations,) = _look_up((*coo, matrix), library, params)
  else:
    activations = by_messages.lookup(
        gpu_messages.Steps(library), coo, matrix, params, axis
    )
  return [activations.reshape(-1, *table.shape[1:])]


def _look_up(
    operands: Sequence[native_call.Array],
    library: gpu_calls.Library,
    params: dict[str, Any],
) -> Results:
  """The lookup in [rows, D] on one device."""
  *coo, table = operands
  groups = gpu_calls.group_by_sample(
      library,
      coo,
      num_rows=table.shape[0],
      batch_size=params["device_batch_size"],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  return [
      gpu_calls.pool_samples(groups, table, params.get("quantization_config"))
  ]


def local_lookup(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Results:
  """Rule of the local lookup: a lookup of one SparseCore."""
  return native_call.traced(
      lambda operands: _look_up(entries.as_lookup(*operands), library, params),
      operands,
  )


def update(
    library: gpu_calls.Library,
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
    return _step(named, library, rule, params)
  return native_call.traced(
      _update_over_devices, operands, library, rule, params, axis
  )


def custom_update(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the update with a computation of the caller."""
  rule = plain.with_options(plain.custom_rule(operands, params), params)
  named = rule.group_operands(operands)
  if any(x.ndim != 2 for x in (named.table, *named.slots)):
    return native_call.traced(
        PLAIN_RULES["custom_update"], operands, params, devices
    )
  axis = devices.axis_of(named.table)
  if axis is not None:
    return native_call.traced(
        _update_over_devices, operands, library, rule, params, axis
    )
  return native_call.traced(
      lambda operands: _step(
          rule.group_operands(operands), library, rule, params
      ),
      operands,
  )


def _step(
    named: update_rules.UpdateOperands,
    library: gpu_calls.Library,
    rule: update_rules.UpdateRule,
    params: dict[str, Any],
) -> Results:
  """The update on one device; `rule` has its options."""
  gradient = named.gradient
  if gradient.ndim == 1:
    gradient = native_call.apply(lambda x: x.reshape(-1, 1), gradient)
  terms = gpu_calls.terms_of_batch(
      library,
      named.coo,
      gradient,
      num_rows=named.table.shape[0],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  return gpu_messages.step(rule, named, terms, params)


def _update_over_devices(
    operands: Arrays,
    library: gpu_calls.Library,
    rule: update_rules.UpdateRule,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Arrays:
  return by_messages.update(
      gpu_messages.Steps(library),
      rule,
      rule.group_operands(operands),
      params,
      axis,
  )


def row_gradients(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the gradients of rows."""
  axis = rows.axis_of_rows(operands[1], params, devices)
  if axis is not None:
    return native_call.traced(
        rows.row_gradients, operands, gpu_messages.Steps(library), params, axis
    )
  (num_results,) = operands[0].ctx.avals_out[0].shape
  return native_call.traced(
      _row_gradients, operands, library, params, num_results
  )


def _row_gradients(
    operands: Arrays,
    library: gpu_calls.Library,
    params: dict[str, Any],
    num_results: int,
) -> Arrays:
  """The gradients of rows on one device."""
  *coo, gradient = operands
  terms = gpu_calls.terms_of_batch(
      library,
      coo,
      gradient,
      num_rows=params["rows_per_device"],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  return gpu_calls.sum_rows(terms, num_results)


def sum_rows(
    library: gpu_calls.Library,
    operands: Operands,
    unused_params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Results:
  """Rule of the sums of rows."""
  num_results = sum(x.size for x in operands[::2])
  return native_call.traced(
      lambda operands: gpu_messages.Steps(library).sum_rows(
          operands[::2], operands[1::2], num_results
      ),
      operands,
  )
