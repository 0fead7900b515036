# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the devices of one process tell each other: cc/ffi/device_records.h."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
import numpy as np

_PUBLISH_TARGET = "jte_publish_cpu"
_PUBLISH_TABLE_TARGET = "jte_publish_table_cpu"
_HOLD_TARGET = "jte_hold_cpu"
_SPLIT_TARGET = "jte_split_records_cpu"
_RECORD_WORDS = 64  # kRecordWords in cc/ffi/device_records.h
_ERROR_WORD = 12  # of DeviceRecord.error, which is 0 if there is none


def record(
    coo: Sequence[jax.Array],
    rows: jax.Array,
    *,
    num_devices: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> jax.Array:
  """Checks the buffers and says where they are, or what is wrong.

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    rows: of table or gradient, for the others to read.
    num_devices: that exchange records.
    rows_per_device: of the table.
    batch_size: samples of the device.
    enable_minibatching: which layout the buffers have.

  Returns:
    u32[words].
  """
  call = jax.ffi.ffi_call(
      _PUBLISH_TARGET, jax.ShapeDtypeStruct((_RECORD_WORDS,), jnp.uint32)
  )
  return call(
      *coo,
      rows,
      num_devices=np.int64(num_devices),
      num_sc_per_device=np.int64(
          layout.num_sc_per_device_from_row_pointers(
              coo[0].size, num_devices, enable_minibatching
          )
      ),
      enable_minibatching=enable_minibatching,
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
  )


def record_of_table(table: jax.Array, *, num_devices: int) -> jax.Array:
  """Says where the table is, for lookups from ids; as `record` does."""
  call = jax.ffi.ffi_call(
      _PUBLISH_TABLE_TARGET,
      jax.ShapeDtypeStruct((_RECORD_WORDS,), jnp.uint32),
  )
  return call(table, num_devices=np.int64(num_devices))


def publish(
    records: Sequence[jax.Array], axis: mesh_axis.MeshAxis | None
) -> tuple[Sequence[jax.Array], jax.Array]:
  """Tells the others, in one message, what the records of this device say.

  What is wrong with buffers is told to devices along other axes as well, which
  may wait for this one. All of them then have the record that says so.

  Args:
    records: one for each stack, u32[words].
    axis: of the devices; None if there is one.

  Returns:
    For each stack the records of all devices u32[G, words]; and which device
    this is, i32[].
  """
  if axis is None:
    return [x[None] for x in records], jnp.int32(0)
  device = lax.axis_index(axis.name)
  if len(records) == 1 and not axis.others:
    return [lax.all_gather(records[0], axis.name)], device
  together = lax.all_gather(jnp.stack(records), axis.name)
  if axis.others:
    together = _or_a_failure_of(axis.others, together)
  of_stack = jax.ShapeDtypeStruct((axis.size, _RECORD_WORDS), jnp.uint32)
  split = jax.ffi.ffi_call(_SPLIT_TARGET, [of_stack] * len(records))
  return split(together), device


def _or_a_failure_of(others: Sequence[str], records: jax.Array) -> jax.Array:
  """The records; if devices along any axis have failed, one of theirs for all.

  Args:
    others: the other axes.
    records: of the devices along the axis, u32[G, stacks, words].
  """
  of_all = lax.all_gather(records, others).reshape(-1, _RECORD_WORDS)
  has_failed = of_all[:, _ERROR_WORD] != 0
  failure = of_all[jnp.argmax(has_failed)]
  return jnp.where(jnp.any(has_failed), failure, records)


def hold(
    results: Sequence[jax.Array],
    records: Sequence[jax.Array],
    device: jax.Array,
    read_by_others: Sequence[Sequence[jax.Array]],
    *waited_for: jax.Array,
    num_devices: int,
) -> Sequence[jax.Array]:
  """`results`, once `waited_for` are there; raises what a record says is wrong.

  Args:
    results: of the device.
    records: for each stack, of all devices.
    device: the number of this one.
    read_by_others: for each stack what this device published and others read:
      nothing, rows, or rows and buffers.
    *waited_for: anything.
    num_devices: that exchange records.
  """
  call = jax.ffi.ffi_call(
      _HOLD_TARGET,
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
      input_output_aliases={k: k for k in range(len(results))},
  )
  held = zip(records, read_by_others, strict=True)
  return call(
      *results,
      device,
      *(x for of_stack, read in held for x in (of_stack, *read)),
      *waited_for,
      num_devices=np.int64(num_devices),
      num_held=np.array([len(read) for read in read_by_others], np.int64),
  )
