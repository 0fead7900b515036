# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.dlrm import baseline
import numpy as np
from scipy import optimize


def _data(n=4000):
  rng = np.random.default_rng(0)
  features = rng.normal(2, [1, 3, 0.5], (n, 3)).astype(np.float32)
  logits = features @ [0.5, -0.25, 1.0] - 2
  labels = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
  return features, labels


class BaselineTest(absltest.TestCase):

  def test_finds_what_a_general_optimizer_finds(self):
    features, labels = _data()

    def loss(parameters):
      logits = features @ parameters[:3] + parameters[3]
      return np.mean(np.logaddexp(0, np.where(labels == 1, -1, 1) * logits))

    expected = optimize.minimize(loss, np.zeros(4), tol=1e-9).x
    model = baseline.fit(features, labels)
    np.testing.assert_allclose(
        [*model.weights, model.bias], expected, atol=1e-3
    )
    np.testing.assert_allclose(
        model.logits(features[:5]),
        features[:5] @ expected[:3] + expected[3],
        atol=1e-2,
    )

  def test_a_constant_feature_and_certain_labels_stay_finite(self):
    features, _ = _data()
    features[:, 1] = 1
    labels = (features[:, 0] > 2).astype(np.float32)
    model = baseline.fit(features, labels)
    self.assertTrue(np.isfinite([*model.weights, model.bias]).all())
    predicted = model.logits(features) > 0
    self.assertGreater(np.mean(predicted == labels), 0.99)


if __name__ == "__main__":
  absltest.main()
