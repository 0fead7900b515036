# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""keras-rs trains its layer on this package, and gets the numbers of algebra.

The tolerance is that of float32: sums of some ten terms of the size of one, in
an order that depends on the number of SparseCores.
"""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_model
import numpy as np

_STEPS = 4
_TOLERANCE = dict(rtol=2e-4, atol=2e-5)


def _with_sparsecores(num_sc):
  return mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: str(num_sc)})


class TrainingTest(parameterized.TestCase):

  @parameterized.parameters(
      ("sgd", "sum", 1, "auto", False),
      ("sgd", "mean", 2, ["items", "users"], True),
      ("sgd with a schedule", "sum", 1, None, False),
      ("adagrad", "sum", 4, "auto", True),
      ("adagrad", "sqrtn", 1, [["users", "items"]], False),
      ("adam", "mean", 1, "auto", False),
      ("adam", "sum", 2, None, True),
  )
  def test_training_is_algebra(
      self, optimizer, combiner, num_sc, table_stacking, with_weights
  ):
    with _with_sparsecores(num_sc):
      model = keras_rs_model.build(
          optimizer, combiner, table_stacking=table_stacking
      )
      plain = keras_rs_model.plain_counterpart(model, optimizer)
      for step in range(_STEPS):
        batch = keras_rs_model.batch(step, with_weights)
        labels = keras_rs_model.labels(step)
        model.reset_metrics()  # else the mean loss of all batches
        loss = model.train_on_batch(
            model.embedding.preprocess(batch.ids, batch.weights, training=True),
            labels,
        )
        expected_loss = plain.train(batch.gains(combiner), labels)
        np.testing.assert_allclose(loss, expected_loss, **_TOLERANCE)
      tables = model.embedding.get_embedding_tables()
    for name, table in plain.tables.items():
      np.testing.assert_allclose(
          tables[name], table.values, err_msg=name, **_TOLERANCE
      )
    np.testing.assert_allclose(model.dense.kernel, plain.kernel, **_TOLERANCE)

  def test_devices_share_the_tables(self):
    model = keras_rs_model.build()
    table, *_ = model.embedding.trainable_variables
    shards = table.value.addressable_shards
    self.assertLen(shards, jax.device_count())
    rows = table.shape[0] // jax.device_count()
    self.assertEqual({shard.data.shape for shard in shards}, {(rows, 8)})


if __name__ == "__main__":
  absltest.main()
