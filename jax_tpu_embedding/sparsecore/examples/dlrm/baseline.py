# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The baseline: logistic regression on the dense features alone."""

from __future__ import annotations

import dataclasses

import numpy as np

# Newton's method on a convex function of 14 numbers is done long before.
_MAX_ITERATIONS = 25
# Keeps a weight finite whose feature is constant or tells clicks exactly.
_RIDGE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LogisticRegression:
  """A click's logit as a weighted sum of features."""

  weights: np.ndarray  # f64[d]
  bias: float

  def logits(self, features: np.ndarray) -> np.ndarray:
    """f64[n] of `features` f32[n, d]."""
    return features @ self.weights + self.bias


def fit(features: np.ndarray, labels: np.ndarray) -> LogisticRegression:
  """The most likely logistic regression, up to a tiny ridge, by Newton's method.

  Args:
    features: f32[n, d].
    labels: f32[n], 1 for a click, else 0.
  """
  x = np.column_stack([features, np.ones(len(features))]).astype(np.float64)
  weights = np.zeros(x.shape[1])
  for _ in range(_MAX_ITERATIONS):
    probabilities = 1 / (1 + np.exp(-x @ weights))
    gradient = x.T @ (probabilities - labels) / len(x) + _RIDGE * weights
    variances = probabilities * (1 - probabilities)
    hessian = (x.T * variances) @ x / len(x) + _RIDGE * np.eye(len(weights))
    step = np.linalg.solve(hessian, gradient)
    weights -= step
    if np.max(np.abs(step)) < 1e-8:
      break
  return LogisticRegression(weights=weights[:-1], bias=float(weights[-1]))
