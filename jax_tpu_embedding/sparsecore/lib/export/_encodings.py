# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows of tables as bytes: what each encoding is, in NumPy.

An encoded row is its bytes, little endian; n encoded rows are u8[n, row_bytes].

    float32, bfloat16, float16   the values
    int8     a code per column, zeros up to a multiple of 4 bytes, then float32
             scale and bias: x = code * scale + bias
    int4     two codes a byte, the first in the low half, then float16 scale and
             bias

This is the definition of the bytes (docs/reference/served_tables.md). Whatever
encodes faster takes the place of `encode`, and is tested against this.

Source: the layouts of Fused8BitRowwise (as on GPUs, which pad) and
FusedNBitRowwiseSBHalf in FBGEMM.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import jax.numpy as jnp
import numpy as np

_FLOAT16_MAX = 65504.0
# Of a row of int8, so that code * scale is finite.
_INT8_MAX_SPAN = 2.0**127
# Bytes of values that are encoded at a time: what is made of them stays in the
# second-level cache.
_TILE_BYTES = 64 * 2**10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
  """How rows are written.

  Attributes:
    name: of the encoding.
    tensor_type: that of the tensor in a file of safetensors.
    element: NumPy's type of an element of that tensor.
    row_bytes: columns -> bytes of a row.
    encode: finite f32[n, columns] within the limits -> u8[n, row_bytes].
    decode: (u8[n, row_bytes], columns) -> f32[n, columns].
    is_exact: whether decoded float32 rows are what was encoded.
    max_value: the largest magnitude that can be encoded.
    max_span: the largest difference of two values of a row.
  """

  name: str
  tensor_type: str
  element: np.dtype
  row_bytes: Callable[[int], int]
  encode: Callable[[np.ndarray], np.ndarray]
  decode: Callable[[np.ndarray, int], np.ndarray]
  is_exact: bool = False
  max_value: float = float(np.finfo(np.float32).max)
  max_span: float = np.inf

  def row_elements(self, columns: int) -> int:
    """Elements of a row in the tensor of a file."""
    return self.row_bytes(columns) // self.element.itemsize


@dataclasses.dataclass(frozen=True)
class EncodedRows:
  """Encoded rows, and what was lost.

  Attributes:
    rows: u8[n, row_bytes]; what is at rows that cannot be encoded is undefined.
    max_error: the largest difference of a decoded value.
    squared_error: the sum of the squares of all.
    refused: bool[n], rows that cannot be encoded; None if all can be.
  """

  rows: np.ndarray
  max_error: float
  squared_error: float
  refused: np.ndarray | None = None


