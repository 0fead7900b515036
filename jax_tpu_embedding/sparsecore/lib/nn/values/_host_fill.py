# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A variable of a stack that is put together in the memory of the host.

For CPU devices, whose memory that is. XLA needs a program for each shape of a
stack, NumPy none: a model with a thousand tables of a thousand sizes runs the
few programs that make blocks of rows (_table_blocks.py), and nothing else is
compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _memory_check
from jax_tpu_embedding.sparsecore.lib.nn.values import _table_blocks
import numpy as np

# The variable is twice in memory for a moment, beside what blocks are made of:
# up to 56 MiB in all.
_MAX_BYTES = 32 * 2**20
# Of memory that JAX takes as it is, whatever `may_alias` says.
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class ConstantRows:
  """A table whose rows, and padding, have one value."""

  table: _placement.TablePlacement
  value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFill:
  """What makes a variable, if it is small enough; see `is_for`."""

  placement: _placement.StackPlacement
  parts: Sequence[_table_blocks.TableBlocks | ConstantRows]
  stack: jax.ShapeDtypeStruct
  # Of the stack; None: not committed to a device.
  sharding: jax.sharding.Sharding | None

  @property
  def _blocks(self) -> list[_table_blocks.TableBlocks]:
    return [
        part
        for part in self.parts
        if isinstance(part, _table_blocks.TableBlocks)
    ]

  @property
  def programs(self) -> list[Any]:
    return [blocks.program for blocks in self._blocks]

  def lower(self) -> list[jax.stages.Lowered]:
    return [
        _table_blocks.lower(blocks.program, blocks.operands)
        for blocks in self._blocks
    ]

  def run(
      self, programs: Sequence[Callable[..., jax.Array]], stack: None
  ) -> jax.Array:
    """The variable.

    Args:
      programs: what to run: self.programs, or those compiled.
      stack: nothing; a HostFill makes the whole variable.
    """
    del stack
    shards = _Shards(self.placement, self.stack, self.sharding)
    programs = iter(programs)
    for part in self.parts:
      rows = self.placement.rows_of(part.table)
      if isinstance(part, ConstantRows):
        shards.set(rows, part.value)
        continue
      program = next(programs)
      for first in part.first_rows:
        begin = rows.start + first
        shards.copy(
            slice(begin, begin + part.num_rows), part.make(program, first)
        )
    return shards.to_jax()

  def bytes_at_most(self, needs: Sequence[int]) -> int:
    """What a device needs while the variable is made, itself included.

    Args:
      needs: of each of the programs.
    """
    own = _memory_check.bytes_on_device(self.stack)
    return own + max([own, *needs])


def is_for(stack: jax.ShapeDtypeStruct, devices: Sequence[Any]) -> bool:
  """Whether a HostFill can make a variable.

  Args:
    stack: the shape and type of the variable.
    devices: that share it.
  """
  num_bytes = math.prod(stack.shape) * np.dtype(stack.dtype).itemsize
  return num_bytes <= _MAX_BYTES and is_memory_of(devices)


def is_memory_of(devices: Sequence[Any]) -> bool:
  """Whether the memory of the devices is that of the host."""
  return all(getattr(device, "platform", None) == "cpu" for device in devices)


def _to_be_copied(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  """Zeros that device_put copies.

  Memory that is NumPy's cannot be given to a program that writes in place: the
  first step would copy the table.
  """
  num_bytes = math.prod(shape) * dtype.itemsize
  memory = np.zeros(num_bytes + 2 * _ALIGNMENT, np.uint8)
  begin = -memory.ctypes.data % _ALIGNMENT + dtype.itemsize
  return memory[begin : begin + num_bytes].view(dtype).reshape(shape)


class _Shards:
  """The rows of this process's devices, as arrays of NumPy."""

  def __init__(
      self,
      placement: _placement.StackPlacement,
      stack: jax.ShapeDtypeStruct,
      sharding: jax.sharding.Sharding | None,
  ):
    self._stack, self._sharding = stack, sharding
    self._columns = placement.embedding_dim
    # Of each device, in the order of shards: [its shards, rows, columns].
    self._parts: dict[Any, np.ndarray] = {}
    devices = [None]
    if sharding is not None:
      devices = list(sharding.addressable_devices_indices_map(stack.shape))
    rows = placement.num_rows
    if sharding is not None:
      rows = math.prod(sharding.shard_shape(stack.shape)[:-1])
    for device in devices:
      self._parts[device] = _to_be_copied(
          (
              rows // placement.rows_in_shard,
              placement.rows_in_shard,
              self._columns,
          ),
          np.dtype(stack.dtype),
      )

  def set(self, rows: slice, value: float) -> None:
    """Sets rows of each shard to one value."""
    for part in self._parts.values():
      part[:, rows] = value

  def copy(self, rows: slice, block: jax.Array) -> None:
    """Copies a block's first rows of each shard to `rows` of it."""
    num_rows = rows.stop - rows.start
    for shard in block.addressable_shards:
      device = None if self._sharding is None else shard.device
      self._parts[device][:, rows] = np.asarray(shard.data)[:, :num_rows]

  def to_jax(self) -> jax.Array:
    if self._sharding is None:
      values = self._parts[None].reshape(self._stack.shape)
      return jax.device_put(values, may_alias=False)
    shape = self._sharding.shard_shape(self._stack.shape)
    return jax.make_array_from_single_device_arrays(
        self._stack.shape,
        self._sharding,
        [
            jax.device_put(part.reshape(shape), device, may_alias=False)
            for device, part in self._parts.items()
        ],
    )
