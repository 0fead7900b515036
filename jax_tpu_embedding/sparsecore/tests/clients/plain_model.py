# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What clients train, as dense float64 algebra: tables, optimizers, a model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

import numpy as np

Array = np.ndarray

# The arguments are rows, their slots, their gradient, the learning rate, and
# the number of steps so far; the results new rows and slots.
Rule = Callable[
    [Array, Sequence[Array], Array, float, int], tuple[Array, Sequence[Array]]
]


def sgd(rows, slots, gradient, learning_rate, step):
  del step
  return rows - learning_rate * gradient, slots


def adagrad(rows, slots, gradient, learning_rate, step):
  del step
  (accumulator,) = slots
  accumulator = accumulator + gradient**2
  return rows - learning_rate * gradient / np.sqrt(accumulator), (accumulator,)


def adam(rows, slots, gradient, learning_rate, step, epsilon=1e-7):
  """Source: Kingma and Ba (2015), section 2, with moments of touched rows."""
  momentum = 0.9 * slots[0] + 0.1 * gradient
  velocity = 0.999 * slots[1] + 0.001 * gradient**2
  unbiased_momentum = momentum / (1 - 0.9 ** (step + 1))
  unbiased_velocity = velocity / (1 - 0.999 ** (step + 1))
  return rows - learning_rate * unbiased_momentum / (
      np.sqrt(unbiased_velocity) + epsilon
  ), (momentum, velocity)


def ftrl(rows, slots, gradient, learning_rate, step):
  """Source: McMahan and others, "Ad Click Prediction: a View from the Trenches"
  (2013), algorithm 1, without regularization and with beta = 0.
  """
  del step
  accumulator, linear = slots
  new = accumulator + gradient**2
  sigma = (np.sqrt(new) - np.sqrt(accumulator)) / learning_rate
  linear = linear + gradient - sigma * rows
  return -learning_rate * linear / np.sqrt(new), (new, linear)


def gains(
    ids: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]] | None,
    combiner: str,
    vocabulary_size: int,
) -> Array:
  """f64[batch, vocabulary_size]: the matrix that a lookup multiplies with.

  Args:
    ids: a row per sample; rows may differ in length and be empty.
    weights: as ids, or None for ones.
    combiner: "sum", "mean" or "sqrtn".
    vocabulary_size: of the table.
  """
  matrix = np.zeros((len(ids), vocabulary_size))
  for sample, row in enumerate(ids):
    row_weights = np.ones(len(row)) if weights is None else weights[sample]
    row_weights = np.asarray(row_weights, np.float64)
    if len(row):
      divisor = {
          "sum": 1.0,
          "mean": row_weights.sum(),
          "sqrtn": np.sqrt((row_weights**2).sum()),
      }[combiner]
      np.add.at(matrix[sample], np.asarray(row), row_weights / divisor)
  return matrix


@dataclasses.dataclass
class Table:
  """A table, its slots, and the rule that changes rows that were looked up."""

  values: Array  # f64[V, D]
  rule: Rule
  learning_rate: float | Callable[[int], float]
  slots: Sequence[Array] = ()  # of f64[V, D]

  def update(self, gradient: Array, touched: Array, step: int) -> None:
    """Applies `gradient` f64[V, D] to the rows where `touched` bool[V]."""
    rate = self.learning_rate
    rate = rate(step) if callable(rate) else rate
    values, slots = self.rule(self.values, self.slots, gradient, rate, step)
    where = touched[:, None]
    self.values = np.where(where, values, self.values)
    self.slots = [
        np.where(where, new, old) for new, old in zip(slots, self.slots)
    ]


@dataclasses.dataclass
class LinearModel:
  """predictions = concatenated activations @ kernel + bias, with squared loss.

  Features are concatenated in the order of their names. The kernel and the bias
  are trained with SGD.
  """

  tables: Mapping[str, Table]
  table_of: Mapping[str, str]  # feature -> table
  kernel: Array  # f64[sum of D, 1]
  learning_rate: float
  bias: Array = dataclasses.field(default_factory=lambda: np.zeros(1))
  step: int = 0

  def activations(self, matrices: Mapping[str, Array]) -> dict[str, Array]:
    """Feature -> f64[batch, D]. `matrices` are those of gains, by feature."""
    return {
        name: matrices[name] @ self.tables[table].values
        for name, table in sorted(self.table_of.items())
    }

  def train(self, matrices: Mapping[str, Array], labels: Array) -> float:
    """Takes a step, and returns the loss before it. labels: [batch, 1]."""
    activations = self.activations(matrices)
    joined = np.concatenate(list(activations.values()), axis=1)
    error = joined @ self.kernel + self.bias - labels
    output_gradient = 2 * error / error.size
    widths = [activation.shape[1] for activation in activations.values()]
    parts = np.split(
        output_gradient @ self.kernel.T, np.cumsum(widths)[:-1], axis=1
    )
    for table_name, table in self.tables.items():
      names = [name for name, of in self.table_of.items() if of == table_name]
      by_feature = dict(zip(activations, parts))
      gradient = sum(matrices[name].T @ by_feature[name] for name in names)
      touched = sum(matrices[name] != 0 for name in names).any(axis=0)
      table.update(gradient, touched, self.step)
    self.kernel = self.kernel - self.learning_rate * joined.T @ output_gradient
    self.bias = self.bias - self.learning_rate * output_gradient.sum(axis=0)
    self.step += 1
    return float((error**2).mean())
