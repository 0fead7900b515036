# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What users of keras-rs's layer do beside training, on this package."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_layer
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_model
from jax_tpu_embedding.sparsecore.tests.clients import plain_model
import keras
import keras_rs
import numpy as np

_TOLERANCE = dict(rtol=1e-5, atol=1e-5)


def _layer(structure=lambda configs: configs, table_stacking="auto", **options):
  configs = keras_rs_model.feature_configs(**options)
  return keras_rs_layer.DistributedEmbedding(
      structure(configs), table_stacking=table_stacking
  )


def _expected(layer, batch, combiner="sum"):
  tables = layer.get_embedding_tables()
  return {
      name: gains @ np.asarray(tables[keras_rs_model.TABLE_OF[name]])
      for name, gains in batch.gains(combiner).items()
  }


class LookupTest(parameterized.TestCase):

  @parameterized.product(
      combiner=("sum", "mean", "sqrtn"), with_weights=(False, True)
  )
  def test_is_gains_times_table(self, combiner, with_weights):
    layer = _layer(combiner=combiner)
    batch = keras_rs_model.batch(with_weights=with_weights)
    activations = layer(layer.preprocess(batch.ids, batch.weights))
    for name, expected in _expected(layer, batch, combiner).items():
      np.testing.assert_allclose(
          activations[name], expected, err_msg=name, **_TOLERANCE
      )

  def test_activations_have_the_structure_of_the_features(self):
    structure = lambda of: [of["user"], (of["item"], of["last"])]
    layer = _layer(structure)
    batch = keras_rs_model.batch()
    activations = layer(layer.preprocess(structure(batch.ids)))
    keras.tree.map_structure(
        lambda got, expected: np.testing.assert_allclose(
            got, expected, **_TOLERANCE
        ),
        activations,
        structure(_expected(layer, batch)),
    )

  def test_tables_placed_automatically_are_on_sparsecores(self):
    layer = _layer(placement="auto")
    batch = keras_rs_model.batch()
    layer.preprocess(batch.ids)
    self.assertRegex(
        layer.trainable_variables[0].path, "/var:items_users:table$"
    )

  def test_layer_as_it_is_runs_without_sparsecores(self):
    layer = keras_rs.layers.DistributedEmbedding(
        keras_rs_model.feature_configs(placement="auto")
    )
    batch = keras_rs_model.batch()
    ids = {name: batch.ids[name] for name in ("user", "item")}
    ids["last"] = np.zeros((keras_rs_model.BATCH, 4), np.int32)
    activations = layer(layer.preprocess(ids))
    self.assertEqual(activations["user"].shape, (keras_rs_model.BATCH, 8))


class LimitsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    # With one SparseCore per device, limits would not matter.
    self.enter_context(mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: "2"}))
    self.layer = _layer(
        table_stacking=None,  # else the limits of stacks
        max_ids_per_partition=3,
        max_unique_ids_per_partition=3,
    )
    self.layer.update_stats = True
    # On 8 SparseCores or fewer, 4 samples or more of each want row 0.
    self.ids = {
        name: np.zeros((keras_rs_model.BATCH, valency), np.int32)
        for name, valency in {"user": 3, "item": 1, "last": 4}.items()
    }
    self.batch = keras_rs_model.Batch(self.ids, None)

  def test_ids_above_the_limits_are_dropped(self):
    activations = self.layer(self.layer.preprocess(self.ids))
    expected = _expected(self.layer, self.batch)["last"]
    self.assertGreater(np.abs(activations["last"] - expected).max(), 0.1)

  def test_training_raises_the_limits_to_what_a_batch_needs(self):
    activations = self.layer(self.layer.preprocess(self.ids, training=True))
    for name, expected in _expected(self.layer, self.batch).items():
      np.testing.assert_allclose(
          activations[name], expected, err_msg=name, **_TOLERANCE
      )


