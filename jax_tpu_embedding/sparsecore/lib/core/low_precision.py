# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rounding of float32 to the types that tables may have, if wanted at random.

Steps smaller than half a unit in the last place of a row would be lost by
rounding to nearest; rounding up or down at random, with probabilities such that
the mean is the value, keeps them on average.

The random bits depend on a seed and on the place in the whole table only: not
on the number of devices, of threads, or on the order of rows.

Source: docs/reference/primitives.md, "Low precision"; the finalizer is that of
MurmurHash3 (Appleby).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

# What a table may be. Slots, gradients and arithmetic are float32.
TABLE_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def round_to(
    values: jax.Array, dtype: np.typing.DTypeLike, bits: jax.Array | None
) -> jax.Array:
  """`values` in one of TABLE_DTYPES.

  Args:
    values: f32[...].
    dtype: of the result.
    bits: u32[...], random, to round up or down with; None for rounding to the
      nearest value, ties to even. Then NaN and infinity stay what they are, and
      what is finite stays finite: at most the largest value of the type.
  """
  if bits is None:
    return values.astype(dtype)
  at_random = {jnp.bfloat16: _to_bfloat16, jnp.float16: _to_float16}
  rounded = at_random[jnp.dtype(dtype).type](values, bits >> 16)
  return jnp.where(jnp.isfinite(values), rounded, values.astype(dtype))


def random_bits(seed: jax.Array, row: jax.Array, num_columns: int) -> jax.Array:
  """Bits for every column of some rows.

  Args:
    seed: u32[].
    row: integers[n], in the table as a whole.
    num_columns: D.

  Returns:
    u32[n, D].
  """
  row = row.astype(jnp.uint32)[:, None] * np.uint32(0x9E3779B1)
  column = jnp.arange(num_columns, dtype=jnp.uint32)
  return _mix(seed ^ _mix(row + column))


def _mix(x: jax.Array) -> jax.Array:
  """Every bit of the result depends on every bit of `x`, u32[...]."""
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _to_bfloat16(values, noise):
  """A bfloat16 is the upper half of a float32, whose lower half may carry."""
  raw = jax.lax.bitcast_convert_type(values, jnp.uint32)
  upper = (raw + noise) >> 16
  is_infinite = (upper & 0x7FFF) == 0x7F80
  upper = (upper - is_infinite).astype(jnp.uint16)
  return jax.lax.bitcast_convert_type(upper, jnp.bfloat16)


def _to_float16(values, noise):
  """floor(|value| / ulp + noise / 2^16) ulp, without rounding before floor."""
  magnitude = jnp.abs(values)
  exponent = jax.lax.bitcast_convert_type(magnitude, jnp.int32) >> 23
  exponent = jnp.maximum(exponent, 127 - 14)  # below it, all ulps are 2^-24
  ulp = jax.lax.bitcast_convert_type((exponent - 10) << 23, jnp.float32)
  one_by_ulp = jax.lax.bitcast_convert_type(
      (2 * 127 + 10 - exponent) << 23, jnp.float32
  )
  units = magnitude * one_by_ulp  # exact, as are both sides of the comparison
  whole = jnp.floor(units)
  carry = units - whole >= 1 - noise.astype(jnp.float32) * np.float32(2**-16)
  largest = jnp.float32(jnp.finfo(jnp.float16).max)
  rounded = jnp.minimum((whole + carry) * ulp, largest)
  return jnp.copysign(rounded, values).astype(jnp.float16)
