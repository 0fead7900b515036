# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over the host devices of one process.

These have one memory, so that nothing need be sent: a lookup reads the tables
of the other devices where they are, and an update their buffers and gradients.
What devices exchange are addresses. Messages instead (messages.py) move every
row three times: 16384 samples of 20 ids on 4 devices take 24 times the CPU time
of one device, this 1.15 times.

XLA knows of one device only, so two things are ours to see to. Nobody reads
before all are ready, and nobody goes on before all have read: two collectives
of a few bytes. And what the others read stays as it is in between: it is an
operand of a call, jte_hold_cpu, after the second collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device
import numpy as np

_PUBLISH_TARGET = "jte_publish_cpu"
_HOLD_TARGET = "jte_hold_cpu"
_RECORD_WORDS = 64  # kRecordWords in cc/ffi/device_records.h

_NUM_COO = len(update_rules.COO_OPERANDS)


def lookup(
    rule: one_device.LoweringRule,
    axis: mesh_axis.MeshAxis,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    params: dict[str, Any],
) -> list[jax.Array]:
  """The lookup over the devices along `axis`, by the native `rule`."""

  # A function of its own, whose results are all that an update waits for
  # (earlier_readers.py). If it waited for what is held as well, XLA would copy
  # the activations: 16384 samples of one id took 1.2 times the CPU time.
  @jax.jit
  def run(*operands):
    *coo, table = operands
    records, device = _publish(
        axis,
        coo,
        table,
        rows_per_device=table.shape[0],
        batch_size=params["device_batch_size"],
        enable_minibatching=params["enable_minibatching"],
    )
    results = one_device.call(
        rule, avals_out, *operands, records, num_devices=axis.size, **params
    )
    return _hold(results, axis, records, device, [table])

  return run(*operands)


def update(
    rule: one_device.LoweringRule,
    axis: mesh_axis.MeshAxis,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    *,
    table_operand: int,
    gradient_operand: int,
) -> list[jax.Array]:
  """The update over the devices along `axis`, by the native `rule`."""
  # One buffer for all who read it: in loops, XLA makes a gradient that is
  # constant, of a sum for example, once for each.
  gradient = lax.optimization_barrier(operands[gradient_operand])
  operands = list(operands)
  operands[gradient_operand] = gradient
  coo = operands[:_NUM_COO]
  records, device = _publish(
      axis,
      coo,
      gradient,
      rows_per_device=operands[table_operand].shape[0],
      batch_size=gradient.shape[0],
      enable_minibatching=params["enable_minibatching"],
  )
  results = one_device.call(
      rule,
      avals_out,
      *operands,
      records,
      device,
      num_devices=axis.size,
      **params,
  )
  return _hold(results, axis, records, device, [gradient, *coo])


def _publish(
    axis: mesh_axis.MeshAxis,
    coo: Sequence[jax.Array],
    rows: jax.Array,
    *,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> tuple[jax.Array, jax.Array]:
  """The records of all devices u32[G, words], and which one this is i32[]."""
  call = jax.ffi.ffi_call(
      _PUBLISH_TARGET, jax.ShapeDtypeStruct((_RECORD_WORDS,), jnp.uint32)
  )
  record = call(
      *coo,
      rows,
      num_devices=np.int64(axis.size),
      num_sc_per_device=np.int64(
          layout.num_sc_per_device_from_row_pointers(
              coo[0].size, axis.size, enable_minibatching
          )
      ),
      enable_minibatching=enable_minibatching,
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
  )
  return lax.all_gather(record, axis.name), lax.axis_index(axis.name)


def _hold(
    results: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis,
    records: jax.Array,
    device: jax.Array,
    read_by_others: Sequence[jax.Array],
) -> list[jax.Array]:
  """`results` as they are, once all devices have theirs.

  Args:
    results: what the device computed from what others published.
    axis: of the devices.
    records: of the devices.
    device: the number of this one.
    read_by_others: what it published, rows first.
  """
  first = results[0][(slice(1),) * results[0].ndim]
  all_have_read = lax.all_gather(first, axis.name)
  call = jax.ffi.ffi_call(
      _HOLD_TARGET,
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
      input_output_aliases={k: k for k in range(len(results))},
  )
  return call(
      *results,
      records,
      device,
      *read_by_others,
      all_have_read,
      num_devices=np.int64(axis.size),
  )
