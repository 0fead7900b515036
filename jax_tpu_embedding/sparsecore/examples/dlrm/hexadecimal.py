# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Columns of hexadecimal numbers of up to eight digits, a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUM_DIGITS = 8


def _two_digits() -> np.ndarray:
  """The digits of each byte as text: u8[256, 2]."""
  return np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(
      256, 2
  )


def _bytes_of_digits() -> np.ndarray:
  """The byte of each two characters, -1 where one is no digit: i16[65536]."""
  table = np.full(1 << 16, -1, np.int16)
  values = np.full(256, -1, np.int16)
  values[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
  values[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
  characters = np.nonzero(values >= 0)[0]
  for high in characters:
    # As two adjacent bytes are read on a little-endian machine.
    table[high + 256 * characters] = 16 * values[high] + values[characters]
  return table


_ENCODE = _two_digits()
_DECODE = _bytes_of_digits()


def encode(numbers: np.ndarray) -> pa.StringArray:
  """Eight digits per number, null for negative ones.

  Args:
    numbers: i64[n], below 2^32.
  """
  n = len(numbers)
  digits = _ENCODE[numbers.astype(">u4").view(np.uint8)]
  offsets = np.arange(0, NUM_DIGITS * n + 1, NUM_DIGITS, dtype=np.int32)
  is_valid = np.packbits(numbers >= 0, bitorder="little")
  return pa.StringArray.from_buffers(
      n, pa.py_buffer(offsets), pa.py_buffer(digits), pa.py_buffer(is_valid)
  )


def decode(column: pa.StringArray) -> np.ndarray:
  """The numbers, i64[n]; -1 for empty text.

  Raises:
    ValueError: some text is no number of up to eight digits.
  """
  n = len(column)
  num_digits = pc.binary_length(column).to_numpy()
  if n and num_digits.max() > NUM_DIGITS:
    raise ValueError(f"more than {NUM_DIGITS} digits")
  padded = pc.ascii_lpad(column, NUM_DIGITS, "0")
  text = np.frombuffer(padded.buffers()[2] or b"", "<u2", NUM_DIGITS // 2 * n)
  numbers = _DECODE[text]
  if n and numbers.min() < 0:
    raise ValueError("not a hexadecimal number")
  numbers = numbers.astype(np.uint8).view(">u4").astype(np.int64)
  numbers[num_digits == 0] = -1
  return numbers
