# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The steps of messages.py on a CPU, by native custom calls (cc/kernels).

They read and write blocks where they are, in linear passes; the update is
cpu.update. Corrupt buffers of one device fail on none, since the others would
wait for it: they are what corrupt_buffers.py makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device
import numpy as np

_LOOKUP_FETCHED_TARGET = "jte_lookup_fetched_cpu"
_PACK_MESSAGES_TARGET = "jte_pack_messages_cpu"
_READ_ROWS_TARGET = "jte_read_rows_cpu"
_SUM_GRADIENTS_TARGET = "jte_sum_gradients_cpu"


class _Entries(NamedTuple):
  """As kernels/messages.h has them."""

  row_pointers: jax.Array  # i32[max(G, 8)]
  slots: jax.Array  # i32[B]: the owner above the place in the request
  samples: jax.Array  # i32[B], in the device's batch
  gains: jax.Array  # f32[B]


def _pack(
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
      slots=_vector(num_cells),
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


def _read_rows(table: jax.Array, wanted: messages.Blocks) -> messages.Blocks:
  """messages.read_rows."""
  shape = (wanted[0].size, table.shape[1])
  return _blocks_to_send(
      _READ_ROWS_TARGET,
      len(wanted),
      jax.ShapeDtypeStruct(shape, table.dtype),
      table,
      *wanted,
  )


def _look_up(
    avals_out: Sequence[jax.core.ShapedArray],
    entries: _Entries,
    fetched: messages.Blocks,
    params: dict[str, Any],
) -> list[jax.Array]:
  """The lookup, once rows are here."""
  (activations,) = avals_out
  return jax.ffi.ffi_call(
      _LOOKUP_FETCHED_TARGET,
      [jax.ShapeDtypeStruct(activations.shape, activations.dtype)],
  )(
      *entries,
      *fetched,
      quantization=np.array(
          params.get("quantization_config") or (), np.float64
      ),
  )


def _sum_gradients(
    entries: _Entries, gradient: jax.Array, block_size: int, num_devices: int
) -> messages.Blocks:
  """The gradients of slots, summed over entries."""
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


def _step_rows(
    rule: one_device.LoweringRule,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    wanted: messages.Blocks,
    received: messages.Blocks,
    params: dict[str, Any],
    *,
    gradient_operand: int,
) -> list[jax.Array]:
  """messages.step_rows, by a rule that takes what was sent: cpu.update."""
  del gradient_operand
  return one_device.call(
      rule,
      avals_out,
      *operands,
      *wanted,
      *received,
      num_senders=len(wanted),
      **params,
  )


STEPS = messages.Steps(
    pack=_pack,
    read_rows=_read_rows,
    look_up=_look_up,
    sum_gradients=_sum_gradients,
    step_rows=_step_rows,
)
