# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A row in the memory of a subcore, as registers of float32.

A register has one number for each lane. Numbers of 16 bits are read two to a
lane, and become two registers: of even columns, and of odd ones. Codes of 8
bits (quantized_rows.py) become four. So that all arrays of a kernel agree,
those of float32 are then read in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import float16_bits
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores

Register = Any  # [lanes]


@dataclasses.dataclass(frozen=True)
class Columns:
  """Which columns of a row are in which register."""

  dim: int  # D
  lanes: int
  packing: int = 1  # numbers in 32 bits of the array that has most: 1, 2 or 4

  def __post_init__(self):
    if self.packing > 1 and self.dim % self.per_load:
      raise subcores.NotTaken(
          f"Rows of {self.dim} numbers of {32 // self.packing} bits are not in"
          f" whole registers of {self.per_load}. Use a multiple of"
          f" {self.per_load} columns."
      )

  @property
  def per_load(self) -> int:
    """How many columns are read at once."""
    return self.packing * self.lanes

  def width_of_windows(self, most_registers: int) -> int:
    """A number of columns that divides D, in at most so many registers.

    D itself if its last register is not full.
    """
    loads, rest = divmod(self.dim, self.per_load)
    if rest:
      return self.dim
    most_loads = most_registers * self.lanes // self.per_load
    return self.per_load * max(
        n for n in range(1, loads + 1) if loads % n == 0 and n <= most_loads
    )

  def numbers(self, first: Any, width: int) -> list[Register]:
    """i32[lanes], the columns of each register of a window.

    Args:
      first: column, a multiple of `width`.
      width: of the window. The last register may have columns beyond it.
    """
    lane = jax.lax.iota(jnp.int32, self.lanes)
    return [
        first + c + self.packing * lane + part
        for c in range(0, width, self.per_load)
        for part in range(self.packing)
    ]

  def is_full(self, width: int) -> bool:
    """Whether all registers of a window have columns of it alone."""
    return width % self.per_load == 0

  def read(self, ref: Any, row: Any, first: Any, width: int) -> list[Register]:
    """Columns first .. first + width of a row, as float32.

    Args:
      ref: [rows, D], f32 or of 16 bits.
      row: i32[], number.
      first: column, a multiple of `width`.
      width: of the window.
    """
    registers = []
    for c in range(0, width, self.per_load):
      if ref.dtype.itemsize == 2:
        registers += _unpack(ref[row, pl.ds(first + c, 2 * self.lanes)])
      elif self.packing > 1 or c + self.lanes > width:
        registers += [
            self._gather(ref, row, columns)
            for columns in self._of_load(first, c)
        ]
      else:
        registers.append(ref[row, pl.ds(first + c, self.lanes)])
    return registers

  def read_int8(
      self, ref: Any, row: Any, first: Any, width: int
  ) -> list[Register]:
    """`read` of a row of quantized_rows.py.

    Args:
      ref: i32[rows, W].
      row: i32[], number.
      first: column, a multiple of `width`.
      width: of the window.
    """
    num_words, words_of_codes = ref.shape[1], self.dim // 4
    # Scale and bias are before the end of a row, in its last whole register.
    begin = num_words - self.lanes
    last = ref[row, pl.ds(begin, self.lanes)]
    last = jax.lax.bitcast_convert_type(last, jnp.float32)
    scale, bias = (last[words_of_codes - begin + i] for i in (0, 1))
    registers = []
    for c in range(0, width, self.per_load):
      place = c // 4 + jax.lax.div(jnp.int32(first), jnp.int32(4))
      words = ref[row, pl.ds(place, self.lanes)]
      for part in range(4):
        code = jax.lax.shift_right_logical(
            words, jnp.full_like(words, 8 * part)
        )
        code = (code & 0xFF).astype(jnp.float32)
        registers.append(code * scale + bias)
    return registers

  def write(
      self,
      ref: Any,
      row: Any,
      first: Any,
      width: int,
      registers: Sequence[Register],
  ) -> None:
    """The reverse of `read`; numbers fit into those of `ref`."""
    registers = iter(registers)
    for c in range(0, width, self.per_load):
      if ref.dtype.itemsize == 2:
        ref[row, pl.ds(first + c, 2 * self.lanes)] = _pack(
            next(registers), next(registers), ref.dtype
        )
      elif self.packing > 1 or c + self.lanes > width:
        for columns in self._of_load(first, c):
          plsc.store_scatter(
              ref,
              [jnp.full((self.lanes,), row), columns],
              next(registers),
              mask=self._mask(columns),
          )
      else:
        ref[row, pl.ds(first + c, self.lanes)] = next(registers)

  def _gather(self, ref, row, columns):
    """Columns of a row; 0 for those that are none."""
    mask = self._mask(columns)
    place = [jnp.full((self.lanes,), row), columns]
    x = plsc.load_gather(ref, place, mask=mask)
    return x if mask is None else jnp.where(mask, x, jnp.zeros_like(x))

  def _of_load(self, first, c):
    """Columns of the registers that one load is."""
    return self.numbers(first + c, self.per_load)

  def _mask(self, columns):
    return None if self.is_full(self.dim) else columns < self.dim


def _unpack(x: jax.Array) -> list[Register]:
  """Even and odd numbers of 16 bits, as float32."""
  if x.dtype == jnp.bfloat16:
    return list(
        plsc.unpack(
            x,
            format=plsc.PackFormat.INTERLEAVED,
            preferred_element_type=jnp.float32,
        )
    )
  words = plsc.bitcast(x, jnp.int32)
  odd = jax.lax.shift_right_logical(words, jnp.full_like(words, 16))
  return [float16_bits.to_float32(words & 0xFFFF), float16_bits.to_float32(odd)]


def _pack(even: Register, odd: Register, dtype: Any) -> jax.Array:
  """Two registers of numbers that are of 16 bits, as one."""
  if dtype == jnp.bfloat16:
    return plsc.pack(
        even,
        odd,
        format=plsc.PackFormat.INTERLEAVED,
        preferred_element_type=jnp.bfloat16,
    )
  words = float16_bits.of_float32(even) | (float16_bits.of_float32(odd) << 16)
  return plsc.bitcast(words, dtype)
