# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""TensorFlow's embedding_lookup_sparse, and optimizers for sparse gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.lookup import case_worker
from benchmarks.lookup import cases


class _TensorFlow(case_worker.Contender):
  """A tf.function per step."""

  def __init__(self, case: cases.Case, step: str):
    self._gradient = tf.constant(cases.make_gradient(case))
    self._table = tf.Variable(cases.make_table(case))
    shape = (case.batch_size, case.valency)
    indices = np.stack(np.indices(shape), axis=-1).reshape(-1, 2)
    self._indices = tf.constant(indices, tf.int64)
    self._batches = [
        (
            tf.constant(batch.ids.reshape(-1), tf.int64),
            tf.constant(batch.weights.reshape(-1)),
        )
        for batch in cases.make_batches(case)
    ]
    optimizers = tf.compat.v1.train
    optimizer = {
        cases.SGD: lambda: optimizers.GradientDescentOptimizer(
            cases.LEARNING_RATE
        ),
        cases.ADAGRAD: lambda: optimizers.AdagradOptimizer(
            cases.LEARNING_RATE,
            initial_accumulator_value=cases.INITIAL_ACCUMULATOR,
        ),
    }.get(step, lambda: None)()

    def lookup(ids, weights):
      return tf.nn.embedding_lookup_sparse(
          self._table,
          tf.SparseTensor(self._indices, ids, shape),
          tf.SparseTensor(self._indices, weights, shape),
          combiner="sum",
          # Here the faster of the two by a little.
          allow_fast_lookup=True,
      )

    def train(ids, weights):
      with tf.GradientTape() as tape:
        activations = lookup(ids, weights)
      gradient = tape.gradient(activations, self._table, self._gradient)
      optimizer.apply_gradients([(gradient, self._table)])
      return activations

    self._step = tf.function(train if optimizer else lookup)

  def step(self, batch_number: int) -> None:
    # `.numpy()` of one element waits for the step.
    self._activations = self._step(*self._batches[batch_number])
    self._activations[0, 0].numpy()

  def activations(self) -> np.ndarray:
    return self._activations.numpy()

  def table(self) -> np.ndarray:
    return self._table.numpy()


class Worker(case_worker.CaseWorker):
  """The commands."""

  def __init__(self):
    threads = case_worker.num_threads()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)

  def contenders(
      self, case: cases.Case, step: str
  ) -> dict[str, case_worker.Contender]:
    return {"TensorFlow": _TensorFlow(case, step)}

  def versions(self) -> dict[str, str]:
    return {"tensorflow": tf.__version__}
