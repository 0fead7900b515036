# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which cells are entries, and which row pointers cannot be."""

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import partitions
import numpy as np

_LOWEST, _HIGHEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max

# One device with two SparseCores, 16 cells for each: docs/reference/
# buffer_format.md.
_SIZES = dict(
    num_cells=32, num_sources=2, num_targets=2, enable_minibatching=False
)
_POINTERS = (2, 10, *[16] * 6, 0, 1, *[8] * 6)
# The same entries in two minibatches of each SparseCore.
_MINIBATCHED_SIZES = _SIZES | dict(enable_minibatching=True)
_MINIBATCHED_POINTERS = (
    *(2, 8, *[8] * 6, 8, 10, *[16] * 6),
    *(16, 17, *[24] * 6, 24, 24, *[24] * 6),
)


def _pointers(changes=(), values=_POINTERS):
  pointers = np.array(values, np.int32)
  for position, value in changes:
    pointers[position] = value
  return pointers


def _minibatched_pointers(changes=()):
  unused = np.full(8 * 2 * 64 - len(_MINIBATCHED_POINTERS), 1000, np.int32)
  return np.append(_pointers(changes, _MINIBATCHED_POINTERS), unused)


class ReadPartitionsTest(parameterized.TestCase):

  def test_reads_regions_per_sparse_core(self):
    cells = partitions.read_partitions(_pointers(), 1, **_SIZES)
    entries = np.flatnonzero(cells.is_entry)
    np.testing.assert_array_equal(entries, [0, 1, 8, 9, 16])
    np.testing.assert_array_equal(cells.source[entries], [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(cells.target[entries], [0, 0, 1, 1, 1])

  def test_reads_a_packed_run_per_minibatch(self):
    cells = partitions.read_partitions(
        _minibatched_pointers(), np.int32(2), **_MINIBATCHED_SIZES
    )
    entries = np.flatnonzero(cells.is_entry)
    np.testing.assert_array_equal(entries, [0, 1, 8, 9, 16])
    np.testing.assert_array_equal(cells.source[entries], [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(cells.target[entries], [0, 0, 1, 1, 1])

  # Also when the region's size is not a multiple of 8: the next one begins
  # where it ends.
  @parameterized.parameters(12, 16)
  def test_a_partition_may_fill_its_region(self, region_size):
    sizes = _SIZES | dict(num_cells=2 * region_size)
    pointers = np.full(16, region_size, np.int32)
    pointers[8] = 0
    self.assertTrue(partitions.are_valid(pointers, 1, **sizes))
    cells = partitions.read_partitions(pointers, 1, **sizes)
    self.assertTrue(np.all(cells.is_entry))
    halves = np.arange(2 * region_size) >= region_size
    np.testing.assert_array_equal(cells.source, halves)
    np.testing.assert_array_equal(cells.target, halves)


class AreValidTest(parameterized.TestCase):

  @parameterized.parameters(
      ([], True),
      ([(1, 16)], True),
      ([(1, 17)], False),
      ([(1, 7)], False),
      ([(8, -1)], False),
      ([(9, _HIGHEST)], False),
      ([(0, _LOWEST)], False),
      # Those that belong to no partition: no entries follow.
      ([(2, 0), (7, 10)], True),
      ([(2, -1), (15, _LOWEST)], True),
      ([(2, 17)], False),
      ([(7, _HIGHEST)], False),
      ([(15, 9)], False),
  )
  def test_row_pointers(self, changes, expected):
    actual = partitions.are_valid(_pointers(changes), 1, **_SIZES)
    self.assertEqual(bool(actual), expected)

  @parameterized.parameters(
      ([], True),
      ([(31, 25)], False),
      ([(23, 25)], False),
      ([(2, 9)], False),
      ([(2, 0), (31, -1)], True),
  )
  def test_row_pointers_of_minibatches(self, changes, expected):
    actual = partitions.are_valid(
        _minibatched_pointers(changes), np.int32(2), **_MINIBATCHED_SIZES
    )
    self.assertEqual(bool(actual), expected)

  @parameterized.parameters((0, False), (1, True), (64, True), (65, False))
  def test_there_are_1_to_64_minibatches(self, num_minibatches, expected):
    actual = partitions.are_valid(
        np.zeros(8 * 64, np.int32),
        np.int32(num_minibatches),
        num_cells=8,
        num_sources=1,
        num_targets=1,
        enable_minibatching=True,
    )
    self.assertEqual(bool(actual), expected)


if __name__ == "__main__":
  absltest.main()
