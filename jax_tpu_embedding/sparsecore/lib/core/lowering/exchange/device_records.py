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
_RECORD_WORDS = 64  # kRecordWords in cc/ffi/device_records.h


def publish(
    axis: mesh_axis.MeshAxis | None,
    coo: Sequence[jax.Array],
    rows: jax.Array,
    *,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> tuple[jax.Array, jax.Array]:
  """Checks the buffers and tells the others where they are, or what is wrong.

  Args:
    axis: of the devices; None if there is one.
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    rows: of table or gradient, for the others to read.
    rows_per_device: of the table.
    batch_size: samples of the device.
    enable_minibatching: which layout the buffers have.

  Returns:
    The records of all devices u32[G, words], and which one this is i32[].
  """
  num_devices = 1 if axis is None else axis.size
  call = jax.ffi.ffi_call(
      _PUBLISH_TARGET, jax.ShapeDtypeStruct((_RECORD_WORDS,), jnp.uint32)
  )
  record = call(
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
  if axis is None:
    return record[None], jnp.int32(0)
  return lax.all_gather(record, axis.name), lax.axis_index(axis.name)


def publish_table(
    axis: mesh_axis.MeshAxis, table: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Tells the others where the table is, for lookups from ids.

  Returns:
    As `publish` does.
  """
  call = jax.ffi.ffi_call(
      _PUBLISH_TABLE_TARGET,
      jax.ShapeDtypeStruct((_RECORD_WORDS,), jnp.uint32),
  )
  record = call(table, num_devices=np.int64(axis.size))
  return lax.all_gather(record, axis.name), lax.axis_index(axis.name)


def hold(
    results: Sequence[jax.Array],
    records: jax.Array,
    device: jax.Array,
    *waited_for: jax.Array,
) -> list[jax.Array]:
  """`results`, once `waited_for` are there; raises what a record says is wrong.

  Args:
    results: of the device.
    records: of all devices.
    device: the number of this one.
    *waited_for: what this one published, rows first, if others read it; and
      anything else.
  """
  call = jax.ffi.ffi_call(
      _HOLD_TARGET,
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
      input_output_aliases={k: k for k in range(len(results))},
  )
  return call(
      *results,
      records,
      device,
      *waited_for,
      num_devices=np.int64(records.shape[0]),
  )
