# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The comparison finds results that are wrong."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from benchmarks.lookup import cases
from benchmarks.lookup import expected

_CASE = cases.Case(
    name="tiny", batch_size=8, valency=3, num_batches=1, num_rows=64, dim=4
)


def _results(step: str, is_row_wise: bool):
  """Activations and the table after one step, with a dense gradient."""
  table = cases.make_table(_CASE)
  (batch,) = cases.make_batches(_CASE)
  matrix = np.zeros((_CASE.batch_size, _CASE.num_rows))
  samples = np.repeat(np.arange(_CASE.batch_size), _CASE.valency)
  np.add.at(matrix, (samples, batch.ids.reshape(-1)), batch.weights.reshape(-1))
  gradient = matrix.T @ cases.make_gradient(_CASE)
  new = table.astype(np.float64)
  if step == cases.SGD:
    new -= cases.LEARNING_RATE * gradient
  elif step == cases.ADAGRAD:
    squares = gradient**2
    if is_row_wise:
      squares = squares.mean(1, keepdims=True)
    new -= (
        cases.LEARNING_RATE
        * gradient
        / np.sqrt(cases.INITIAL_ACCUMULATOR + squares)
    )
  return matrix @ table, new


class FirstDifferenceTest(parameterized.TestCase):

  @parameterized.product(step=cases.STEPS, is_row_wise=[False, True])
  def test_right_results_have_none(self, step, is_row_wise):
    activations, table = _results(step, is_row_wise)
    self.assertIsNone(
        expected.first_difference(
            _CASE, step, activations, table, is_row_wise=is_row_wise
        )
    )

  def test_wrong_activations(self):
    activations, table = _results(cases.SGD, False)
    activations[3] += 1
    self.assertRegex(
        expected.first_difference(_CASE, cases.SGD, activations, table),
        "activations are off by 1",
    )

  def test_rows_that_were_not_updated(self):
    activations, table = _results(cases.FORWARD, False)
    self.assertRegex(
        expected.first_difference(_CASE, cases.SGD, activations, table),
        "rows of the batch are off",
    )

  def test_a_row_that_nobody_named(self):
    activations, table = _results(cases.SGD, False)
    (batch,) = cases.make_batches(_CASE)
    row = np.setdiff1d(np.arange(_CASE.num_rows), batch.ids)[0]
    table[row] = np.nan
    self.assertRegex(
        expected.first_difference(_CASE, cases.SGD, activations, table),
        "rows without an id are off",
    )


if __name__ == "__main__":
  absltest.main()
