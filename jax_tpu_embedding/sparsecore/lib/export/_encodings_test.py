# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The bytes of encoded rows, and how far decoded values are off."""

import doctest
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.export import _encodings
import numpy as np

# As the files that share a process with this one.
jax.config.update("jax_num_cpu_devices", 4)

_PAGE = pathlib.Path(__file__).parents[4] / "docs/reference/served_tables.md"
_ALL = tuple(_encodings.ENCODINGS)


def _decoder_of_the_page():
  """The function that the page on the format has, run as it stands there."""
  examples = doctest.DocTestParser().get_examples(_PAGE.read_text())
  names = {}
  for example in examples[:2]:
    exec(example.source, names)  # pylint: disable=exec-used
  return names["decode"]


def _rows_of_many_kinds(columns, limit=8e37):
  """10^4 rows: of any scale, constant, subnormal, huge, with outliers."""
  rng = np.random.default_rng(columns)
  rows = rng.normal(size=(10_000, columns)).astype(np.float32)
  rows[:4000] *= 10.0 ** rng.uniform(-8, 4, size=(4000, 1)).astype(np.float32)
  rows[4000:5000] += 1000
  rows[5000:6000] = rows[5000:6000, :1]
  rows[6000:6100] = 0
  rows[6100:6500] *= np.float32(1e-41)
  rows[6500:7000] = rng.uniform(-limit, limit, size=(500, columns))
  rows[7000:7500, -1] = rng.uniform(-limit, limit, size=500)
  rows[7500:8000] *= np.float32(1e-30)
  return rows


def _bound(name, rows, encoded):
  """The largest error that the page allows, for each row or value."""
  size = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
  if name == "float32":
    return 0
  if name == "int8":
    wide = rows.astype(np.float64)
    span = wide.max(axis=1, keepdims=True) - wide.min(axis=1, keepdims=True)
    return span / 510 + 2.0**-22 * size + 1e-36
  if name == "int4":
    scale = encoded[:, -4:-2].copy().view("<f2").astype(np.float64)
    return scale / 2 + 2.0**-22 * size
  if name == "bfloat16":
    return 2.0**-8 * np.abs(rows) + 2.0**-133
  return 2.0**-11 * np.abs(rows) + 2.0**-25


