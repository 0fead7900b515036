# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""input_preprocessing.preprocess_sparse_dense_matmul_input."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
import numpy as np

_PAD = constants.PADDING_VALUE


def _preprocess(features, weights, **changes):
  arguments = {
      "mesh": jax.sharding.Mesh(jax.devices()[:1], "x"),
      "max_ids_per_partition": 8,
      "max_unique_ids_per_partition": 8,
      "num_sc_per_device": 2,
  } | changes
  return input_preprocessing.preprocess_sparse_dense_matmul_input(
      features, weights, **arguments
  )


class OneDevicePreprocessingTest(parameterized.TestCase):

  def test_cells_of_two_sparse_cores(self):
    # SparseCore 0 has the samples [1, 2] and [1, 1], even ids are its own.
    features = np.array([[1, 2], [1, 1], [3, 9], [4, 4]])
    weights = np.array([[1, 2], [0.5, 0.25], [3, 1], [1, 0]])
    row_pointers, embedding_ids, sample_ids, gains = _preprocess(
        features, weights
    )
    self.assertEqual(row_pointers.dtype, np.int32)
    np.testing.assert_array_equal(row_pointers, ([1, 10] + [16] * 6) * 2)
    # 2 SparseCores of 2 partitions of 8 ids.
    self.assertEqual(embedding_ids.shape, (32,))
    np.testing.assert_array_equal(
        embedding_ids[:11], [1] + [_PAD] * 7 + [0, 0, _PAD]
    )
    np.testing.assert_array_equal(
        sample_ids[:11], [0] + [_PAD] * 7 + [0, 1, _PAD]
    )
    self.assertEqual(gains.dtype, np.float32)
    np.testing.assert_array_equal(gains[8:10], [1, 0.75])
    np.testing.assert_array_equal(embedding_ids[16:17], [2])
    np.testing.assert_array_equal(embedding_ids[24:26], [1, 4])
    np.testing.assert_array_equal(np.isnan(gains), embedding_ids == _PAD)

  def test_repeats_add_up_in_float64(self):
    # In float32 each 1 would be lost.
    *_, gains = _preprocess([[0, 0, 0], []], [[2.0**24, 1, 1], []])
    self.assertEqual(gains[0], 2.0**24 + 2)

  def test_samples_may_be_numbers(self):
    row_pointers, *_ = _preprocess(np.array([0, 1]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(
        row_pointers, [1] + [8] * 7 + [0, 1] + [8] * 6
    )

  def test_minibatches_are_packed_sparse_core_by_sparse_core(self):
    first, second = [[0], [2]], [[1], [4, 6]]
    row_pointers, embedding_ids, *_ = _preprocess(
        [first, second],
        [[[1.0], [1.0]], [[1.0], [1.0, 1.0]]],
        enable_minibatching=True,
    )
    np.testing.assert_array_equal(
        np.reshape(row_pointers, (4, 8))[:, :3],
        # SC 0: ids 0, then 1; SC 1: ids 2, then 4 and 6.
        [[1, 8, 8], [8, 9, 16], [17, 24, 24], [26, 32, 32]],
    )
    self.assertEqual(embedding_ids.shape, (64,))
    np.testing.assert_array_equal(
        np.asarray(embedding_ids)[[0, 8, 16, 24, 25]], [0, 0, 1, 2, 3]
    )

  @parameterized.named_parameters(
      ("strategy", {"sharding_strategy": "DIV"}, "must be 'MOD', got 'DIV'"),
      ("limit", {"max_ids_per_partition": 0}, "must be positive, got 0"),
      ("rank", {"features": np.zeros((2, 1, 1))}, "Sample 0 must have a row"),
      ("lengths", {"weights": [[1.0]]}, "2 samples and weights 1"),
      (
          "uneven",
          {"features": [[1]] * 3, "weights": [[1.0]] * 3},
          "3 samples cannot be shared by 2",
      ),
      (
          "too_many_ids",
          {
              "features": [[0, 2], [1]],
              "weights": [[1.0, 1.0], [1.0]],
              "max_ids_per_partition": 1,
          },
          "Partition has too many ids: 2, limit 1",
      ),
      (
          "too_many_unique_ids",
          {
              "features": [[0, 2], [1]],
              "weights": [[1.0, 1.0], [1.0]],
              "max_unique_ids_per_partition": 1,
          },
          "Partition has too many unique ids: 2, limit 1",
      ),
  )
  def test_values_that_cannot_be(self, changes, message):
    baseline = {"features": [[0], [1]], "weights": [[1.0], [1.0]]}
    _preprocess(**baseline)
    with self.assertRaisesRegex(ValueError, message):
      _preprocess(**baseline | changes)

  def test_minibatches_must_be_a_list(self):
    batches = np.zeros((1, 2, 1))
    with self.assertRaisesRegex(AssertionError, "must be a list"):
      _preprocess(batches, batches, enable_minibatching=True)


if __name__ == "__main__":
  absltest.main()
