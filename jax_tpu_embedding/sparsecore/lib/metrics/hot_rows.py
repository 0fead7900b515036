# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rows of each table that most ids of a run ask for, from a sample of them.

A counter per row would take as much memory as the table. A summary of limited
size is merged with each sampled batch: what it says of a row is too low by at
most the number of ids seen, divided by its size.

Source: Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable Summaries (PODS
2012), section 3.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

_SIZE_PER_ROW = 100  # of the summary, for each of the k rows asked for
# So many ids are sorted together: merging takes longer than sorting a few.
_MAX_WAITING = 2**18


class _Summary:
  """Rows of a table and how often each was seen, not all of them."""

  def __init__(self, size: int):
    self._size = size
    self._waiting: list[np.ndarray] = []
    self.rows = np.zeros(0, np.int64)  # ascending
    self.counts = np.zeros(0, np.int64)
    self.num_ids = 0

  def add(self, ids: np.ndarray) -> None:
    self.num_ids += ids.size
    self._waiting.append(ids)
    if sum(x.size for x in self._waiting) > _MAX_WAITING:
      self.merge()

  def merge(self) -> None:
    """Makes `rows` and `counts` those of all ids that were added."""
    if not self._waiting:
      return
    new, new_counts = np.unique(
        np.concatenate(self._waiting), return_counts=True
    )
    self._waiting = []
    all_counts = np.concatenate([self.counts, new_counts])
    rows, places = np.unique(
        np.concatenate([self.rows, new]), return_inverse=True
    )
    counts = np.bincount(places, all_counts, len(rows)).astype(np.int64)
    if len(rows) > self._size:
      # The same is taken from all, so that no more than `size` remain.
      counts -= np.partition(counts, -self._size - 1)[-self._size - 1]
      rows, counts = rows[counts > 0], counts[counts > 0]
    self.rows, self.counts = rows, counts


class HotRows:
  """Counts the ids of every so many batches. Threads may share it.

  hot = HotRows(feature_specs, k=100)
  InputPipeline(..., ids=lambda batch: hot.seen(batch["ids"]))
  hot.top("items")
  """

  def __init__(
      self,
      feature_specs: Any,
      k: int = 100,
      *,
      every: int = 16,
      max_ids: int = 16384,
  ):
    """Starts without batches.

    Args:
      feature_specs: any tree.
      k: how many rows to tell of each table.
      every: one of so many batches is counted.
      max_ids: that are counted of a feature in such a batch, evenly over it.

    Raises:
      ValueError: if a number is not a positive integer.
    """
    for name, value in (("k", k), ("every", every), ("max_ids", max_ids)):
      if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    self._feature_specs = feature_specs
    self._k, self._every, self._max_ids = k, every, max_ids
    self._lock = threading.Lock()
    self._num_batches = 0
    self._summaries = {
        spec.table_spec.name: _Summary(_SIZE_PER_ROW * k)
        for spec in jax.tree.leaves(feature_specs)
    }

  def seen(self, features: Any) -> Any:
    """Counts a batch, if it is its turn, and returns it.

    Args:
      features: the tree of feature_specs with ids, in any form of
        preprocessing. Ids outside of their table do not count.
    """
    with self._lock:
      is_counted = self._num_batches % self._every == 0
      self._num_batches += 1
    if is_counted:
      sampled = embedding.sample_ids(
          features, self._feature_specs, self._max_ids
      )
      with self._lock:
        for table, ids in sampled.items():
          self._summaries[table].add(ids)
    return features

  def top(self, table: str) -> list[tuple[int, int]]:
    """The k rows that most ids asked for, and how many of those counted.

    Raises:
      KeyError: if there is no such table.
    """
    with self._lock:
      summary = self._summaries[table]
      summary.merge()
      # Of equal counts the lower row comes first.
      order = np.lexsort((summary.rows, -summary.counts))[: self._k]
      return list(
          zip(summary.rows[order].tolist(), summary.counts[order].tolist())
      )

  def share(self, table: str) -> float:
    """What part of the ids the k rows serve, at least; 0 before any."""
    served = sum(count for _, count in self.top(table))
    return served / max(self._summaries[table].num_ids, 1)

  def plot(self, path: Any) -> None:
    """Draws the share of the ids that the first rows of each table serve.

    Needs matplotlib.
    """
    extras.require("plots", "matplotlib")
    from matplotlib import figure  # pylint: disable=g-import-not-at-top

    picture = figure.Figure(figsize=(6, 4), layout="constrained")
    axes = picture.subplots()
    for table, summary in self._summaries.items():
      counts = [count for _, count in self.top(table)]
      if counts:
        shares = np.cumsum(counts) / summary.num_ids
        axes.plot(np.arange(1, len(shares) + 1), shares, label=table)
    axes.set(xlabel="hottest rows", ylabel="share of the ids", ylim=(0, 1))
    axes.legend(frameon=False)
    picture.savefig(path)
