# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np


class FeaturesTest(absltest.TestCase):

  def test_dense_features_are_logarithms(self):
    result = features.dense_features(
        np.array([[0, 1, np.e**3 - 1, -2, np.nan]], np.float32)
    )
    np.testing.assert_allclose(result, [[0, np.log(2), 3, 0, 0]], rtol=1e-6)
    self.assertEqual(result.dtype, np.float32)

  def test_categories_share_all_rows_but_that_of_missing_ones(self):
    rows = features.rows(
        np.array([[samples_lib.MISSING, 0, 8, 9, 10, 2**32 - 1]]), 10
    )
    # 2^32 - 1 is 3 modulo 9.
    self.assertEqual(rows.tolist(), [[0, 1, 9, 1, 2, 4]])
    self.assertEqual(rows.dtype, np.int32)

  def test_a_batch_has_what_its_samples_have(self):
    samples = samples_lib.Samples(
        labels=np.array([1, 0], np.float32),
        dense=np.full((2, 13), 3, np.float32),
        categories=np.full((2, 26), 7),
    )
    batch = features.make_batch(samples, table_rows=5)
    self.assertEqual(batch.labels.tolist(), [1, 0])
    np.testing.assert_array_equal(
        batch.dense, np.full((2, 13), np.log1p(np.float32(3)))
    )
    np.testing.assert_array_equal(batch.rows, np.full((2, 26), 1 + 7 % 4))


if __name__ == "__main__":
  absltest.main()
