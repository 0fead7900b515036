# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.examples.dlrm import metrics
import numpy as np

_SAMPLES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=20
)


def _plain_auc(labels, scores) -> float:
  """Over all pairs of a click and another sample."""
  won = [
      (1.0 if click > other else 0.5 if click == other else 0.0)
      for click, is_click in zip(scores, labels)
      for other, is_other_click in zip(scores, labels)
      if is_click and not is_other_click
  ]
  return sum(won) / len(won)


class MetricsTest(parameterized.TestCase):

  @parameterized.parameters(
      ([0, 1], [0.1, 0.9], 1.0),
      ([0, 1], [0.9, 0.1], 0.0),
      ([1, 0, 1, 0], [5, 5, 5, 5], 0.5),
      # Of the six pairs 2 > 1, 4 > 1, 4 > 3, 4 > 2 are won, 2 = 2 is a draw.
      ([0, 1, 0, 1, 0], [1, 2, 3, 4, 2], 4.5 / 6),
  )
  def test_auc(self, labels, scores, expected):
    auc = metrics.auc(np.array(labels), np.array(scores))
    self.assertAlmostEqual(auc, expected)

  @hypothesis.settings(derandomize=True, deadline=None)
  @hypothesis.given(samples=_SAMPLES)
  def test_auc_is_the_share_of_pairs_won(self, samples):
    labels, scores = np.array(samples).T
    hypothesis.assume(0 < labels.sum() < len(labels))
    self.assertAlmostEqual(
        metrics.auc(labels, scores), _plain_auc(labels, scores)
    )

  @parameterized.parameters(0, 1)
  def test_auc_of_one_kind_of_label_is_nan(self, label):
    self.assertTrue(math.isnan(metrics.auc(np.full(3, label), np.arange(3))))

  def test_auc_does_not_depend_on_the_scale(self):
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 1000), rng.normal(size=1000)
    self.assertEqual(
        metrics.auc(labels, scores), metrics.auc(labels, np.exp(scores))
    )

  def test_log_loss(self):
    # Probabilities of a click: 3/4, 1/4, 1/2.
    logits = np.array([math.log(3), -math.log(3), 0.0])
    expected = -(math.log(3 / 4) + math.log(3 / 4) + math.log(1 / 2)) / 3
    loss = metrics.log_loss(np.array([1, 0, 1]), logits)
    self.assertAlmostEqual(loss, expected)

  def test_log_loss_of_a_certain_mistake_is_finite(self):
    self.assertEqual(metrics.log_loss(np.array([1]), np.array([-1e4])), 1e4)

  def test_log_loss_of_nan_is_nan_without_a_warning(self):
    with np.errstate(all="raise"):
      loss = metrics.log_loss(np.array([1, 0]), np.array([np.nan, 0.0]))
    self.assertTrue(math.isnan(loss))


if __name__ == "__main__":
  absltest.main()
