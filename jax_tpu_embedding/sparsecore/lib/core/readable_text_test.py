# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import readable_text


class ReadableTextTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, "0 B"),
      (1023, "1023 B"),
      (1024, "1.0 KiB"),
      (99.96 * 1024, "100.0 KiB"),
      (150 * 1024, "150 KiB"),
      (1.5 * 2**20, "1.5 MiB"),
      (3 * 2**30, "3.0 GiB"),
      (5 * 2**50, "5120 TiB"),
  )
  def test_bytes_have_the_unit_that_reads_best(self, num_bytes, text):
    self.assertEqual(readable_text.format_bytes(num_bytes), text)

  def test_columns_are_aligned_and_lines_end_with_text(self):
    rows = [("name", "size", "of"), ("a", "100", "b"), ("", "2", "")]
    self.assertEqual(
        readable_text.align(rows, left=(0, 2)),
        ["name  size  of", "a      100  b", "         2"],
    )


if __name__ == "__main__":
  absltest.main()
