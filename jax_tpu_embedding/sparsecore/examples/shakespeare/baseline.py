# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The unigram baseline: every word has the probability of its frequency."""

from __future__ import annotations

import numpy as np


def log_probabilities(
    train_ids: np.ndarray, vocabulary_size: int
) -> np.ndarray:
  """Log of each word's share of the training text, f64[V].

  One is added to each count, so that a word that the training text lacks (as
  <unk> may be) has a probability above zero.

  Args:
    train_ids: i32[tokens], each in [0, vocabulary_size).
    vocabulary_size: number of words, V.

  >>> np.exp(log_probabilities(np.array([0, 0, 1]), 3)) * 6
  array([3., 2., 1.])
  """
  counts = np.bincount(train_ids, minlength=vocabulary_size) + 1.0
  return np.log(counts / counts.sum())


def loss(log_probs: np.ndarray, word_ids: np.ndarray) -> float:
  """Mean negative log-probability of the words `word_ids`, in nats."""
  return float(-np.mean(log_probs[word_ids]))
