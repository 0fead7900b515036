# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Functions of registers that SparseCores, or Pallas for them, do not have.

They are made of sums, products, exp and the bits of numbers, on every chip and
in every JAX, so that results do not depend on these: errors are a few units in
the last place. Numbers smaller than twice the smallest normal one may count as
0.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import float16_bits
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
import numpy as np

# Any: what is asked is only whether a program runs.
LANES_TO_TRY = 8

_F32 = np.float32
_INFINITY = _F32(np.inf)
_LOG_2 = math.log(2)


def sqrt(x: jax.Array) -> jax.Array:
  """By 1 / sqrt(x), and a step of Newton's method for what is left of x."""
  y = _inverse_sqrt_of_positive(x)
  root = x * y
  root = root + _F32(0.5) * y * (x - root * root)
  # It is negative if a fraction of x was flushed to 0.
  root = jnp.maximum(root, _F32(0))
  root = jnp.where((x > 0) & (x < _INFINITY), root, x)
  return jnp.where(x < 0, _nan(x), root)


def rsqrt(x: jax.Array) -> jax.Array:
  return _F32(1) / sqrt(x)


def inverse_sqrt(x: jax.Array) -> jax.Array:
  """1 / sqrt(x) without a division.

  Of positive numbers below 1.6 times the smallest normal one, whose roots are
  not computed exactly, it is a number from 4e18 to 4e19.
  """
  # The bits of 0 become those of infinity, and the reverse; a NaN is another.
  special = _float(_bits(_INFINITY) - _bits(x))
  special = jnp.where(x < 0, _nan(x), special)
  y = _inverse_sqrt_of_positive(x)
  return jnp.where((x > 0) & (x < _INFINITY), y, special)


def _inverse_sqrt_of_positive(x: jax.Array) -> jax.Array:
  """By two steps of Newton's method from a guess; the error is at most 5e-7 of it.

  The guess halves the exponent. Its error is from -3 to 3%, and its scale is the
  one with the smallest error. The constants of the steps make the errors after
  them as large above 0 as below, and take the scale back.
  """
  y = _float(0x5F1FCDCE - (_bits(x) >> 1))
  scaled = _F32(0.6477324884492871) * x
  y = y * (_F32(1.544440328413503) - scaled * y * y)
  return y * (_F32(1.6351838013234894) - scaled * y * y)


def log(x: jax.Array) -> jax.Array:
  """By the exponent, and a series for what is left, from sqrt(1/2) to sqrt(2)."""
  bits = _bits(x)
  exponent = (bits >> 23) - 127
  rest = _float((bits & 0x7FFFFF) | 0x3F800000)
  is_large = rest > _F32(math.sqrt(2))
  rest = jnp.where(is_large, rest * _F32(0.5), rest)
  exponent = (exponent + as_numbers(is_large)).astype(jnp.float32)
  series = _log_by_series((rest - 1) / (rest + 1))
  # log(2) in two parts, of which products with the exponent are exact.
  high = _F32(0.693359375)
  result = exponent * high + (series + exponent * _F32(_LOG_2 - float(high)))
  result = jnp.where(x < _INFINITY, result, x)
  result = jnp.where(x == 0, -_INFINITY, result)
  return jnp.where(x < 0, _nan(x), jnp.where(x == x, result, x))


def _log_by_series(s: jax.Array) -> jax.Array:
  """log((1 + s) / (1 - s)) for |s| up to 0.2."""
  z = s * s
  rest = z * (_F32(1 / 5) + z * (_F32(1 / 7) + z * _F32(1 / 9)))
  return _F32(2) * s + _F32(2) * s * z * (_F32(1 / 3) + rest)


def log1p(x: jax.Array) -> jax.Array:
  """log(1 + x) where 1 + x would lose nothing."""
  near = _log_by_series(x / (_F32(2) + x))
  return jnp.where(jnp.abs(x) < _F32(0.3), near, log(_F32(1) + x))


def expm1(x: jax.Array) -> jax.Array:
  """tanh(x / 2) (exp(x) + 1), where exp(x) - 1 would lose digits."""
  near = _F32(1) + x * (_F32(1 / 2) + x * (_F32(1 / 6) + x * _F32(1 / 24)))
  near = x * (near + x * x * x * x * (_F32(1 / 120) + x * _F32(1 / 720)))
  return jnp.where(jnp.abs(x) < _F32(0.25), near, jnp.exp(x) - _F32(1))


