# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How good predictions of clicks are."""

from __future__ import annotations

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
  """The probability that a click scores higher than a sample without one.

  The area under the ROC curve. Equal scores count half. NaN where all labels
  are equal.

  Args:
    labels: [n], 1 for a click, else 0.
    scores: [n], higher for what is more likely a click; of any scale.

  >>> auc(np.array([0, 0, 1, 1]), np.array([1, 3, 2, 4]))
  0.75

  Source: Mann and Whitney, "On a test of whether one of two random variables is
  stochastically larger than the other", 1947: the statistic U from ranks.
  """
  is_click = np.asarray(labels) == 1
  clicks = int(is_click.sum())
  others = is_click.size - clicks
  if not clicks or not others:
    return float("nan")
  _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
  # Equal scores have their ranks, counted from 1, divided evenly.
  ranks = np.cumsum(sizes) - (sizes - 1) / 2
  u = ranks[group][is_click].sum() - clicks * (clicks + 1) / 2
  return float(u / (clicks * others))


def log_loss(labels: np.ndarray, logits: np.ndarray) -> float:
  """Mean negative log-likelihood of the labels, in nats.

  NaN if a logit is, without a warning.
  """
  # log(1 + exp(-x)) for a click, log(1 + exp(x)) for none.
  signed = np.where(np.asarray(labels) == 1, -1.0, 1.0) * logits
  with np.errstate(invalid="ignore"):
    return float(np.mean(np.logaddexp(0, signed)))
