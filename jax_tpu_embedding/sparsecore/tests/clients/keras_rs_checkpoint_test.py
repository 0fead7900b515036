# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Models on keras-rs's layer are saved, restored, and train on as before."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_model
from keras_rs.src.layers.embedding.jax import checkpoint_utils
import numpy as np


def _train(model, steps):
  """The loss of each of `steps`."""
  losses = []
  for step in steps:
    batch = keras_rs_model.batch(step)
    model.reset_metrics()  # else the mean loss of all batches
    losses.append(
        model.train_on_batch(
            model.embedding.preprocess(batch.ids, training=True),
            keras_rs_model.labels(step),
        )
    )
  return losses


def _save_weights(model, directory):
  model.save_weights(os.path.join(directory, "model.weights.h5"))


def _load_weights(model, directory):
  model.load_weights(os.path.join(directory, "model.weights.h5"))


def _manager(model, directory):
  return checkpoint_utils.JaxKeras3CheckpointManager(
      model, directory, max_to_keep=1
  )


def _save_with_orbax(model, directory):
  with _manager(model, directory) as manager:
    manager.save_state(0)


def _restore_with_orbax(model, directory):
  with _manager(model, directory) as manager:
    manager.restore_state()


class CheckpointTest(parameterized.TestCase):

  @parameterized.parameters(
      ("sgd", _save_weights, _load_weights),
      ("adam", _save_weights, _load_weights),
      ("adagrad", _save_with_orbax, _restore_with_orbax),
      ("adam", _save_with_orbax, _restore_with_orbax),
  )
  def test_restored_models_continue_exactly(self, optimizer, save, restore):
    directory = self.create_tempdir().full_path
    model = keras_rs_model.build(optimizer, table_stacking="auto")
    _train(model, range(2))
    save(model, directory)
    expected = _train(model, range(2, 4))

    restored = keras_rs_model.build(optimizer, table_stacking="auto")
    _train(restored, [7])  # so that everything has other values
    restore(restored, directory)
    self.assertEqual(_train(restored, range(2, 4)), expected)
    for new, old in zip(restored.variables, model.variables, strict=True):
      np.testing.assert_array_equal(new.value, old.value, err_msg=old.path)

  def test_tables_move_to_other_numbers_of_sparsecores(self):
    model = keras_rs_model.build(table_stacking="auto")
    tables = model.embedding.get_embedding_tables()
    with mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: "4"}):
      other = keras_rs_model.build(table_stacking=[["users", "items"]])
      other.embedding.set_embedding_tables(tables)
      other.dense.set_weights(model.dense.get_weights())
      losses = _train(other, range(2))
    np.testing.assert_allclose(losses, _train(model, range(2)), rtol=1e-5)


if __name__ == "__main__":
  absltest.main()
