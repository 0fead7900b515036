# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for GPUs: native calls, over several devices by messages.

What kernels do not take has the plain rules: custom updates of tables without
columns. Their sums are those of sorted_sums.py: whatever runs
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
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import gpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import sorted_sums

Operands = Sequence[native_call.Operand]
Arrays = Sequence[jax.Array]
Results = Sequence[Any]


_STEPS = messages.with_rules(sorted_sums)
_SUMS = dict(steps=_STEPS, on_device=sorted_sums)
_lookup_by_plain_messages = functools.partial(by_messages.lookup, _STEPS)
_update_by_plain_messages = functools.partial(by_messages.update, _STEPS)


def _of_arrays(
    rule: Callable[..., Arrays], **kwargs: Any
) -> Callable[..., Results]:
  """A rule of Operands that traces one of arrays."""
  return functools.partial(
      native_call.traced, functools.partial(rule, **kwargs)
  )


# Operation -> the plain rule, whose sums have the same bits every time here.
PLAIN_RULES = {
    "convert_ids": _of_arrays(plain.convert_ids),
    "custom_update": _of_arrays(plain.custom_update, **_SUMS),
    "local_lookup": _of_arrays(
        entries.any_platform, segment_sum=sorted_sums.segment_sum
    ),
    "lookup": _of_arrays(plain.lookup, **_SUMS),
    "lookup_of_stacks": functools.partial(
        plain.lookup_of_stacks, way_of=lambda *_: _lookup_by_plain_messages
    ),
    "row_gradients": _of_arrays(plain.row_gradients, steps=_STEPS),
    "row_gradients_of_stacks": functools.partial(
        plain.row_gradients_of_stacks, steps=_STEPS
    ),
    "sum_rows": _of_arrays(plain.sum_rows, steps=_STEPS),
    "update_of_stacks": functools.partial(
        plain.update_of_stacks, way_of=lambda *_: _update_by_plain_messages
    ),
    **{
        f"update_{name}": _of_arrays(
            functools.partial(plain.update, rule), **_SUMS
        )
        for name, rule in update_rules.UPDATE_RULES.items()
    },
}


class _Ways:
  """How GPUs exchange what a stack needs."""

  def __init__(self, library: gpu_calls.Library):
    steps = gpu_messages.Steps(library)
    self._lookup = functools.partial(by_messages.lookup, steps)
    self._update = functools.partial(by_messages.update, steps)

  def of_lookup(
      self, unused_stack: stacks.Lookup, unused_axis: mesh_axis.MeshAxis
  ) -> stacks.Way:
    return self._lookup

  def of_update(
      self, stack: stacks.Update, unused_axis: mesh_axis.MeshAxis
  ) -> stacks.Way:
    tables = (stack.operands.table, *stack.operands.slots)
    has_kernel = stack.rule.name in gpu_calls.STEP_RULES
    if not has_kernel and any(x.ndim != 2 for x in tables):
      return _update_by_plain_messages
    return self._update


def rules(library: gpu_calls.Library) -> dict[str, Callable[..., Results]]:
  """Operation -> its rule, with the calls of `library`."""
  by_operation = {
      "convert_ids": convert_ids,
      "custom_update": custom_update,
      "local_lookup": local_lookup,
      "lookup": lookup,
      "row_gradients": row_gradients,
      "sum_rows": sum_rows,
  }
  ways = _Ways(library)
  return {
      **{
          operation: functools.partial(rule, library)
          for operation, rule in by_operation.items()
      },
      "lookup_of_stacks": functools.partial(
          plain.lookup_of_stacks, way_of=ways.of_lookup
      ),
      "row_gradients_of_stacks": functools.partial(
          plain.row_gradients_of_stacks, steps=gpu_messages.Steps(library)
      ),
      "update_of_stacks": functools.partial(
          plain.update_of_stacks, way_of=ways.of_update
      ),
      **{
          f"update_{name}": functools.partial(update, library, rule)
          for name, rule in update_rules.UPDATE_RULES.items()
      },
  }


def convert_ids(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
) -> Results:
  """Rule of the conversion of raw ids, which is local to a device."""
  return gpu_calls.convert_ids(library, operands, params)


def lookup(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the lookup."""
  table = operands[-1]
  axis = devices.axis_of(table)
  if axis is None and table.ndim == 2:
    return _look_up(operands, library, params)
  if axis is None:
    return native_call.traced(
        _lookup_without_columns, operands, library, params
    )
  return native_call.traced(
      lambda operands: plain.look_up(
          [of_stacks.Operation("", "lookup", operands, params)],
          _Ways(library).of_lookup,
          axis,
      ),
      operands,
  )


def _lookup_without_columns(
    operands: Arrays, library: gpu_calls.Library, params: dict[str, Any]
) -> Arrays:
  """The lookup in a table without columns, which has one, on one GPU."""
  *coo, table = operands
  (activations,) = _look_up((*coo, table.reshape(-1, 1)), library, params)
  return [activations.reshape(-1)]


def _look_up(
    operands: Sequence[native_call.Array],
    library: gpu_calls.Library,
    params: dict[str, Any],
) -> Results:
  """The lookup in [rows, D], or in rows of codes, on one device."""
  *coo, table = operands
  groups = gpu_calls.group_by_sample(
      library,
      coo,
      num_rows=table.shape[0],
      batch_size=params["device_batch_size"],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  return [
      gpu_calls.pool_samples(
          groups,
          table,
          params.get("quantization_config"),
          params.get("int8_columns"),
      )
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
  if rule.name not in gpu_calls.STEP_RULES:
    return _update_without_kernel(
        library, f"update_{rule.name}", rule, operands, params, devices
    )
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
  rule = plain.custom_rule(operands, params)
  return _update_without_kernel(
      library, "custom_update", rule, operands, params, devices
  )


def _update_without_kernel(
    library: gpu_calls.Library,
    operation: str,
    rule: update_rules.UpdateRule,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """The update with a rule that is stepped in jnp."""
  rule = plain.with_options(rule, params)
  named = rule.group_operands(operands)
  if any(x.ndim != 2 for x in (named.table, *named.slots)):
    return PLAIN_RULES[operation](operands, params, devices)
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
  stack = stacks.Update(rule, rule.group_operands(operands), params)
  (results,) = stacks.by_way([stack], _Ways(library).of_update, axis)
  return results


def row_gradients(
    library: gpu_calls.Library,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the gradients of rows."""
  if rows.axis_of_rows(operands[1], params, devices) is not None:
    return native_call.traced(
        plain.row_gradients,
        operands,
        params,
        devices,
        gpu_messages.Steps(library),
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
