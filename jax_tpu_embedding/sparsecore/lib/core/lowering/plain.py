# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for any platform, in jnp: what is correct, reference.py, on devices.

A rule is a function of the operands and parameters of an operation, and of the
devices that it sees. What has no rule of its own on a platform gets these.
"""

from __future__ import annotations

from collections.abc import Sequence
import types
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rows
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update

Arrays = Sequence[jax.Array]


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
  *coo, table = operands
  axis = devices.axis_of(table)
  # A table without columns has one: a reshape moves nothing.
  matrix = table.reshape(table.shape[0], *(table.shape[1:] or (1,)))
  if axis is None:
    activations = check_buffers.lookup(coo, matrix, params, on_device)
  else:
    activations = by_messages.lookup(steps, coo, matrix, params, axis)
  if table.ndim == 2:
    return [activations]
  return [activations.reshape(-1)]


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
  return by_messages.update(steps, rule, named, params, axis)


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
  return rows.row_gradients(operands, steps, params, axis)


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
