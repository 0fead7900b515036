# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rounding of float32 to types of 16 bits, and the bits of a float16.

In operations that SparseCores have: there is no arithmetic of such types.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_INFINITY = np.float32(np.inf)
# 2^-24, the distance of the smallest numbers of float16.
_SMALLEST = np.float32(2.0**-24)


def round_to(x: jax.Array, dtype: Any) -> jax.Array:
  """f32 `x` rounded to the nearest number of a type, ties to even, in f32.

  Args:
    x: f32[...].
    dtype: float32, bfloat16 or float16.
  """
  dtype = jnp.dtype(dtype)
  if dtype == jnp.float32:
    return x
  if dtype == jnp.bfloat16:
    raw = _bits(x)
    half = np.int32(0x7FFF) + (_shift_right(raw, 16) & 1)
    rounded = _float((raw + half) & np.int32(-0x10000))
    return jnp.where(x == x, rounded, x)
  if dtype != jnp.float16:
    raise NotImplementedError(f"No rounding of float32 to {dtype.name}.")
  exponent = jnp.maximum(_shift_right(_bits(jnp.abs(x)), 23), 127 - 14)
  ulp = _float((exponent - 10) << 23)
  one_by_ulp = _float((2 * 127 + 10 - exponent) << 23)
  # Not by adding a large number and subtracting it: compilers leave that out.
  units = x * one_by_ulp
  whole = units.astype(jnp.int32)  # towards 0
  rest = jnp.abs(units - whole.astype(jnp.float32))
  is_up = (rest > 0.5) | ((rest == 0.5) & ((whole & 1) == 1))
  away = jnp.where(x < 0, -jnp.ones_like(whole), jnp.ones_like(whole))
  whole = whole + jnp.where(is_up, away, jnp.zeros_like(whole))
  rounded = whole.astype(jnp.float32) * ulp
  too_large = jnp.where(x > 0, _INFINITY, -_INFINITY)
  rounded = jnp.where(jnp.abs(x) < 65520, rounded, too_large)
  return jnp.where(x == x, rounded, x)


def of_float32(x: jax.Array) -> jax.Array:
  """i32[...], the 16 bits of f32 `x`, which is a number of float16."""
  raw = _bits(jnp.abs(x))
  small = (jnp.abs(x) * np.float32(2.0**24)).astype(jnp.int32)
  bits = jnp.where(
      raw < (127 - 14) << 23, small, _shift_right(raw - (112 << 23), 13)
  )
  bits = jnp.where(jnp.abs(x) < _INFINITY, bits, 0x7C00)
  bits = jnp.where(x == x, bits, 0x7E00)
  return bits | (_shift_right(_bits(x), 16) & 0x8000)


def to_float32(bits: jax.Array) -> jax.Array:
  """f32[...] of the 16 bits of a float16, i32[...]."""
  magnitude = bits & 0x7FFF
  value = _float((magnitude << 13) + (112 << 23))
  value = jnp.where(
      magnitude < 0x400, magnitude.astype(jnp.float32) * _SMALLEST, value
  )
  not_finite = _float((magnitude << 13) | (255 << 23))
  value = jnp.where(magnitude < 0x7C00, value, not_finite)
  return _float(_bits(value) | ((bits & 0x8000) << 16))


def _bits(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _float(bits: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _shift_right(x: jax.Array, count: int) -> jax.Array:
  """Of the bits, whatever the sign."""
  return jax.lax.shift_right_logical(x, jnp.full_like(x, count))