class EncodingsTest(parameterized.TestCase):

  @parameterized.product(name=_ALL, columns=(1, 2, 7, 64, 129))
  def test_errors_are_within_their_bounds(self, name, columns):
    encoding = _encodings.ENCODINGS[name]
    rows = _rows_of_many_kinds(
        columns, 6e4 if name in ("int4", "float16") else 8e37
    )
    encoded = _encodings.encode(encoding, rows)
    self.assertIsNone(encoded.refused)
    self.assertEqual(
        encoded.rows.shape, (len(rows), encoding.row_bytes(columns))
    )
    decoded = _decoder_of_the_page()(encoded.rows, columns, name)
    np.testing.assert_array_equal(
        decoded, encoding.decode(encoded.rows, columns)
    )
    lost = np.abs(decoded.astype(np.float64) - rows)
    self.assertTrue((lost <= _bound(name, rows, encoded.rows)).all())
    # What is reported is what was lost, but for the rounding of float32.
    self.assertLessEqual(abs(lost.max() - encoded.max_error), 1e-6 * lost.max())
    np.testing.assert_allclose(
        encoded.squared_error, (lost**2).sum(), rtol=1e-4
    )

  def test_scale_of_int4_is_hardly_larger_than_needed(self):
    rows = _rows_of_many_kinds(16, 6e4)
    encoded = _encodings.encode(_encodings.ENCODINGS["int4"], rows).rows
    scale, bias = encoded[:, -4:].copy().view("<f2").astype(np.float64).T
    self.assertTrue((bias <= rows.min(axis=1)).all())
    needed = (rows.max(axis=1) - bias) / 15
    is_normal = needed > 1e-4
    self.assertGreater(is_normal.sum(), 1000)
    self.assertTrue((scale >= needed * (1 - 2.0**-23))[needed > 0].all())
    self.assertTrue(
        (scale <= (1 + 2.0**-10) * (1 + 2.0**-23) * needed)[is_normal].all()
    )

  @parameterized.parameters(3, 64)
  def test_int8_rows_are_those_of_variables(self, columns):
    rows = np.random.default_rng(0).normal(size=(50, columns)).astype("f4")
    rows[7] = 0.5
    served = _encodings.encode(_encodings.ENCODINGS["int8"], rows).rows
    words = quantized_rows.of_served_rows(jnp.asarray(served), columns)
    encoded = quantized_rows.encode(rows)
    # XLA divides by 255 in its own way: scales may have another last bit.
    np.testing.assert_allclose(words, encoded, rtol=0, atol=1)
    num_words = -(-columns // 4)
    np.testing.assert_array_equal(words[:, :num_words], encoded[:, :num_words])
    decoded = _encodings.ENCODINGS["int8"].decode(served, columns)
    for x in (words, encoded):
      np.testing.assert_allclose(
          quantized_rows.decode(x, columns), decoded, rtol=1e-6, atol=1e-6
      )

  @parameterized.parameters(
      # 1.0 = 0x3f800000, -2.5 = 0xc0200000, 0.1 = 0x3dcccccd
      ("float32", "0000803f 000020c0 cdcccc3d"),
      # 0.1 rounds up to 0x3dcd in bfloat16, and down to 0x2e66 in float16
      ("bfloat16", "803f 20c0 cd3d"),
      ("float16", "003c 00c1 662e"),
      # scale 3.5 / 255 = 0x3c60e0e1, bias -2.5; code of 0.1: 2.6 / 3.5 * 255
      ("int8", "ff 00 bd 00 e1e0603c 000020c0"),
      # scale 3.5 / 15 = 0.23333 rounds up to 0x3378; code of 0.1: 11.14
      ("int4", "0f 0b 7833 00c1"),
  )
  def test_golden_row(self, name, expected):
    row = np.array([[1.0, -2.5, 0.1]], np.float32)
    encoded = _encodings.encode(_encodings.ENCODINGS[name], row).rows
    self.assertEqual(encoded.tobytes().hex(), expected.replace(" ", ""))

  @parameterized.parameters(
      # All the same: scale 1 and codes 0; 0.5 = 0x3f000000 and 0x3800.
      ("int8", [0.5] * 4, "00000000 0000803f 0000003f"),
      ("int4", [0.5] * 4, "0000 003c 0038"),
      # Too close to divide by: as if they were the same, the smallest one.
      ("int8", [1e-40, 0, 0, 2e-40], "00000000 0000803f 00000000"),
      # A bias of zero has no sign: which of the two is smaller is not defined.
      ("int8", [-0.0, 0.0, -0.0], "00000000 0000803f 00000000"),
      ("int4", [0.0, -0.0], "00 003c 0000"),
      # Ties to even: 0.5 is code 0 and 1.5 is code 2, of 0, 1, .. 255.
      ("int8", [0, 0.5, 1.5, 255], "000002ff 0000803f 00000000"),
      ("int4", [0, 0.5, 1.5, 15], "00f2 003c 0000"),
      # The smallest float16 is 2^-24; 1e-9 is code 0.
      ("int4", [0, 1e-9], "00 0100 0000"),
      # The bias is 2.44e-5 below 0.1, and a 15th of that is 27.3 x 2^-24.
      ("int4", [0.1], "0f 1c00 662e"),
  )
  def test_golden_corners(self, name, row, expected):
    rows = np.array([row], np.float32)
    encoded = _encodings.encode(_encodings.ENCODINGS[name], rows).rows
    self.assertEqual(encoded.tobytes().hex(), expected.replace(" ", ""))

  @parameterized.parameters("bfloat16", "float16")
  def test_tables_of_16_bits_are_exact_as_what_they_are(self, name):
    rows = np.random.default_rng(0).normal(size=(50, 6))
    rows = rows.astype(jnp.dtype(name))
    encoded = _encodings.encode(_encodings.ENCODINGS[name], rows)
    self.assertEqual(encoded.rows.tobytes(), rows.tobytes())
    self.assertEqual((encoded.max_error, encoded.squared_error), (0, 0))

  @parameterized.parameters(
      ("float32", 3.4e38, np.inf),
      ("bfloat16", 3.389e38, 3.4e38),
      ("float16", 65519, 65520),
      ("int8", 1.6e38, 1.8e38),
      ("int4", 65504, 65505),
      ("int4", 65504, np.nan),
      ("int8", 0, np.nan),
      ("float32", 0, -np.inf),
  )
  def test_refuses_rows_of_numbers_that_are_too_large(self, name, fits, large):
    rows = np.zeros((5000, 40), np.float32)
    rows[7, 3] = fits
    encoding = _encodings.ENCODINGS[name]
    self.assertIsNone(_encodings.encode(encoding, rows).refused)
    rows[4100, 39] = large
    rows[30, 0] = -large
    encoded = _encodings.encode(encoding, rows)
    self.assertEqual(list(np.flatnonzero(encoded.refused)), [30, 4100])
    self.assertTrue(np.isfinite(encoded.max_error))

  @parameterized.product(name=_ALL, columns=[1, 3, 64])
  def test_native_bytes_are_those_of_numpy(self, name, columns):
    encoding = _encodings.ENCODINGS[name]
    limit = 6e4 if name in ("float16", "int4") else 8e37
    rows = _rows_of_many_kinds(columns, limit)
    rows[:100, 0] = np.float32(-0.0)
    rows[5] = np.nan
    native = _encodings.encode(encoding, rows)
    with mock.patch.object(_encodings, "_native", None):
      plain = _encodings.encode(encoding, rows)
    np.testing.assert_array_equal(native.rows, plain.rows)
    self.assertEqual(native.max_error, plain.max_error)
    np.testing.assert_array_equal(native.refused, plain.refused)
    tile = np.ascontiguousarray(rows[6:40])
    self.assertIsNotNone(_encodings._encode_natively(encoding, tile))

  @parameterized.parameters(*_ALL)
  def test_rows_do_not_depend_on_their_neighbours(self, name):
    encoding = _encodings.ENCODINGS[name]
    rows = _rows_of_many_kinds(9, 6e4)
    whole = _encodings.encode(encoding, rows).rows
    for i in (0, 4999, 6200, 9999):
      alone = _encodings.encode(encoding, rows[i : i + 1]).rows
      self.assertEqual(alone.tobytes(), whole[i].tobytes())


if __name__ == "__main__":
  absltest.main()