def tanh(x: jax.Array) -> jax.Array:
  t = expm1(_F32(-2) * jnp.abs(x))
  result = -t / (t + _F32(2))
  return jnp.where(x < 0, -result, result)


def logistic(x: jax.Array) -> jax.Array:
  return _F32(1) / (_F32(1) + jnp.exp(-x))


def floor(x: jax.Array) -> jax.Array:
  whole = _truncated(x)
  whole = jnp.where(whole > x, whole - _F32(1), whole)
  return jnp.where(jnp.abs(x) < _F32(2**23), whole, x)


def ceil(x: jax.Array) -> jax.Array:
  return -floor(-x)


def round_to_even(x: jax.Array) -> jax.Array:
  whole = floor(x)
  rest = x - whole
  is_odd = whole - _F32(2) * floor(whole * _F32(0.5)) > 0
  up = (rest > _F32(0.5)) | ((rest == _F32(0.5)) & is_odd)
  return jnp.where(up, whole + _F32(1), whole)


def round_half_away(x: jax.Array) -> jax.Array:
  whole = floor(jnp.abs(x))
  whole = jnp.where(jnp.abs(x) - whole >= _F32(0.5), whole + _F32(1), whole)
  return jnp.where(x < 0, -whole, whole)


def power(x: jax.Array, y: jax.Array) -> jax.Array:
  """exp(y log |x|), and the sign for whole numbers y."""
  if jnp.issubdtype(y.dtype, jnp.integer):
    y = y.astype(jnp.float32)
  result = jnp.exp(y * log(jnp.abs(x)))
  is_odd = y - _F32(2) * floor(y * _F32(0.5)) == _F32(1)
  signed = jnp.where(is_odd, -result, result)
  not_whole = jnp.where(x == -_INFINITY, result, _nan(x))
  signed = jnp.where(floor(y) == y, signed, not_whole)
  result = jnp.where(x < 0, signed, result)
  return jnp.where(y == 0, jnp.ones_like(x), result)


def integer_power(x: jax.Array, exponent: int) -> jax.Array:
  """By products."""
  if exponent < 0:
    return _F32(1) / integer_power(x, -exponent)
  result = None
  while exponent:
    if exponent & 1:
      result = x if result is None else result * x
    exponent >>= 1
    if exponent:
      x = x * x
  return jnp.ones_like(x) if result is None else result


def cube_root(x: jax.Array) -> jax.Array:
  y = jnp.exp(log(jnp.abs(x)) * _F32(1 / 3))
  y = jnp.where(y > 0, y - (y - jnp.abs(x) / (y * y)) * _F32(1 / 3), y)
  y = jnp.where(jnp.abs(x) < _INFINITY, y, jnp.abs(x))
  return jnp.where(x < 0, -y, y)


def sign(x: jax.Array) -> jax.Array:
  one = jnp.ones_like(x)
  if not jnp.issubdtype(x.dtype, jnp.unsignedinteger):
    negative = jnp.where(x < 0, -one, x)
    return jnp.where(x > 0, one, negative)
  return jnp.where(x > 0, one, x)


def remainder(x: jax.Array, y: jax.Array) -> jax.Array:
  """With the sign of x."""
  if jnp.issubdtype(x.dtype, jnp.floating):
    # x / y is rounded, and then so is where it is cut off.
    raise subcores.NotTaken("A step has a remainder of floats.")
  return jax.lax.rem(x, y)


def as_numbers(x: jax.Array) -> jax.Array:
  """i32[...] of bool[...]."""
  return jnp.where(
      x, jnp.ones(x.shape, jnp.int32), jnp.zeros(x.shape, jnp.int32)
  )


