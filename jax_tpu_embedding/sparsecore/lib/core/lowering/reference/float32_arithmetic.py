# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Float32 arithmetic that is rounded as IEEE 754 says, on any platform.

What XLA makes of a float32 operation depends on the platform: CPUs flush
subnormal numbers to zero, GPUs approximate divisions and square roots, and both
turn divisions into multiplications by reciprocals. Here float64 does the work.
It has more than twice the digits, so that rounding its result once more, to
float32, gives the float32 result, also if its own last digit is wrong.

Functions take and return f32 arrays of one shape, and must be traced with
64-bit types enabled: `with jax.enable_x64(True)`. TPUs have float64 in software
and without subnormal numbers; all else holds there too.

Source: IEEE 754-2019, section 5.4; Figueroa, "When is double rounding
innocuous?", SIGNUM Newsletter 30(3), 1995.
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp

_LEAST_NORMAL = 2.0**-126
_SIGN_BIT = -(2**31)


def add(a: jax.Array, b: jax.Array) -> jax.Array:
  return _narrow(_widen(a) + _widen(b))


def add_square(total: jax.Array, x: jax.Array) -> jax.Array:
  """total + x * x, rounded to float64 and then to float32.

  The square itself is exact in float64.
  """
  x = _widen(x)
  return _narrow(_widen(total) + x * x)


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
  return _narrow(_widen(a) / _widen(b))


def divide_or_zero(a: jax.Array, b: jax.Array) -> jax.Array:
  """a / b; zero where b is zero."""
  b = _widen(b)
  is_zero = b == 0
  # Divided by one instead, so that no NaN is made on the way.
  quotient = _widen(a) / jnp.where(is_zero, 1, b)
  return _narrow(jnp.where(is_zero, 0, quotient))


def sqrt(x: jax.Array) -> jax.Array:
  return _narrow(jnp.sqrt(_widen(x)))


def _widen(x: jax.Array) -> jax.Array:
  """f64 of f32, with the subnormal numbers that a conversion may flush."""
  bits = lax.bitcast_convert_type(x, jnp.int32)
  magnitude = bits & ~jnp.int32(_SIGN_BIT)
  small = magnitude.astype(jnp.float64) * 2.0**-149
  return jnp.where(
      (magnitude > 0) & (magnitude < 2**23),
      jnp.where(bits < 0, -small, small),
      x.astype(jnp.float64),
  )


def _narrow(x: jax.Array) -> jax.Array:
  """The f32 nearest to f64, subnormal ones included."""
  magnitude = jnp.abs(x)
  is_small = (magnitude > 0) & (magnitude < _LEAST_NORMAL)
  # Subnormal numbers count from zero in their bits; 2^23 of them are the least
  # normal number, as it should be.
  small = lax.round(
      jnp.where(is_small, magnitude, 0) * 2.0**149,
      lax.RoundingMethod.TO_NEAREST_EVEN,
  ).astype(jnp.int32)
  small |= jnp.where(x < 0, jnp.int32(_SIGN_BIT), 0)
  return jnp.where(
      is_small,
      lax.bitcast_convert_type(small, jnp.float32),
      x.astype(jnp.float32),
  )
