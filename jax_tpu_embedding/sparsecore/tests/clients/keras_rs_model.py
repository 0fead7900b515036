# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A Keras model on keras-rs's layer, its batches, and its plain counterpart.

Two tables and three features: ids of fixed number, one id per sample, and
ragged ids that share the table of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses

from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_layer
from jax_tpu_embedding.sparsecore.tests.clients import plain_model
import keras
import keras_rs
import numpy as np

BATCH = 32  # divisible by 4 devices with 4 SparseCores each
TABLE_OF = {"user": "users", "item": "items", "last": "items"}
# As wide as each other after padding, so that they can share a stack.
SHAPES = {"users": (50, 8), "items": (70, 6)}
_VALENCY = {"user": 3, "item": 1, "last": 4}
_DENSE_LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A Keras optimizer and the plain rule that it stands for."""

  make: Callable[[], keras.optimizers.Optimizer]
  rule: plain_model.Rule
  learning_rate: float | Callable[[int], float]
  first_slots: tuple[float, ...] = ()


class _Halving(keras.optimizers.schedules.LearningRateSchedule):

  def __call__(self, step):
    return 0.5 * 0.5**step


_halving = _Halving()

OPTIMIZERS = {
    "sgd": Optimizer(
        lambda: keras.optimizers.SGD(learning_rate=0.3), plain_model.sgd, 0.3
    ),
    "sgd with a schedule": Optimizer(
        lambda: keras.optimizers.SGD(learning_rate=_halving),
        plain_model.sgd,
        lambda step: 0.5 * 0.5**step,
    ),
    "adagrad": Optimizer(
        lambda: keras.optimizers.Adagrad(
            learning_rate=0.2, initial_accumulator_value=0.05
        ),
        plain_model.adagrad,
        0.2,
        (0.05,),
    ),
    "adam": Optimizer(
        lambda: keras.optimizers.Adam(learning_rate=0.01),
        plain_model.adam,
        0.01,
        (0.0, 0.0),
    ),
}


def feature_configs(
    optimizer: str = "sgd", combiner: str = "sum", **table_options
) -> dict[str, keras_rs.layers.FeatureConfig]:
  """Feature name -> its config, with tables on SparseCores."""
  tables = {
      name: keras_rs.layers.TableConfig(
          name=name,
          vocabulary_size=vocabulary_size,
          embedding_dim=embedding_dim,
          initializer=keras.initializers.RandomUniform(-1, 1, seed=seed),
          optimizer=OPTIMIZERS[optimizer].make(),
          combiner=combiner,
          **(dict(placement="sparsecore") | table_options),
      )
      for seed, (name, (vocabulary_size, embedding_dim)) in enumerate(
          SHAPES.items()
      )
  }
  return {
      name: keras_rs.layers.FeatureConfig(
          name=name,
          table=tables[table],
          input_shape=(BATCH, _VALENCY[name]),
          output_shape=(BATCH, SHAPES[table][1]),
      )
      for name, table in TABLE_OF.items()
  }


@dataclasses.dataclass(frozen=True)
class Batch:
  """Ids and weights by feature, as a user has them."""

  ids: Mapping[str, object]
  weights: Mapping[str, object] | None

  def gains(self, combiner: str = "sum") -> dict[str, np.ndarray]:
    """Feature -> its matrix of plain_model.gains."""
    return {
        name: plain_model.gains(
            _rows(self.ids[name]),
            self.weights and _rows(self.weights[name]),
            combiner,
            SHAPES[table][0],
        )
        for name, table in TABLE_OF.items()
    }


def _rows(values):
  return [np.atleast_1d(row) for row in values]


def _ragged(rows):
  array = np.empty(len(rows), dtype=object)
  array[:] = rows
  return array


def batch(seed: int = 0, with_weights: bool = False) -> Batch:
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, _VALENCY["last"] + 1, BATCH)
  lengths[:2] = 0, 2  # ragged and with an empty row, whatever the seed

  def like_ids(draw):
    return {
        "user": draw("users", (BATCH, _VALENCY["user"])),
        "item": draw("items", (BATCH,)),
        "last": _ragged([draw("items", (length,)) for length in lengths]),
    }

  ids = like_ids(
      lambda table, shape: rng.integers(
          SHAPES[table][0], size=shape, dtype="i4"
      )
  )
  if not with_weights:
    return Batch(ids, None)
  return Batch(
      ids, like_ids(lambda _, shape: rng.uniform(0.5, 2, shape).astype("f4"))
  )


def labels(seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).normal(size=(BATCH, 1)).astype("f4")


class Model(keras.Model):
  """The activations side by side, then one dense layer."""

  def __init__(self, embedding: keras_rs_layer.DistributedEmbedding):
    # Names of their own: those that Keras makes up count the layers of the
    # process, and checkpoints find weights by name.
    super().__init__(name="model")
    self.embedding = embedding
    self.dense = keras.layers.Dense(1, name="dense")

  def call(self, inputs, training=False):
    activations = self.embedding(inputs, training=training)
    return self.dense(
        keras.ops.concatenate(
            [activations[name] for name in sorted(activations)], axis=1
        )
    )


def build(
    optimizer: str = "sgd", combiner: str = "sum", **layer_options
) -> Model:
  """A compiled model with its weights made."""
  model = Model(
      keras_rs_layer.DistributedEmbedding(
          feature_configs(optimizer, combiner),
          name="embedding",
          **layer_options,
      )
  )
  model.compile(
      optimizer=keras.optimizers.SGD(_DENSE_LEARNING_RATE), loss="mse"
  )
  model(model.embedding.preprocess(batch().ids))
  return model


def plain_counterpart(model: Model, optimizer: str) -> plain_model.LinearModel:
  """The same model with the same weights, before its first step."""
  known = OPTIMIZERS[optimizer]
  tables = {
      name: np.asarray(values, np.float64)
      for name, values in model.embedding.get_embedding_tables().items()
  }
  return plain_model.LinearModel(
      tables={
          name: plain_model.Table(
              values,
              known.rule,
              known.learning_rate,
              [np.full_like(values, first) for first in known.first_slots],
          )
          for name, values in tables.items()
      },
      table_of=TABLE_OF,
      kernel=np.asarray(model.dense.kernel, np.float64),
      learning_rate=_DENSE_LEARNING_RATE,
  )