def convert(x: jax.Array, dtype: Any) -> jax.Array:
  """`x` as registers of another type, which has 32 bits or is rounded later."""
  dtype = jnp.dtype(dtype)
  if dtype.itemsize == 2 and jnp.issubdtype(dtype, jnp.floating):
    dtype = jnp.dtype(jnp.float32)
  if dtype == jnp.bool_:
    return x != 0
  if x.dtype == jnp.bool_:
    x = as_numbers(x)
  if dtype == jnp.uint16:
    return x.astype(jnp.uint32) & np.uint32(0xFFFF)
  if x.dtype == dtype:
    return x
  if x.dtype == jnp.uint32 and dtype == jnp.float32:
    # In halves: half of the numbers would be negative ones.
    low = _as_int(x & np.uint32(0xFFFF)).astype(jnp.float32)
    high = _as_int(x >> np.uint32(16)).astype(jnp.float32)
    return high * _F32(2**16) + low
  if {x.dtype, dtype} == {jnp.dtype(jnp.uint32), jnp.dtype(jnp.int32)}:
    return jax.lax.bitcast_convert_type(x, dtype)
  if dtype == jnp.uint32:
    return jax.lax.bitcast_convert_type(x.astype(jnp.int32), dtype)
  return x.astype(dtype)


def bitcast(eqn: Any, x: jax.Array) -> jax.Array:
  """The same bits; those of 16 bits are in the lower half of 32."""
  before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
  if before == jnp.uint16 and after == jnp.bfloat16:
    return jax.lax.bitcast_convert_type(x << np.uint32(16), jnp.float32)
  if before.itemsize != 4 or after.itemsize != 4:
    raise subcores.NotTaken(
        f"A step has the bits of {before.name} as {after.name}."
    )
  return x if x.dtype == after else jax.lax.bitcast_convert_type(x, after)


class Reduction(NamedTuple):
  """What makes one number of many."""

  combine: Callable[[jax.Array, jax.Array], jax.Array]
  of_lanes: Callable[[jax.Array], jax.Array]
  of_float: float
  of_int: int

  def neutral_of(self, dtype: Any) -> Any:
    """The number that changes nothing."""
    return self.of_float if dtype == jnp.float32 else self.of_int


_MAX = Reduction(jnp.maximum, jnp.max, -np.inf, -(2**31))
_MIN = Reduction(jnp.minimum, jnp.min, np.inf, 2**31 - 1)

REDUCTIONS = {
    "reduce_sum": Reduction(jnp.add, jnp.sum, 0.0, 0),
    "reduce_max": _MAX,
    "reduce_min": _MIN,
    # Of truth values as numbers.
    "reduce_or": _MAX,
    "reduce_and": _MIN,
}


def _elementwise(function):
  return lambda eqn, *registers: function(*registers)


def _clamp(low, x, high):
  return jnp.minimum(jnp.maximum(x, low), high)


def _round(eqn, x):
  to_even = (
      eqn.params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
  )
  return round_to_even(x) if to_even else round_half_away(x)


def _reduce_precision(eqn, x):
  bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
  types = {(8, 7): jnp.bfloat16, (8, 23): jnp.float32}
  if bits not in types:
    raise subcores.NotTaken(f"A step has numbers of {bits} bits.")
  return float16_bits.round_to(x, types[bits])


# Primitive of JAX -> function of the equation and registers.
FUNCTIONS = {
    "bitcast_convert_type": bitcast,
    "cbrt": _elementwise(cube_root),
    "ceil": _elementwise(ceil),
    "clamp": _elementwise(_clamp),
    "convert_element_type": lambda eqn, x: convert(x, eqn.params["new_dtype"]),
    "exp2": _elementwise(lambda x: jnp.exp(x * _F32(_LOG_2))),
    "expm1": _elementwise(expm1),
    "floor": _elementwise(floor),
    "integer_pow": lambda eqn, x: integer_power(x, eqn.params["y"]),
    "is_finite": _elementwise(lambda x: jnp.abs(x) < _INFINITY),
    "log": _elementwise(log),
    "log1p": _elementwise(log1p),
    "logistic": _elementwise(logistic),
    "pow": _elementwise(power),
    "reduce_precision": _reduce_precision,
    "rem": _elementwise(remainder),
    "round": _round,
    "rsqrt": _elementwise(rsqrt),
    "sign": _elementwise(sign),
    "sqrt": _elementwise(sqrt),
    "square": _elementwise(lambda x: x * x),
    "tanh": _elementwise(tanh),
}


def _truncated(x):
  return x.astype(jnp.int32).astype(jnp.float32)


def _nan(x):
  return jnp.full_like(x, np.nan)


def _as_int(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _float(bits):
  return jax.lax.bitcast_convert_type(bits, jnp.float32)
