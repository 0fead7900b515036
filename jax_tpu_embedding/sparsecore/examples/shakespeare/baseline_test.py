# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
import numpy as np


class BaselineTest(absltest.TestCase):

  def test_log_probabilities_are_counts_plus_one(self):
    # Counts 3, 1, 0; plus one 4, 2, 1; of 7.
    log_probs = baseline.log_probabilities(np.array([0, 1, 0, 0]), 3)
    np.testing.assert_allclose(np.exp(log_probs), [4 / 7, 2 / 7, 1 / 7])

  def test_loss_is_the_mean_over_the_given_words(self):
    log_probs = np.log([0.5, 0.25, 0.25])
    # (1 + 2 + 2 + 2) bits / 4 words.
    self.assertAlmostEqual(
        baseline.loss(log_probs, np.array([0, 1, 2, 2])),
        7 / 4 * math.log(2),
    )


if __name__ == "__main__":
  absltest.main()
