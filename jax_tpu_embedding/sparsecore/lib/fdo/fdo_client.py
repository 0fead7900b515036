# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Feedback for the limits of stacks: what past batches needed.

client.record(stats)      # after each preprocessed batch
client.publish()          # at times, on every process
embedding.update_preprocessing_parameters(
    feature_specs, client.load(), num_sc_per_device)
"""

from __future__ import annotations

import abc

from jax_tpu_embedding.sparsecore.lib.nn import embedding


class FDOClient(abc.ABC):
  """Collects the statistics of batches over time and over processes.

  Of counts the largest of all batches is kept, also of dropped ids.
  """

  @abc.abstractmethod
  def record(self, data: embedding.SparseDenseMatmulInputStats) -> None:
    """Adds the statistics of a batch to what this process has collected."""

  @abc.abstractmethod
  def publish(self) -> None:
    """Makes what this process has collected visible to all of them."""

  @abc.abstractmethod
  def load(self) -> embedding.SparseDenseMatmulInputStats:
    """What all processes have published.

    Returns:
      Statistics whose counts are the largest of each target SparseCore, of all
      batches and processes: i64[L * N] for each stack, of the L devices of this
      process and the N SparseCores of all, or i64[records, L * N].

    Raises:
      FileNotFoundError: nothing was published yet. AdaptiveLimits takes it for
        the first run.
    """
