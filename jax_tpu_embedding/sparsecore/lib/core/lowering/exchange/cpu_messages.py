# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The steps of messages.py on a CPU, by native custom calls (cc/kernels).

They read and write blocks where they are, in linear passes. Corrupt buffers of
one device fail on none, since the others would wait for it: they are what
corrupt_buffers.py makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
import numpy as np

_LOOKUP_FETCHED_TARGET = "jte_lookup_fetched_cpu"
_PACK_MESSAGES_TARGET = "jte_pack_messages_cpu"
_READ_ROWS_TARGET = "jte_read_rows_cpu"
_SUM_GRADIENTS_TARGET = "jte_sum_gradients_cpu"


class _Entries(NamedTuple):
  """As kernels/exchange/messages.h has them."""

  row_pointers: jax.Array  # i32[max(G, 8)]
  places: jax.Array  # i32[B]: the owner above the place in the request
  samples: jax.Array  # i32[B], in the device's batch
  gains: jax.Array  # f32[B]


def pack(
    coo: Sequence[jax.Array],
    topology: layout.Topology,
    *,
    block_size: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> tuple[messages.Blocks, _Entries]:
  """messages.pack."""
  num_devices = topology.global_device_count
  num_cells = layout.round_up(coo[1].size, constants.ALIGNMENT)
  entries = _Entries(
      row_pointers=_vector(layout.row_pointers_per_block(num_devices)),
      places=_vector(num_cells),
      samples=_vector(num_cells),
      gains=jax.ShapeDtypeStruct((num_cells,), jnp.float32),
  )
  results = jax.ffi.ffi_call(
      _PACK_MESSAGES_TARGET,
      [*entries, *[_vector(block_size)] * num_devices],
  )(
      *coo,
      num_sc_per_device=np.int64(topology.num_sc_per_device),
      enable_minibatching=enable_minibatching,
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
  )
  return results[len(entries) :], _Entries(*results[: len(entries)])


def _vector(size: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((size,), jnp.int32)


def read_rows(table: jax.Array, wanted: messages.Blocks) -> messages.Blocks:
  """messages.read_rows."""
  shape = (wanted[0].size, table.shape[1])
  return _blocks_to_send(
      _READ_ROWS_TARGET,
      len(wanted),
      jax.ShapeDtypeStruct(shape, table.dtype),
      table,
      *wanted,
  )


def look_up(
    entries: _Entries, fetched: messages.Blocks, params: dict[str, Any]
) -> jax.Array:
  """messages.look_up."""
  shape = (params["device_batch_size"], fetched[0].shape[1])
  return jax.ffi.ffi_call(
      _LOOKUP_FETCHED_TARGET, jax.ShapeDtypeStruct(shape, jnp.float32)
  )(
      *entries,
      *fetched,
      quantization=np.array(
          params.get("quantization_config") or (), np.float64
      ),
  )


def sum_gradients(
    entries: _Entries, gradient: jax.Array, block_size: int, num_devices: int
) -> messages.Blocks:
  """messages.sum_gradients."""
  shape = (block_size, gradient.shape[1])
  return _blocks_to_send(
      _SUM_GRADIENTS_TARGET,
      num_devices,
      jax.ShapeDtypeStruct(shape, jnp.float32),
      *entries,
      gradient,
  )


def _blocks_to_send(
    target: str,
    num_devices: int,
    block: jax.ShapeDtypeStruct,
    *operands: jax.Array,
) -> messages.Blocks:
  """What `target` makes for each device.

  It has as many results again, which stand for what comes from the others: see
  cc/ffi/messages_ffi.cc.
  """
  results = jax.ffi.ffi_call(target, [block] * (2 * num_devices))(*operands)
  return results[:num_devices]


def step_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    wanted: messages.Blocks,
    received: messages.Blocks,
    params: dict[str, Any],
) -> Sequence[jax.Array]:
  """messages.step_rows."""
  return cpu_calls.update_received(rule, operands, params, wanted, received)


def sum_rows(
    rows: messages.Blocks, values: messages.Blocks, num_results: int
) -> Sequence[jax.Array]:
  """messages.sum_rows."""
  terms = itertools.chain.from_iterable(zip(rows, values, strict=True))
  return cpu_calls.sum_rows(list(terms), num_results)
