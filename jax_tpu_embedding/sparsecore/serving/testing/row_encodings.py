# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows to bytes in NumPy, from the format's formulas alone."""

from __future__ import annotations

import numpy as np


def _to_float16(values: np.ndarray, up: bool) -> np.ndarray:
  """Rounded up, or down."""
  nearest = values.astype(np.float16)
  widened = nearest.astype(np.float32)
  wrong = widened < values if up else widened > values
  towards = np.float16(np.inf if up else -np.inf)
  return np.where(wrong, np.nextafter(nearest, towards), nearest)


def encode(encoding: str, values: np.ndarray) -> np.ndarray:
  """float32[n, D] as uint8[n, bytes of a row]; all must be representable."""
  values = np.ascontiguousarray(values, np.float32)
  n, columns = values.shape
  if encoding == "float32":
    return values.view(np.uint8)
  if encoding == "float16":
    return values.astype("<f2").view(np.uint8)
  if encoding == "bfloat16":
    bits = values.view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return upper.astype("<u2").view(np.uint8)
  low = values.min(1, keepdims=True) + np.float32(0)
  high = values.max(1, keepdims=True)
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    if encoding == "int8":
      inverse = np.float32(255) / (high - low)
      usable = (high > low) & np.isfinite(inverse)
      scale = np.where(usable, (high - low) / np.float32(255), np.float32(1))
      codes = (values - low) * np.where(usable, inverse, np.float32(0))
      codes = np.clip(np.rint(codes), 0, 255).astype(np.uint8)
      codes = np.pad(codes, ((0, 0), (0, -columns % 4)))
      scaling = np.concatenate([scale, low], 1).astype("<f4")
    else:
      bias = _to_float16(low, up=False)
      wide_bias = bias.astype(np.float32)
      step = (high - wide_bias) / np.float32(15)
      scale = _to_float16(step, up=True)
      scale = np.where(step == 0, np.float16(2**-24), scale)
      scale = np.where(high > wide_bias, scale, np.float16(1))
      codes = (values - wide_bias) / scale.astype(np.float32)
      codes = np.clip(np.rint(codes), 0, 15).astype(np.uint8)
      codes = np.pad(codes, ((0, 0), (0, columns % 2)))
      codes = codes[:, ::2] | codes[:, 1::2] << 4
      scaling = np.concatenate([scale, bias], 1).astype("<f2")
  return np.concatenate([codes, scaling.view(np.uint8).reshape(n, -1)], 1)
