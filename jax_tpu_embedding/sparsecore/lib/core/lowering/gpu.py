# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rules for GPUs: native calls on one device; else, the plain rules.

Plain rules also have the tables that kernels do not take: rows of more than 512
columns, or of a number that is no multiple of 4.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call

Operands = Sequence[native_call.Operand]
Results = Sequence[Any]


def rules(library: gpu_calls.Library) -> dict[str, Callable[..., Results]]:
  """Operation -> its rule, with the calls of `library`."""
  return {
      "lookup": functools.partial(lookup, library),
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
  *coo, table = operands
  has_kernels = params.get("int8_columns") is None and _has_kernels(
      library, table
  )
  if devices.axis_of(table) is not None or not has_kernels:
    return native_call.traced(plain.lookup, operands, params, devices)
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


def update(
    library: gpu_calls.Library,
    rule: update_rules.UpdateRule,
    operands: Operands,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Results:
  """Rule of the update with `rule`, in place where the table is donated."""
  named = plain.with_options(rule, params).group_operands(operands)
  if devices.axis_of(named.table) is not None or not _has_kernels(
      library, named.table
  ):
    return native_call.traced(
        lambda operands: plain.update(rule, operands, params, devices), operands
    )
  groups = gpu_calls.group_by_row(
      library,
      named.coo,
      num_rows=named.table.shape[0],
      batch_size=named.gradient.shape[0],
      enable_minibatching=params.get("enable_minibatching", False),
      block_size=gpu_calls.BLOCK_SIZE,
  )
  return gpu_calls.step_rows(
      plain.with_options(rule, params),
      named,
      groups,
      params,
      block_size=gpu_calls.BLOCK_SIZE,
  )


def _has_kernels(library: gpu_calls.Library, table: native_call.Array) -> bool:
  return table.ndim == 2 and library.is_width_of_rows(table.shape[1])