def encode(
    encoding: Encoding, values: np.ndarray, *, measure: bool = True
) -> EncodedRows:
  """Encodes rows [n, columns] of float32, bfloat16 or float16.

  Args:
    encoding: of the rows.
    values: the rows.
    measure: whether to decode them for the errors, which are 0 otherwise.
  """
  num_rows, columns = values.shape
  rows = np.empty((num_rows, encoding.row_bytes(columns)), np.uint8)
  refused = np.zeros(num_rows, bool)
  max_error = squared_error = 0.0
  per_tile = max(1, _TILE_BYTES // (4 * columns))
  for first in range(0, num_rows, per_tile):
    tile = slice(first, first + per_tile)
    part = values[tile].astype(np.float32, copy=False)
    is_bad = refused_rows(encoding, part)
    if is_bad is not None:
      refused[tile] = is_bad
      part = np.where(is_bad[:, None], np.float32(0), part)
    rows[tile] = encoding.encode(part)
    if measure and not encoding.is_exact:
      lost = np.subtract(encoding.decode(rows[tile], columns), part)
      largest = max(float(lost.max()), -float(lost.min()))
      max_error = max(max_error, largest)
      flat = lost.ravel()
      # Squares of float32 that are too large, or too small to count.
      exact = flat if 1e-15 < largest < 1e15 else flat.astype(np.float64)
      squared_error += float(np.dot(exact, exact))
  return EncodedRows(
      rows, max_error, squared_error, refused if refused.any() else None
  )


def refused_rows(encoding: Encoding, values: np.ndarray) -> np.ndarray | None:
  """bool[n]: rows with values that cannot be encoded; None if there is none."""
  # NaN if there is one.
  smallest, largest = float(values.min()), float(values.max())
  if (
      -smallest <= encoding.max_value
      and largest <= encoding.max_value
      and largest - smallest <= encoding.max_span
  ):
    return None
  smallest = values.min(axis=1).astype(np.float64)
  largest = values.max(axis=1).astype(np.float64)
  with np.errstate(invalid="ignore"):
    is_bad = ~(
        (-smallest <= encoding.max_value)
        & (largest <= encoding.max_value)
        & (largest - smallest <= encoding.max_span)
    )
  return is_bad if is_bad.any() else None


def _bytes_of(values: np.ndarray) -> np.ndarray:
  return values.view(np.uint8).reshape(len(values), -1)


def _as_type(dtype: np.dtype) -> dict[str, object]:
  """The parts of an encoding that is a conversion to a type."""

  def decode_values(rows, columns):
    del columns
    return np.ascontiguousarray(rows).view(dtype).astype(np.float32)

  return dict(
      element=dtype,
      row_bytes=lambda columns: columns * dtype.itemsize,
      encode=lambda values: _bytes_of(
          np.ascontiguousarray(values).astype(dtype)
      ),
      decode=decode_values,
  )


def _padded(columns: int) -> int:
  return -(-columns // 4) * 4


def _int8_encode(values: np.ndarray) -> np.ndarray:
  num_rows, columns = values.shape
  rows = np.zeros((num_rows, _padded(columns) + 8), np.uint8)
  bias = values.min(axis=1, keepdims=True)
  largest = values.max(axis=1, keepdims=True)
  span = largest - bias
  with np.errstate(over="ignore", divide="ignore"):
    inverse = np.float32(255) / span
  # Of one value, or of values too close to divide by.
  is_constant = np.isinf(inverse)
  codes = np.subtract(values, bias)
  codes *= np.where(is_constant, np.float32(0), inverse)
  scale = np.where(is_constant, np.float32(1), span / np.float32(255))
  np.rint(codes, out=codes)
  np.clip(codes, 0, 255, out=codes)
  rows[:, :columns] = codes
  rows[:, -8:-4] = scale.view(np.uint8)
  rows[:, -4:] = bias.view(np.uint8)
  return rows


def _int8_decode(rows: np.ndarray, columns: int) -> np.ndarray:
  scale, bias = np.ascontiguousarray(rows[:, -8:]).view("<f4").T[..., None]
  return rows[:, :columns].astype(np.float32) * scale + bias


def _int4_encode(values: np.ndarray) -> np.ndarray:
  num_rows, columns = values.shape
  packed = -(-columns // 2)
  rows = np.zeros((num_rows, packed + 4), np.uint8)
  smallest = values.min(axis=1, keepdims=True)
  bias = smallest.astype(np.float16)
  bias = np.where(
      bias > smallest, np.nextafter(bias, np.float16(-np.inf)), bias
  )
  span = values.max(axis=1, keepdims=True) - bias.astype(np.float32)
  step = span / np.float32(15)
  scale = step.astype(np.float16)
  scale = np.where(scale < step, np.nextafter(scale, np.float16(np.inf)), scale)
  tiny = np.finfo(np.float16).smallest_subnormal
  scale = np.where((scale == 0) & (span > 0), tiny, scale)
  scale = np.where(span == 0, np.float16(1), scale)
  codes = (values - bias.astype(np.float32)) / scale.astype(np.float32)
  np.rint(codes, out=codes)
  np.clip(codes, 0, 15, out=codes)
  codes = codes.astype(np.uint8)
  rows[:, :packed] = codes[:, ::2]
  rows[:, : columns // 2] |= codes[:, 1::2] << 4
  rows[:, -4:-2] = scale.view(np.uint8)
  rows[:, -2:] = bias.view(np.uint8)
  return rows


def _int4_decode(rows: np.ndarray, columns: int) -> np.ndarray:
  scale, bias = np.ascontiguousarray(rows[:, -4:]).view("<f2").T[..., None]
  packed = rows[:, :-4]
  codes = np.stack([packed & 15, packed >> 4], axis=-1)
  codes = codes.reshape(len(rows), -1)[:, :columns].astype(np.float32)
  return codes * scale.astype(np.float32) + bias.astype(np.float32)


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        Encoding(
            name="float32",
            tensor_type="F32",
            is_exact=True,
            **_as_type(np.dtype("<f4")),
        ),
        Encoding(
            name="bfloat16",
            tensor_type="BF16",
            # Half a unit more becomes infinity.
            max_value=float(np.uint32(0x7F7F7FFF).view(np.float32)),
            **_as_type(np.dtype(jnp.bfloat16)),
        ),
        Encoding(
            name="float16",
            tensor_type="F16",
            max_value=float(np.nextafter(np.float32(65520), np.float32(0))),
            **_as_type(np.dtype("<f2")),
        ),
        Encoding(
            name="int8",
            tensor_type="U8",
            element=np.dtype(np.uint8),
            row_bytes=lambda columns: _padded(columns) + 8,
            encode=_int8_encode,
            decode=_int8_decode,
            max_span=_INT8_MAX_SPAN,
        ),
        Encoding(
            name="int4",
            tensor_type="U8",
            element=np.dtype(np.uint8),
            row_bytes=lambda columns: -(-columns // 2) + 4,
            encode=_int4_encode,
            decode=_int4_decode,
            max_value=_FLOAT16_MAX,
        ),
    )
}
