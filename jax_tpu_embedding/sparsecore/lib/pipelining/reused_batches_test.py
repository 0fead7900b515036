# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A batch that the program fills with the next one, as loaders of data do."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()


class _Filled:
  """Each item is the same batch, filled with what `batches` has there."""

  def __init__(self, batches, fill):
    self._batches, self._fill = batches, fill
    self._batch = jax.tree.map(np.array, batches[0])

  def __getitem__(self, i):
    if isinstance(i, slice):
      return (self[k] for k in range(len(self._batches))[i])
    self._fill(self._batch, self._batches[i])
    return self._batch


def _fill_arrays(batch, following):
  jax.tree.map(np.copyto, batch, following)


def _fill_dict(batch, following):
  batch.update(following)


def _preprocess(batches, specs):
  return [
      batch
      | {
          "ids": embedding.preprocess_sparse_dense_matmul_input(
              batch["ids"], None, specs, 4, 4, num_sc_per_device=1
          )[0]
      }
      for batch in batches
  ]


class ReusedBatchesTest(parameterized.TestCase):

  def _assert_same_run(self, batches, fill, mode):
    optimizer = training_runs.OPTIMIZERS["adagrad"]
    expected, run = (training_runs.Refs(optimizer) for _ in range(2))
    batches = batches(run)
    losses = training_runs.train_pipelined(expected, batches, mode=mode)
    self.assertEqual(
        training_runs.train_pipelined(run, _Filled(batches, fill), mode=mode),
        losses,
    )
    training_runs.assert_same_bits(self, run.arrays(), expected.arrays())

  @parameterized.parameters("off", "exact", "stale")
  def test_arrays_of_raw_ids(self, mode):
    self._assert_same_run(
        lambda unused_run: training_runs.batches(), _fill_arrays, mode
    )

  def test_arrays_of_preprocessed_ids(self):
    self._assert_same_run(
        lambda run: _preprocess(training_runs.batches(), run.specs),
        _fill_arrays,
        "exact",
    )

  def test_dictionary(self):
    self._assert_same_run(
        lambda unused_run: training_runs.batches(), _fill_dict, "exact"
    )

  @parameterized.parameters("off", "exact")
  def test_arrays_of_jax_are_not_copied(self, mode):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])
    step = pipelining.pipelined(run.train_step, 2, mode)
    first, second = map(jax.device_put, training_runs.batches(2))
    flight = step.start(*run.arguments(), first)
    self._assert_same_objects(flight.batch, (first,))
    flight, results = step(flight, *run.arguments(), second)
    run.take(results)
    self._assert_same_objects(flight.batch, (second,))

  @parameterized.parameters("off", "exact", "stale")
  def test_arrays_of_the_flight_are_not_copied_again(self, mode):
    run = training_runs.Refs(training_runs.OPTIMIZERS["sgd"])
    step = pipelining.pipelined(run.train_step, 2, mode)
    flight = step.start(*run.arguments(), training_runs.batches(1)[0])
    after, _ = step.finish(flight, *run.arguments())
    self._assert_same_objects(after.batch, flight.batch)

  def _assert_same_objects(self, a, b):
    jax.tree.map(self.assertIs, a, b)


if __name__ == "__main__":
  absltest.main()
