# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows of tables as bytes: what each encoding is.

An encoded row is its bytes, little endian; n encoded rows are u8[n, row_bytes].

    float32, bfloat16, float16   the values
    int8     a code per column, zeros up to a multiple of 4 bytes, then float32
             scale and bias: x = code * scale + bias
    int4     two codes a byte, the first in the low half, then float16 scale and
             bias

What is here in NumPy is the definition of the bytes
(docs/reference/served_tables.md). Where there is the native encoder of
cc/serving, `encode` calls it: the same bytes, in half of the time.

Source: the layouts of Fused8BitRowwise (as on GPUs, which pad) and
FusedNBitRowwiseSBHalf in FBGEMM.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.serving import _numpy_tables
from jax_tpu_embedding.sparsecore.serving import _versions
import numpy as np

try:
  from jax_tpu_embedding.sparsecore.serving import pybind_embedding_tables as _native
except ImportError:  # Another platform: NumPy does it.
  _native = None

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
    element: NumPy's type of an element of that tensor.
    encode: (finite f32[n, columns] within the limits, their smallest, their
      largest: f32[n, 1], of each row, if is_scaled) -> u8[n, row_bytes].
    is_scaled: whether codes depend on the smallest and largest value of a row.
    is_exact: whether decoded float32 rows are what was encoded.
    max_value: the largest magnitude that can be encoded.
    max_span: the largest difference of two values of a row.
  """

  name: str
  element: np.dtype
  encode: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
  is_scaled: bool = False
  is_exact: bool = False
  max_value: float = float(np.finfo(np.float32).max)
  max_span: float = np.inf

  @property
  def tensor_type(self) -> str:
    """That of the tensor in a file of safetensors."""
    return _versions.TENSOR_TYPES[self.name]

  def row_bytes(self, columns: int) -> int:
    return _versions.row_bytes(self.name, columns)

  def decode(self, rows: np.ndarray, columns: int) -> np.ndarray:
    """u8[n, row_bytes] -> f32[n, columns]."""
    return _numpy_tables.decode(self.name, columns, rows)

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
    encoded = _encode_natively(encoding, part)
    if encoded is None:
      encoded, part, refused[tile] = _encode_plainly(encoding, part)
    rows[tile] = encoded
    if measure and not encoding.is_exact:
      lost = np.subtract(encoding.decode(rows[tile], columns), part)
      error = max(float(lost.max()), -float(lost.min()))
      max_error = max(max_error, error)
      flat = lost.ravel()
      # Squares of float32 that are too large, or too small to count.
      exact = flat if 1e-15 < error < 1e15 else flat.astype(np.float64)
      squared_error += float(np.dot(exact, exact))
  return EncodedRows(
      rows, max_error, squared_error, refused if refused.any() else None
  )


def _encode_natively(
    encoding: Encoding, values: np.ndarray
) -> np.ndarray | None:
  """u8[n, row_bytes]; None if that cannot be done, or not of all rows."""
  if _native is None:
    return None
  rows, _, num_refused = _native.encode_rows(values, encoding.name)
  return None if num_refused else rows


def _encode_plainly(
    encoding: Encoding, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | bool]:
  """u8[n, row_bytes], the values that it has, and which rows were refused."""
  smallest, largest = _extremes(encoding, values)
  is_bad = _refused(encoding, values, smallest, largest)
  if is_bad is None:
    return encoding.encode(values, smallest, largest), values, False
  values = np.where(is_bad[:, None], np.float32(0), values)
  return (
      encoding.encode(values, *_extremes(encoding, values)),
      values,
      is_bad,
  )


def _extremes(
    encoding: Encoding, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The smallest and the largest value: of each row if codes depend on it."""
  if not encoding.is_scaled:
    return values.min(), values.max()
  # NumPy is several times faster across rows than along them.
  by_column = np.ascontiguousarray(values.T)
  # -0.0 + 0.0 is 0.0: which of the two is smaller is not defined.
  smallest = by_column.min(axis=0)[:, None] + np.float32(0)
  return smallest, by_column.max(axis=0)[:, None]


