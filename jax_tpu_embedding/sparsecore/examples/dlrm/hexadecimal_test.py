# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.examples.dlrm import hexadecimal
import numpy as np
import pyarrow as pa

_NUMBERS = st.lists(st.integers(-1, 2**32 - 1))


class HexadecimalTest(parameterized.TestCase):

  @hypothesis.settings(derandomize=True, deadline=None)
  @hypothesis.given(numbers=_NUMBERS)
  def test_encodes_as_python_does(self, numbers):
    text = hexadecimal.encode(np.array(numbers, np.int64)).to_pylist()
    self.assertEqual(text, [f"{x:08x}" if x >= 0 else None for x in numbers])

  @hypothesis.settings(derandomize=True, deadline=None)
  @hypothesis.given(numbers=_NUMBERS, data=st.data())
  def test_decodes_what_python_writes(self, numbers, data):
    text = [
        format(x, data.draw(st.sampled_from(("x", "X", "08x", "05x"))))
        if x >= 0
        else ""
        for x in numbers
    ]
    decoded = hexadecimal.decode(pa.array(text, pa.string()))
    self.assertEqual(decoded.tolist(), numbers)
    self.assertEqual(decoded.dtype, np.int64)

  def test_decodes_a_part_of_an_array(self):
    column = pa.array(["12", "", "0000000a", "ff"])
    self.assertEqual(hexadecimal.decode(column[1:3]).tolist(), [-1, 10])

  @parameterized.parameters(
      ("123456789", "more than 8 digits"),
      ("12g4", "not a hexadecimal number"),
      ("-1", "not a hexadecimal number"),
      (" 1", "not a hexadecimal number"),
      ("ü", "not a hexadecimal number"),
  )
  def test_refuses(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      hexadecimal.decode(pa.array(["12", text]))


if __name__ == "__main__":
  absltest.main()
