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
of a few bytes, for all stacks together. And what the others read stays as it is
in between: it is an operand of a call, jte_hold_cpu, after the second
collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import device_records
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks as stacks_lib
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import earlier_readers


def lookup(
    stacks: Sequence[stacks_lib.Lookup], axis: mesh_axis.MeshAxis
) -> Sequence[jax.Array]:
  """The lookups in [rows, D] over the devices along `axis`."""

  # A function of its own, whose results are all that an update waits for
  # (earlier_readers.py). If it waited for what is held as well, XLA would copy
  # the activations: 16384 samples of one id took 1.2 times the CPU time.
  @earlier_readers.as_one_reader
  def run(operands):
    own, results = [], []
    for stack, (coo, table) in zip(stacks, operands, strict=True):
      with stacks_lib.scope(stack):
        own.append(
            device_records.record(
                coo,
                table,
                num_devices=axis.size,
                rows_per_device=table.shape[0],
                batch_size=stack.params["device_batch_size"],
                enable_minibatching=stack.params.get(
                    "enable_minibatching", False
                ),
            )
        )
    with stacks_lib.scope_of_all(stacks):
      records, device = device_records.publish(own, axis)
    for stack, (coo, table), of_stack in zip(stacks, operands, records):
      with stacks_lib.scope(stack):
        results += cpu_calls.lookup(
            coo, table, stack.params, of_stack, num_devices=axis.size
        )
    read = [(table,) for _, table in operands]
    with stacks_lib.scope_of_all(stacks):
      return _hold(results, results, axis, records, device, read)

  return run([(stack.coo, stack.table) for stack in stacks])


def lookup_ids(
    stacks: Sequence[stacks_lib.LookupIds], axis: mesh_axis.MeshAxis
) -> Sequence[jax.Array]:
  """The lookups from ids over the devices along `axis`.

  Nobody knows what is wrong with ids before they are looked up. So each device
  says it in a record that it publishes afterwards, and which is the second
  barrier.
  """

  @earlier_readers.as_one_reader  # as in `lookup`
  def run(operands):
    with stacks_lib.scope_of_all(stacks):
      records, device = device_records.publish(
          [
              device_records.record_of_table(table, num_devices=axis.size)
              for table, *_ in operands
          ],
          axis,
      )
    activations, outcomes = [], []
    for stack, of_stack, each in zip(stacks, operands, records, strict=True):
      with stacks_lib.scope(stack):
        result, outcome = cpu_calls.lookup_ids_of_devices(
            of_stack, stack.params, each, device
        )
      activations.append(result)
      outcomes.append(outcome)
    read = [(table,) for table, *_ in operands]
    with stacks_lib.scope_of_all(stacks):
      outcomes, _ = device_records.publish(outcomes, axis)
      return device_records.hold(
          activations, outcomes, device, read, num_devices=axis.size
      )

  return run([stack.operands for stack in stacks])


def update(
    stacks: Sequence[stacks_lib.Update], axis: mesh_axis.MeshAxis
) -> Sequence[Sequence[jax.Array]]:
  """The updates over the devices along `axis`."""
  own, read, results = [], [], []
  stacks = [by_messages.with_rounding_shards(stack, axis) for stack in stacks]
  for stack in stacks:
    # One buffer for all who read it: in loops, XLA makes a gradient that is
    # constant, of a sum for example, once for each.
    gradient = lax.optimization_barrier(stack.operands.gradient)
    *buffers, _ = stack.operands.coo  # minibatches are as many on all devices
    read.append((gradient, *buffers))
    with stacks_lib.scope(stack):
      own.append(
          device_records.record(
              stack.operands.coo,
              gradient,
              num_devices=axis.size,
              rows_per_device=stack.operands.table.shape[0],
              batch_size=gradient.shape[0],
              enable_minibatching=stack.params.get(
                  "enable_minibatching", False
              ),
          )
      )
  with stacks_lib.scope_of_all(stacks):
    records, device = device_records.publish(own, axis)
  for stack, of_stack, (gradient, *_) in zip(stacks, records, read):
    with stacks_lib.scope(stack):
      results.append(
          cpu_calls.update(
              stack.rule,
              stack.operands._replace(gradient=gradient),
              stack.params,
              of_stack,
              device,
              num_devices=axis.size,
          )
      )
  tables = [table for table, *_ in results]
  values = [x for of_stack in results for x in of_stack]
  with stacks_lib.scope_of_all(stacks):
    held = iter(_hold(values, tables, axis, records, device, read))
  return [[next(held) for _ in of_stack] for of_stack in results]


def _hold(
    results: Sequence[jax.Array],
    of_stacks: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis,
    records: Sequence[jax.Array],
    device: jax.Array,
    read_by_others: Sequence[Sequence[jax.Array]],
) -> Sequence[jax.Array]:
  """`results` as they are, once all devices have theirs.

  Args:
    results: what the device computed from what others published.
    of_stacks: one of them for each stack.
    axis: of the devices.
    records: for each stack, of the devices.
    device: the number of this one.
    read_by_others: for each stack what this device published, rows first.
  """
  if len(of_stacks) == 1:
    # lax.slice: indexing lowers to it too, and takes much longer to trace.
    (x,) = of_stacks
    done = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim)
  else:
    # A call, as XLA would compile a kernel for every stack.
    (done,) = device_records.hold(
        [device], [], device, [], *of_stacks, num_devices=axis.size
    )
  all_have_read = lax.all_gather(done, axis.name)
  return device_records.hold(
      results,
      records,
      device,
      read_by_others,
      all_have_read,
      num_devices=axis.size,
  )
