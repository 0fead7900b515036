# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What calls say of shapes that no function here gives them.

A program from elsewhere may: a wrong one must not read what is not its own.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
import numpy as np


def _unstack(results, num_runs, stacked=(12, 8)):
  """Of activations of that shape, parts of the shapes `results`."""
  call = jax.ffi.ffi_call(
      "jte_unstack_activations_cpu",
      [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results],
  )
  values = jnp.arange(np.prod(stacked), dtype=jnp.float32).reshape(stacked)
  return call(values, num_runs=np.int64(num_runs))


_F32 = np.float32


class UnstackActivationsTest(parameterized.TestCase):

  def test_parts_of_each_run(self):
    first, second = _unstack([((8, 8), _F32), ((4, 3), _F32)], 2)
    stacked = np.arange(96, dtype=np.float32).reshape(2, 6, 8)
    np.testing.assert_array_equal(first, stacked[:, :4].reshape(8, 8))
    np.testing.assert_array_equal(second, stacked[:, 4:, :3].reshape(4, 3))

  @parameterized.parameters(
      ([((12, 8), _F32)], 0, "has 12 samples, .* its 0 runs, .* positive"),
      ([((12, 8), _F32)], -1, "has 12 samples, .* its -1 runs"),
      ([((12, 8), _F32)], 5, "has 12 samples, expected a multiple of its 5"),
      ([((6, 8), _F32), ((6,), _F32)], 1, "feature 1 must be float32 of rank"),
      ([((12, 8), np.int32)], 1, "feature 0 must be float32 of rank 2"),
      ([((9, 8), _F32), ((3, 8), _F32)], 2, r"feature 0 .*\[9, 8\], .* the 2"),
      ([((12, 9), _F32)], 1, r"shape \[12, 9\], .* at most its 8 columns"),
      ([((6, 8), _F32)], 1, "have 6 samples, expected the stack's 12"),
      ([((8, 8), _F32), ((8, 8), _F32)], 1, "have 16 samples, .* 12"),
  )
  def test_other_shapes_are_errors(self, results, num_runs, message):
    with self.assertRaisesRegex(Exception, message):
      jax.block_until_ready(_unstack(results, num_runs))


class RandomBitsTest(parameterized.TestCase):

  @parameterized.parameters(
      (3, 4, 4, "The key has 3 words, expected 2"),
      (2, 4, 5, "The bits have 5 rows, expected the 4 that are named"),
  )
  def test_other_shapes_are_errors(self, words, rows, rows_of_bits, message):
    call = jax.ffi.ffi_call(
        "jte_random_bits_cpu",
        jax.ShapeDtypeStruct((rows_of_bits, 8), np.uint32),
    )
    with self.assertRaisesRegex(Exception, message):
      jax.block_until_ready(
          call(
              jnp.zeros(words, jnp.uint32),
              jnp.zeros(rows, jnp.uint32),
              jnp.uint32(8),
          )
      )

  def test_no_rows(self):
    bits = cpu_calls.random_bits(
        jnp.zeros(2, jnp.uint32), jnp.zeros(0, jnp.uint32), jnp.uint32(8), 8
    )
    self.assertEqual(bits.shape, (0, 8))


if __name__ == "__main__":
  absltest.main()
