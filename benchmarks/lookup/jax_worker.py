# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""JAX without this package, as one would write it first and as one would next.

"plain JAX" gathers all rows and sums; "JAX, scan" sums id after id, so that XLA
fuses the gather with the sum and no array has a row per id.
"""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lookup import case_worker
from benchmarks.lookup import cases


class _Jax(case_worker.Contender):
  """Jitted steps with donated tables."""

  def __init__(self, case: cases.Case, step: str):
    self._gradient = jnp.array(cases.make_gradient(case))
    self._batches = [
        (jnp.array(batch.ids), jnp.array(batch.weights))
        for batch in cases.make_batches(case)
    ]
    table = jnp.array(cases.make_table(case))
    self._tables = [table]
    if step == cases.ADAGRAD:
      self._tables.append(jnp.full_like(table, cases.INITIAL_ACCUMULATOR))
    update = {cases.SGD: self.sgd, cases.ADAGRAD: self._adagrad}.get(step)

    def train(tables, gradient, ids, weights):
      activations = self.lookup(tables[0], ids, weights)
      if update:
        # The gradient has to depend on the activations, as it does in
        # training: else XLA may update before it looks up, and copies the
        # table.
        gradient = gradient + 0 * activations
        tables = update(tables, gradient, ids, weights)
      return activations, tables

    self._step = jax.jit(train, donate_argnums=0)

  @abc.abstractmethod
  def lookup(self, table, ids, weights):
    """f32[batch_size, dim]."""

  @abc.abstractmethod
  def add(self, table, rows, gradient, weights):
    """`table` with the gradient of each id added to its row of `rows`."""

  def sgd(self, tables, gradient, ids, weights):
    """Adds to rows as often as they are named."""
    scale = -cases.LEARNING_RATE
    return [self.add(tables[0], ids, scale * gradient, weights)]

  def _adagrad(self, tables, gradient, ids, weights):
    """Sums the gradients of each row first."""
    table, accumulator = tables
    rows, inverse = jnp.unique(
        ids, return_inverse=True, size=ids.size, fill_value=table.shape[0]
    )
    sums = jnp.zeros((ids.size, table.shape[1]))
    sums = self.add(sums, inverse.reshape(ids.shape), gradient, weights)
    new = accumulator.at[rows].get(mode="clip") + sums * sums
    change = -cases.LEARNING_RATE * sums / jnp.sqrt(new)
    options = {
        "mode": "drop",
        "indices_are_sorted": True,
    }
    return [
        table.at[rows].add(change, **options),
        accumulator.at[rows].set(new, **options),
    ]

  def step(self, batch_number: int) -> None:
    self._activations, self._tables = self._step(
        self._tables, self._gradient, *self._batches[batch_number]
    )
    jax.block_until_ready((self._activations, self._tables))

  def activations(self) -> np.ndarray:
    return np.asarray(self._activations)

  def table(self) -> np.ndarray:
    return np.asarray(self._tables[0])


class _Plain(_Jax):

  def lookup(self, table, ids, weights):
    return (table[ids] * weights[..., None]).sum(1)

  def add(self, table, rows, gradient, weights):
    return table.at[rows].add(weights[..., None] * gradient[:, None])


class _Scan(_Jax):

  def lookup(self, table, ids, weights):
    def add(pooled, of_position):
      ids, weights = of_position
      return pooled + table[ids] * weights[:, None], None

    start = jnp.zeros((ids.shape[0], table.shape[1]))
    return jax.lax.scan(add, start, (ids.T, weights.T))[0]

  def add(self, table, rows, gradient, weights):
    def add(table, of_position):
      rows, weights = of_position
      return table.at[rows].add(weights[:, None] * gradient), None

    return jax.lax.scan(add, table, (rows.T, weights.T))[0]


class Worker(case_worker.CaseWorker):
  """The commands."""

  def contenders(
      self, case: cases.Case, step: str
  ) -> dict[str, case_worker.Contender]:
    return {"plain JAX": _Plain(case, step), "JAX, scan": _Scan(case, step)}

  def versions(self) -> dict[str, str]:
    return {"jax": jax.__version__}
