# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import low_precision
import numpy as np

# Type -> bits of its significand, smallest exponent, largest value.
_FORMATS = {
    "bfloat16": (8, -126, 3.3895313892515355e38),
    "float16": (11, -14, 65504.0),
}


def _floor_and_unit(values, dtype):
  """|values| rounded down to `dtype`, and its unit in the last place; float64.

  Written from the format, without bits.
  """
  precision, smallest, _ = _FORMATS[dtype]
  magnitude = np.abs(np.float64(values))
  exponent = np.maximum(np.frexp(magnitude)[1] - 1, smallest)
  unit = np.exp2(exponent - (precision - 1))
  return np.floor(magnitude / unit) * unit, unit


def _round(values, dtype, noise):
  """Rounded with the upper half of the random bits given."""
  bits = jnp.asarray(noise, jnp.uint32) << 16
  values = jnp.asarray(values, jnp.float32)
  return np.asarray(low_precision.round_to(values, dtype, bits))


def _random_values(dtype):
  """float32 of every magnitude that the type has, subnormals too."""
  rng = np.random.default_rng(0)
  smallest, largest = (-24, 15) if dtype == "float16" else (-125, 127)
  values = np.exp2(rng.uniform(smallest, largest, 20_000))
  return np.float32(values * rng.choice([-1, 1], values.shape))


class RoundToTest(parameterized.TestCase):

  @parameterized.parameters(*_FORMATS)
  def test_rounds_up_where_noise_carries(self, dtype):
    values = _random_values(dtype)
    noise = np.random.default_rng(1).integers(0, 2**16, values.shape)
    floor, unit = _floor_and_unit(values, dtype)
    fraction = (np.abs(np.float64(values)) - floor) / unit
    expected = floor + unit * (fraction + noise * 2.0**-16 >= 1)
    actual = np.float64(_round(values, dtype, noise))
    np.testing.assert_array_equal(actual, np.copysign(expected, values))

  @parameterized.product(
      dtype=list(_FORMATS), value=[1.001, -0.333, 777.77, 3.3e-5]
  )
  def test_mean_of_all_noise_is_the_value(self, dtype, value):
    noise = np.arange(2**16)
    rounded = np.float64(_round(np.full(2**16, value), dtype, noise))
    _, unit = _floor_and_unit(np.float32(value), dtype)
    np.testing.assert_allclose(
        rounded.mean(), np.float32(value), rtol=0, atol=unit * 2**-16
    )
    self.assertLen(set(rounded), 2)

  @parameterized.product(dtype=list(_FORMATS), noise=[0, 1, 0x8000, 0xFFFF])
  def test_values_of_the_type_stay(self, dtype, noise):
    bits = np.arange(2**16, dtype=np.uint16)
    values = np.asarray(jax.lax.bitcast_convert_type(bits, jnp.dtype(dtype)))
    rounded = _round(values, dtype, np.full(2**16, noise))
    # Any NaN is a NaN. Bits tell 0 from -0.
    is_nan = np.isnan(np.float32(values))
    np.testing.assert_array_equal(np.isnan(np.float32(rounded)), is_nan)
    np.testing.assert_array_equal(
        rounded.view(np.uint16)[~is_nan], bits[~is_nan]
    )

  @parameterized.parameters(*_FORMATS)
  def test_finite_values_stay_finite(self, dtype):
    _, _, largest = _FORMATS[dtype]
    values = np.float32([np.finfo(np.float32).max, largest * 1.001, -3.4e38])
    rounded = np.float64(_round(values, dtype, [0xFFFF] * 3))
    np.testing.assert_array_equal(rounded, [largest, largest, -largest])

  @parameterized.parameters(*_FORMATS)
  def test_not_numbers_and_infinity_stay(self, dtype):
    low_payload = np.uint32([0x7F800001, 0xFF800001]).view(np.float32)
    values = np.float32([np.inf, -np.inf, np.nan, *low_payload])
    rounded = np.float64(_round(values, dtype, [0xFFFF] * 5))
    np.testing.assert_array_equal(rounded, [np.inf, -np.inf] + [np.nan] * 3)

  @parameterized.parameters(*_FORMATS)
  def test_without_bits_rounds_to_nearest_even(self, dtype):
    values = jnp.float32([1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-12, 1 + 3 * 2**-12])
    expected = {
        "bfloat16": [1, 1 + 2**-7, 1, 1],
        "float16": [1 + 2**-9, 1 + 3 * 2**-9, 1, 1 + 2**-10],
    }
    # 1 + 3 * 2^-9 is nearer to 1 + 2^-7 than to 1, and 3 * 2^-12 to 2^-10.
    np.testing.assert_array_equal(
        np.float64(low_precision.round_to(values, dtype, None)), expected[dtype]
    )

  def test_float32_stays(self):
    values = jnp.float32([1 / 3, -2.5])
    np.testing.assert_array_equal(
        low_precision.round_to(values, jnp.float32, None), values
    )


class RandomBitsTest(absltest.TestCase):

  def test_is_the_documented_hash(self):
    def mix(x):
      x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
      x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
      return x ^ (x >> 16)

    rows, num_columns, seed = [0, 1, 70_000, 2**31 - 1], 3, 12345
    expected = [
        [
            mix(seed ^ mix((row * 0x9E3779B1 + column) % 2**32))
            for column in range(num_columns)
        ]
        for row in rows
    ]
    actual = low_precision.random_bits(
        jnp.uint32(seed), jnp.asarray(rows), num_columns
    )
    np.testing.assert_array_equal(actual, expected)

  def test_rounding_at_random_is_unbiased_over_rows_and_seeds(self):
    value, rows, seeds = np.float32(0.7), jnp.arange(512), 8
    means = []
    for seed in range(seeds):
      bits = low_precision.random_bits(jnp.uint32(seed), rows, 16)
      values = jnp.full(bits.shape, value)
      rounded = low_precision.round_to(values, jnp.bfloat16, bits)
      means.append(np.float64(rounded).mean())
    _, unit = _floor_and_unit(value, "bfloat16")
    # The mean of n numbers that are off by one unit or not: 4 deviations.
    deviation = 0.5 * unit / np.sqrt(rows.size * 16 * seeds)
    self.assertAlmostEqual(np.mean(means), value, delta=4 * deviation)
    self.assertLen(set(means), seeds)


if __name__ == "__main__":
  absltest.main()
