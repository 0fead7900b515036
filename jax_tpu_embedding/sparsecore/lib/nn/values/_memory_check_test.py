# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn.testing import peak_of_initialization
from jax_tpu_embedding.sparsecore.lib.nn.values import _fills
from jax_tpu_embedding.sparsecore.lib.nn.values import _memory_check
import numpy as np


class MemoryCheckTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_says_what_initialization_takes(self, num_devices):
    measured = peak_of_initialization.measure(num_devices)
    self.assertLen(measured, 2)
    for kind, found in measured.items():
      with self.subTest(kind):
        # Less is an error, more is not.
        self.assertEqual(found["errors"], [True, False], measured)

  @parameterized.parameters(
      # Stack before, blocks, what programs need, 512 bytes of stack.
      (False, 1, (100, 600), 600),
      (False, 1, (700, 600), 700),  # no stack yet
      (False, 2, (100, 600, 550), 612),
      (True, 1, (100, 600), 612),
  )
  def test_a_block_is_made_beside_the_stack(
      self, has_stack, num_blocks, needs, expected
  ):
    blocks = mock.Mock(first_rows=list(range(num_blocks)))
    stack = jax.ShapeDtypeStruct((16, 8), np.float32)
    fill = _fills.BlockFill(blocks=blocks, stack=stack, has_stack=has_stack)
    self.assertEqual(fill.bytes_at_most(needs), expected)

  def test_a_stack_is_not_made_beside_its_zeros(self):
    stack = jax.ShapeDtypeStruct((4096, 8), np.float32)
    block = jax.ShapeDtypeStruct((2, 64, 8), np.float32)
    write = _fills._write_block(stack, 64, block.shape, 8)
    compiled = write.lower(None, block, np.int32(8)).compile()
    self.assertLess(_memory_check.bytes_of_program(compiled), 1.1 * 4096 * 32)
    values = compiled(None, np.ones(block.shape, np.float32), np.int32(8))
    expected = np.zeros((2, 2048, 8), np.float32)
    expected[:, 8:72] = 1
    np.testing.assert_array_equal(values.reshape(expected.shape), expected)

  def test_a_whole_table_is_copied_from_memory_of_the_host(self):
    source = jax.ShapeDtypeStruct((16, 8), np.float32)
    fill = _fills.Fill(
        program=None,
        stack=None,
        source=source,
        make_whole=None,
        place=None,
        is_on_host=True,
    )
    self.assertEqual(fill.bytes_at_most([1024]), 1024)
    fill = dataclasses.replace(fill, make_whole=lambda: np.ones((16, 8)))
    self.assertEqual(fill.bytes_at_most([1024]), 1536)
    on_device = dataclasses.replace(fill, is_on_host=False)
    self.assertEqual(on_device.bytes_at_most([1024]), 1024)

  def test_what_a_program_changes_in_place_counts_once(self):
    program = jax.jit(lambda x, y: (x + 1, y), donate_argnums=0)
    vector = jax.ShapeDtypeStruct((1000,), np.float32)
    compiled = program.lower(vector, vector).compile()
    # Of x, y, and the y that is returned.
    self.assertAlmostEqual(
        _memory_check.bytes_of_program(compiled), 12_000, delta=64
    )
    silent = mock.Mock(**{"memory_analysis.return_value": None})
    self.assertEqual(_memory_check.bytes_of_program(silent), 0)


if __name__ == "__main__":
  absltest.main()
