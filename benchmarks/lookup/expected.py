# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a step has to return, in float64, for some samples and some rows."""

from __future__ import annotations

import numpy as np

from benchmarks.lookup import cases

_NUM_SAMPLES = 64
_NUM_ROWS = 512
# Everybody computes in float32 and sums in an order of their own.
_TOLERANCE = 1e-4


def first_difference(
    case: cases.Case,
    step: str,
    activations: np.ndarray,
    table: np.ndarray,
    *,
    is_row_wise: bool = False,
) -> str | None:
  """Where the first step on batch 0 went wrong; None if it did not.

  Args:
    case: what was looked up.
    step: one of cases.STEPS.
    activations: f32[batch_size, dim] of the step.
    table: f32[num_rows, dim] after it.
    is_row_wise: Adagrad has one accumulator per row, which adds the mean of
      the squares.
  """
  before = cases.make_table(case)
  batch = cases.make_batches(case)[0]
  ids = batch.ids[:_NUM_SAMPLES]
  weights = batch.weights[:_NUM_SAMPLES].astype(np.float64)
  pooled = np.einsum("bv,bvd->bd", weights, before[ids])
  error = np.abs(activations[:_NUM_SAMPLES] - pooled).max()
  if not error < _TOLERANCE:
    return f"activations are off by {error:.2g}"

  rows, counts = np.unique(batch.ids, return_counts=True)
  # The most popular ones, and ones without an id.
  rows = rows[np.argsort(-counts, kind="stable")][:_NUM_ROWS]
  others = np.setdiff1d(np.arange(case.num_rows), batch.ids)[:_NUM_ROWS]
  new = before[rows].astype(np.float64)
  if step != cases.FORWARD:
    new = _updated(case, step, batch, rows, new, is_row_wise)
  for what, error in (
      ("rows of the batch", np.abs(table[rows] - new).max(initial=0)),
      (
          "rows without an id",
          np.abs(table[others] - before[others]).max(initial=0),
      ),
  ):
    if not error < _TOLERANCE:
      return f"{what} are off by {error:.2g}"
  return None


def _updated(
    case: cases.Case,
    step: str,
    batch: cases.Batch,
    rows: np.ndarray,
    values: np.ndarray,
    is_row_wise: bool,
) -> np.ndarray:
  """f64[n, dim]: `values` of `rows` after the step."""
  order = np.argsort(rows)
  where = order[np.searchsorted(rows, batch.ids, sorter=order) % rows.size]
  samples, positions = np.nonzero(rows[where] == batch.ids)
  terms = batch.weights[samples, positions, None].astype(np.float64)
  terms = terms * cases.make_gradient(case)[samples]
  gradient = np.zeros_like(values)
  np.add.at(gradient, where[samples, positions], terms)
  if step == cases.SGD:
    return values - cases.LEARNING_RATE * gradient
  squares = gradient**2
  if is_row_wise:
    squares = squares.mean(1, keepdims=True)
  accumulator = cases.INITIAL_ACCUMULATOR + squares
  return values - cases.LEARNING_RATE * gradient / np.sqrt(accumulator)
