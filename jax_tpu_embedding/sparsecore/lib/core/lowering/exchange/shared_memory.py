# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over the host devices of one process.

These have one memory, so that nothing need be sent: a lookup reads the tables
of the other devices where they are, and an update their buffers and gradients.
What devices exchange are addresses. Messages instead (messages.py) write every
row twice more, in blocks with room to spare: steps of 16384 samples of 20 ids
on 4 devices take 6 to 15 times the CPU time of one device, this 1.1 to 1.5.

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
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import device_records
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls


def lookup(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> jax.Array:
  """The lookup in [rows, D] over the devices along `axis`."""

  # A function of its own, whose results are all that an update waits for
  # (earlier_readers.py). If it waited for what is held as well, XLA would copy
  # the activations: 16384 samples of one id took 1.2 times the CPU time.
  @jax.jit
  def run(*operands):
    *coo, table = operands
    records, device = device_records.publish(
        axis,
        coo,
        table,
        rows_per_device=table.shape[0],
        batch_size=params["device_batch_size"],
        enable_minibatching=params.get("enable_minibatching", False),
    )
    results = cpu_calls.lookup(
        coo, table, params, records, num_devices=axis.size
    )
    return _hold(results, axis, records, device, [table])

  (activations,) = run(*coo, table)
  return activations


def lookup_ids(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> jax.Array:
  """The lookup from ids over the devices along `axis`.

  Nobody knows what is wrong with ids before they are looked up. So each device
  says it in a record that it publishes afterwards, and which is the second
  barrier.

  Args:
    operands: the table [rows, D] of this device, one minibatch and its ids.
    params: of the lookup from ids.
    axis: of the devices.
  """

  @jax.jit  # as in `lookup`
  def run(*operands):
    records, device = device_records.publish_table(axis, operands[0])
    activations, outcome = cpu_calls.lookup_ids_of_devices(
        operands, params, records, device
    )
    outcomes = lax.all_gather(outcome, axis.name)
    return device_records.hold(
        [activations], outcomes, device, operands[0], outcomes
    )

  (activations,) = run(*operands)
  return activations


def update(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Sequence[jax.Array]:
  """The update over the devices along `axis`; `rule` has its options."""
  operands, params = by_messages.with_rounding_shards(operands, params, axis)
  # One buffer for all who read it: in loops, XLA makes a gradient that is
  # constant, of a sum for example, once for each.
  gradient = lax.optimization_barrier(operands.gradient)
  records, device = device_records.publish(
      axis,
      operands.coo,
      gradient,
      rows_per_device=operands.table.shape[0],
      batch_size=gradient.shape[0],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  results = cpu_calls.update(
      rule,
      operands._replace(gradient=gradient),
      params,
      records,
      device,
      num_devices=axis.size,
  )
  return _hold(results, axis, records, device, [gradient, *operands.coo])


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
  # lax.slice: indexing lowers to it too, and takes much longer to trace.
  first = lax.slice(results[0], (0,) * results[0].ndim, (1,) * results[0].ndim)
  all_have_read = lax.all_gather(first, axis.name)
  return device_records.hold(
      results, records, device, *read_by_others, all_have_read
  )