class DefaultLimitsTest(parameterized.TestCase):
  """Those of keras-rs, which were chosen for TPUs, on devices of CPUs."""

  @parameterized.parameters(False, True)
  def test_values_and_gradients_are_dense(self, training):
    table = keras_rs.layers.TableConfig(
        name="items",
        vocabulary_size=2000,
        embedding_dim=8,
        initializer=keras.initializers.RandomUniform(-1, 1, seed=1),
        optimizer=keras.optimizers.SGD(learning_rate=0.5),
        combiner="sum",
        placement="sparsecore",
    )
    layer = keras_rs_layer.DistributedEmbedding(
        keras_rs.layers.FeatureConfig(
            name="last",
            table=table,
            input_shape=(1024, 4),
            output_shape=(1024, 8),
        )
    )
    model = keras.Sequential([layer])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    # All on the first of four devices: 1,024 rows for each from each, where
    # the default limit is 256.
    ids = np.random.default_rng(0).integers(500, size=(1024, 4)) * 4
    ids = ids.astype(np.int32)
    inputs = layer.preprocess(ids, training=training)
    before = np.asarray(layer.get_embedding_tables()["items"], np.float64)
    gains = plain_model.gains(ids, None, "sum", 2000)
    np.testing.assert_allclose(layer(inputs), gains @ before, **_TOLERANCE)
    labels = np.random.default_rng(1).normal(size=(1024, 8)).astype("f4")
    model.train_on_batch(inputs, labels)
    gradient = gains.T @ (2 * (gains @ before - labels) / labels.size)
    np.testing.assert_allclose(
        layer.get_embedding_tables()["items"],
        before - 0.5 * gradient,
        **_TOLERANCE,
    )


class TablesTest(absltest.TestCase):

  def test_tables_that_are_set_are_looked_up_and_returned(self):
    tables = {
        name: np.random.default_rng(7).normal(size=shape).astype("f4")
        for name, shape in keras_rs_model.SHAPES.items()
    }
    layer = _layer()
    batch = keras_rs_model.batch()
    inputs = layer.preprocess(batch.ids)
    layer.set_embedding_tables(tables)
    returned = layer.get_embedding_tables()
    for name, table in tables.items():
      np.testing.assert_array_equal(returned[name], table)
    np.testing.assert_allclose(
        layer(inputs)["user"],
        plain_model.gains(batch.ids["user"], None, "sum", len(tables["users"]))
        @ tables["users"],
        **_TOLERANCE,
    )


class ModelTest(absltest.TestCase):

  def test_fit_takes_the_steps_of_single_batches(self):
    def batches(layer):
      for step in range(6):
        batch = keras_rs_model.batch(step)
        yield (
            layer.preprocess(batch.ids, training=True),
            keras_rs_model.labels(step),
        )

    fitted = keras_rs_model.build("adagrad", table_stacking="auto")
    plain = keras_rs_model.plain_counterpart(fitted, "adagrad")
    losses = [
        plain.train(
            keras_rs_model.batch(step).gains(), keras_rs_model.labels(step)
        )
        for step in range(6)
    ]
    history = fitted.fit(
        batches(fitted.embedding), steps_per_epoch=3, epochs=2, verbose=0
    )
    np.testing.assert_allclose(
        history.history["loss"],
        [np.mean(losses[:3]), np.mean(losses[3:])],
        rtol=1e-4,
    )

  def test_functional_models_take_symbolic_inputs(self):
    layer = _layer()
    inputs = layer.preprocess(
        {
            name: keras.Input((None,), dtype="int32")
            for name in keras_rs_model.TABLE_OF
        }
    )
    model = keras.Model(inputs=inputs, outputs=layer(inputs)["last"])
    batch = keras_rs_model.batch()
    np.testing.assert_allclose(
        model(layer.preprocess(batch.ids)),
        _expected(layer, batch)["last"],
        **_TOLERANCE,
    )


if __name__ == "__main__":
  absltest.main()
