# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.dlrm import baseline
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import generator
from jax_tpu_embedding.sparsecore.examples.dlrm import metrics
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np


class GeneratorTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.generator = generator.make(0)
    cls.train, _ = cls.generator.block(0)
    cls.heldout, cls.probabilities = cls.generator.block(1)

  def test_a_sample_is_a_function_of_the_seed_and_its_number(self):
    first, last = generator.make(0).blocks(50_010)
    self.assertLen(first, 50_000)
    np.testing.assert_array_equal(first.dense, self.train.dense)
    np.testing.assert_array_equal(first.categories, self.train.categories)
    np.testing.assert_array_equal(last.labels, self.heldout.labels[:10])
    np.testing.assert_array_equal(last.dense, self.heldout.dense[:10])
    (other,) = generator.make(1).blocks(10)
    self.assertTrue(np.any(other.dense[:, 0] != first.dense[:10, 0]))

  def test_labels_have_the_planted_probabilities(self):
    labels, probabilities = self.heldout.labels, self.probabilities
    self.assertBetween(np.mean(labels), 0.2, 0.3)
    order = np.argsort(probabilities)
    for tenth in np.array_split(order, 10):
      # Three standard deviations of the mean of 5,000 labels.
      self.assertAlmostEqual(
          np.mean(labels[tenth]), np.mean(probabilities[tenth]), delta=0.022
      )

  def test_dense_features_carry_a_part_of_the_signal_only(self):
    model = baseline.fit(
        features.dense_features(self.train.dense), self.train.labels
    )
    logits = model.logits(features.dense_features(self.heldout.dense))
    of_dense = metrics.auc(self.heldout.labels, logits)
    of_all = metrics.auc(self.heldout.labels, self.probabilities)
    self.assertBetween(of_dense, 0.6, 0.7)
    self.assertGreater(of_all, 0.8)

  def test_categories_follow_a_power_law(self):
    shares = []
    for column in self.train.categories.T:
      present = column[column != samples_lib.MISSING]
      _, counts = np.unique(present, return_counts=True)
      counts = np.sort(counts)[::-1]
      if len(counts) > 1000:
        ranks = np.array([1, 2, 4, 8, 16, 32, 64])
        slope, _ = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)
        # Of the density. A category has it from its rank to the next.
        self.assertBetween(slope, -1.3, -0.8)
        shares.append(counts[: len(counts) // 10].sum() / counts.sum())
    self.assertNotEmpty(shares)
    # A tenth of the categories has most of the samples.
    self.assertGreater(min(shares), 0.5)

  def test_columns_have_few_or_many_categories(self):
    sizes = [len(np.unique(column)) for column in self.train.categories.T]
    self.assertLess(min(sizes), 5)
    self.assertGreater(max(sizes), 3_000)

  def test_names_tell_categories_apart(self):
    ranks = np.arange(100_000)[:, np.newaxis].repeat(26, axis=1)
    names = generator._names(ranks)
    for column in names.T:
      self.assertLen(np.unique(column[column >= 0]), np.sum(column >= 0))
      self.assertLess(column.max(), 2**32)

  def test_values_are_missing_where_they_should(self):
    missing = np.mean(self.train.categories == samples_lib.MISSING, axis=0)
    self.assertAlmostEqual(missing[21], 0.7, delta=0.01)
    self.assertEqual(missing[0], 0)
    self.assertEqual(np.sum(missing > 0), 5)
    missing = np.mean(np.isnan(self.train.dense), axis=0)
    np.testing.assert_allclose(missing, np.linspace(0, 0.3, 13), atol=0.01)

  def test_dense_values_are_counts(self):
    dense = self.train.dense[~np.isnan(self.train.dense)]
    np.testing.assert_array_equal(dense, np.round(dense))
    self.assertEqual(dense.min(), 0)


if __name__ == "__main__":
  absltest.main()