def _refused(
    encoding: Encoding,
    values: np.ndarray,
    smallest: np.ndarray,
    largest: np.ndarray,
) -> np.ndarray | None:
  """bool[n]: rows with values that cannot be encoded; None if there is none."""

  def fits(smallest, largest):
    # NaN, which an extreme is if a value is, does not.
    with np.errstate(over="ignore", invalid="ignore"):
      return (
          (-smallest <= encoding.max_value)
          & (largest <= encoding.max_value)
          & (largest - smallest <= encoding.max_span)
      )

  if np.all(fits(smallest, largest)):
    return None
  return ~fits(values.min(axis=1), values.max(axis=1))


def _as_type(dtype: np.dtype) -> dict[str, object]:
  """The parts of an encoding that is a conversion to a type."""

  def encode_values(values, *extremes):
    del extremes
    converted = np.ascontiguousarray(values).astype(dtype, copy=False)
    return converted.view(np.uint8).reshape(len(values), -1)

  return dict(
      element=dtype,
      encode=encode_values,
  )


def _int8_encode(
    values: np.ndarray, bias: np.ndarray, largest: np.ndarray
) -> np.ndarray:
  num_rows, columns = values.shape
  rows = np.zeros((num_rows, _versions.row_bytes("int8", columns)), np.uint8)
  span = largest - bias
  with np.errstate(over="ignore", divide="ignore"):
    inverse = np.float32(255) / span
  # Of one value, or of values too close to divide by.
  is_constant = np.isinf(inverse)
  codes = np.subtract(values, bias)
  codes *= np.where(is_constant, np.float32(0), inverse)
  scale = np.where(is_constant, np.float32(1), span / np.float32(255))
  # At most 255 (1 + 2^-22), and so a code without being cut off.
  rows[:, :columns] = np.rint(codes, out=codes)
  rows[:, -8:-4] = scale.view(np.uint8)
  rows[:, -4:] = bias.view(np.uint8)
  return rows


def _int4_encode(
    values: np.ndarray, smallest: np.ndarray, largest: np.ndarray
) -> np.ndarray:
  num_rows, columns = values.shape
  rows = np.zeros((num_rows, _versions.row_bytes("int4", columns)), np.uint8)
  bias = smallest.astype(np.float16)
  bias = np.where(
      bias > smallest, np.nextafter(bias, np.float16(-np.inf)), bias
  )
  span = largest - bias.astype(np.float32)
  step = span / np.float32(15)
  scale = step.astype(np.float16)
  scale = np.where(scale < step, np.nextafter(scale, np.float16(np.inf)), scale)
  tiny = np.finfo(np.float16).smallest_subnormal
  scale = np.where((scale == 0) & (span > 0), tiny, scale)
  scale = np.where(span == 0, np.float16(1), scale)
  codes = values - bias.astype(np.float32)
  codes /= scale.astype(np.float32)
  # At most 15 (1 + 2^-22), and so a code without being cut off.
  codes = np.rint(codes, out=codes).astype(np.uint8)
  rows[:, :-4] = codes[:, ::2]
  rows[:, : columns // 2] |= codes[:, 1::2] << 4
  rows[:, -4:-2] = scale.view(np.uint8)
  rows[:, -2:] = bias.view(np.uint8)
  return rows


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        Encoding(
            name="float32",
            is_exact=True,
            **_as_type(np.dtype("<f4")),
        ),
        Encoding(
            name="bfloat16",
            # Half a unit more becomes infinity.
            max_value=float(np.uint32(0x7F7F7FFF).view(np.float32)),
            **_as_type(np.dtype(jnp.bfloat16)),
        ),
        Encoding(
            name="float16",
            max_value=float(np.nextafter(np.float32(65520), np.float32(0))),
            **_as_type(np.dtype("<f2")),
        ),
        Encoding(
            name="int8",
            element=np.dtype(np.uint8),
            encode=_int8_encode,
            is_scaled=True,
            max_span=_INT8_MAX_SPAN,
        ),
        Encoding(
            name="int4",
            element=np.dtype(np.uint8),
            encode=_int4_encode,
            is_scaled=True,
            max_value=_FLOAT16_MAX,
        ),
    )
}
