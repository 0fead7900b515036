# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import copy

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from benchmarks.preprocessing import same_buffers

_PAD = 2**31 - 1

# One device, two SparseCores: an id each, and behind it memory that is free.
_BUFFERS = {
    "row_pointers": np.array([1] + [8] * 7 + [0, 1] + [8] * 6, np.int32),
    "embedding_ids": np.array(
        ([7] + [_PAD] * 7 + [0] * 8) + ([9] + [_PAD] * 7 + [0] * 8), np.int32
    ),
    "sample_ids": np.array(
        ([0] + [_PAD] * 7 + [0] * 8) + ([0] + [_PAD] * 7 + [0] * 8), np.int32
    ),
    "gains": np.array(
        ([1] + [np.nan] * 7 + [0] * 8) + ([1] + [np.nan] * 7 + [0] * 8),
        np.float32,
    ),
}


def _difference(change, num_blocks_per_sc=None):
  reference = copy.deepcopy(_BUFFERS)
  name, where, value = change
  reference[name][where] = value
  return same_buffers.first_difference(
      _BUFFERS,
      reference,
      local_device_count=1,
      num_sc_per_device=2,
      num_scs=2,
      num_blocks_per_sc=num_blocks_per_sc,
  )


class SameBuffersTest(parameterized.TestCase):

  @parameterized.parameters(
      ("gains", 0, 1), ("gains", 15, 5), ("embedding_ids", 8, -1)
  )
  def test_equal_but_for_free_memory(self, *change):
    self.assertIsNone(_difference(change))

  @parameterized.parameters(
      ("gains", 0, 2),
      ("gains", 7, 0),
      ("gains", 16, 2),
      ("sample_ids", 1, 0),
      ("embedding_ids", 16, 8),
      ("row_pointers", 15, 16),
  )  # pyformat: disable
  def test_differences_are_found(self, *change):
    self.assertStartsWith(_difference(change), f"{change[0]}[{change[1]}]: ")

  def test_with_minibatching_only_what_is_behind_the_last_block_is_free(self):
    # The last row pointer of the device says that 8 cells are used.
    self.assertIsNone(_difference(("gains", 8, 5), num_blocks_per_sc=1))
    self.assertIsNotNone(_difference(("gains", 7, 5), num_blocks_per_sc=1))

  def test_sizes_must_be_equal(self):
    shorter = _BUFFERS | {"gains": _BUFFERS["gains"][:16]}
    difference = same_buffers.first_difference(
        _BUFFERS,
        shorter,
        local_device_count=1,
        num_sc_per_device=2,
        num_scs=2,
        num_blocks_per_sc=None,
    )
    self.assertStartsWith(difference, "gains: (32,) != (16,)")


if __name__ == "__main__":
  absltest.main()
