# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""All programs, on one device and on four, train one model.

The measure is a plain program: whole tables, whole gradients, Adagrad as its
formula says. Sums over devices and over samples that name the same row are made
in other orders, so losses agree as float32 numbers do.
"""

from __future__ import annotations

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import model as model_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import small_run
from jax_tpu_embedding.sparsecore.examples.shakespeare import trainers
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)

_NUM_STEPS = 50
# Losses are about 5, where float32 numbers are 5e-7 apart.
_TOLERANCE = 1e-5

_CONFIG = small_run.CONFIG


class PlainTrainer(training.Trainer):
  """One device, and none of the library's lookups and updates."""

  api = "plain"

  def init(self):
    embedding.prepare_feature_specs_for_training(
        self.feature_specs, global_device_count=1, num_sc_per_device=1
    )
    variables = embedding.init_embedding_variables(
        self.tables_key,
        embedding.get_table_specs(self.feature_specs),
        jax.sharding.NamedSharding(
            self.mesh, jax.sharding.PartitionSpec(training.AXIS, None)
        ),
        num_sparsecore_per_device=1,
        bypass_mesh_check=True,
    )
    # A single shard has the rows in order, and padding after them.
    tables = {}
    for name, spec in self.feature_specs.items():
      table = spec.table_spec
      rows = np.s_[: table.vocabulary_size, : table.embedding_dim]
      tables[name] = tuple(
          leaf[rows] for leaf in jax.tree.leaves(variables[table.name])
      )
    return train_state.TreeState(
        step=0,
        dense=self.initial_parameters,
        optimizer_state=self.optimizer.init(self.initial_parameters),
        tables=tables,
    )

  def _scores(self, dense, tables, features, keys):
    activations = {name: tables[name][features[name]] for name in tables}
    activations["pair"] = activations["pair"][:, 0]
    return model_lib.logits(
        model_lib.apply_layers(dense), activations, self.config.dropout, keys
    )

  def update(self, state, batch):
    state.dense, state.optimizer_state, state.tables, loss = self._step(
        state.dense, state.optimizer_state, state.tables, batch, state.step
    )
    return loss

  @functools.partial(jax.jit, static_argnums=0)
  def _step(self, dense, optimizer_state, variables, batch, step):
    keys = model_lib.dropout_keys(
        self.config.seed, step, self.config.batch_size
    )

    def loss_fn(dense, tables):
      scores = self._scores(dense, tables, batch.features, keys)
      return jnp.mean(model_lib.losses(scores, batch.labels))

    loss, (gradients, table_gradients) = jax.value_and_grad(
        loss_fn, argnums=(0, 1)
    )(dense, {name: table for name, (table, _) in variables.items()})
    updated = {}
    for name, (table, accumulator) in variables.items():
      gradient = table_gradients[name]
      accumulator += gradient**2
      table -= self.config.learning_rate * gradient / jnp.sqrt(accumulator)
      updated[name] = (table, accumulator)
    updates, optimizer_state = self.optimizer.update(gradients, optimizer_state)
    return optax.apply_updates(dense, updates), optimizer_state, updated, loss

  def logits(self, state, features):
    tables = {name: table for name, (table, _) in state.tables.items()}
    return self._scores(state.dense, tables, features, keys=None)


def _losses(trainer: training.Trainer) -> list[float]:
  """Held-out before training, of each step, held-out after the last."""
  state = trainer.init()
  first = trainer.heldout_loss(state)
  steps = [float(trainer.train_step(state)) for _ in range(_NUM_STEPS)]
  return [first, *steps, trainer.heldout_loss(state)]


@functools.cache
def _plain_losses() -> list[float]:
  data = dataset.load(_CONFIG)
  unigram = baseline.log_probabilities(data.train_ids, len(data.words))
  return _losses(PlainTrainer(_CONFIG, data, unigram))


class AgreementTest(parameterized.TestCase):

  def test_the_plain_program_learns(self):
    first, *_, last = _plain_losses()
    self.assertLess(last, first - 0.03)

  @parameterized.product(api=list(trainers.TRAINERS), num_devices=[1, 4])
  def test_losses_are_those_of_the_plain_program(self, api, num_devices):
    config = dataclasses.replace(_CONFIG, num_devices=num_devices)
    np.testing.assert_allclose(
        _losses(trainers.trainer(config, api)),
        _plain_losses(),
        rtol=0,
        atol=_TOLERANCE,
    )

  def test_the_pipeline_has_the_bits_of_the_linen_program(self):
    linen, pipelined = (
        _losses(trainers.trainer(_CONFIG, api))
        for api in ("linen", "pipelined")
    )
    self.assertEqual(pipelined, linen)


if __name__ == "__main__":
  absltest.main()
