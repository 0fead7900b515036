# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import resumed_runs
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import training
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

launch.provide_devices(4)

_CONFIG = config_lib.Config(
    batch_size=16,
    table_rows=20,
    embedding_dim=8,
    bottom_mlp=(8,),
    cross_layers=1,
    cross_rank=4,
    top_mlp=(8,),
)


def _batch(seed: int) -> features.Batch:
  rng = np.random.default_rng(seed)
  return features.Batch(
      labels=rng.integers(0, 2, 16).astype(np.float32),
      dense=rng.random((16, 13), np.float32),
      rows=rng.integers(0, 20, (16, 26), np.int32),
  )


def _trainer(num_devices: int = 1) -> training.Trainer:
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("data",))
  jax.set_mesh(mesh)
  return _made_trainer(num_devices)


@functools.cache
def _made_trainer(num_devices: int) -> training.Trainer:
  """Made, and its step compiled, once; needs the mesh."""
  return training.Trainer(dataclasses.replace(_CONFIG, num_devices=num_devices))


class TrainingTest(parameterized.TestCase):

  def test_a_step_changes_the_rows_of_its_batch_and_no_others(self):
    trainer = _trainer()
    state = trainer.init()
    before = resumed_runs.arrays(state)["tables"]
    trainer.train_step(state, _batch(0))
    after = resumed_runs.arrays(state)["tables"]
    specs = embedding.get_table_specs(trainer.model.feature_specs)
    before, after = (
        table_stacking.unshard_and_unstack_tables(specs, tables, num_shards=1)
        for tables in (before, after)
    )
    for i in range(26):
      for leaf in ("table", "slot"):
        (old,) = jax.tree.leaves(getattr(before[f"C{i + 1}"], leaf))
        (new,) = jax.tree.leaves(getattr(after[f"C{i + 1}"], leaf))
        is_changed = np.any(np.asarray(old) != np.asarray(new), axis=1)
        changed = np.nonzero(is_changed)[0]
        # Not equal to: the square of a small gradient is lost in the
        # accumulator.
        self.assertNotEmpty(changed)
        self.assertLessEqual(set(changed), set(_batch(0).rows[:, i]))

  @parameterized.parameters(1, 4)
  def test_the_step_is_traced_and_compiled_once(self, num_devices):
    events = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, fun_name="", **__: events.append((event, fun_name))
    )
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("data",))
    jax.set_mesh(mesh)
    trainer = training.Trainer(
        dataclasses.replace(_CONFIG, num_devices=num_devices)
    )
    state = trainer.init()
    for i in range(3):
      trainer.train_step(state, _batch(i))
    of_step = [event for event, name in events if "_train_step" in name]
    for event in ("jaxpr_trace_duration", "backend_compile_duration"):
      self.assertEqual(of_step.count(f"/jax/core/compile/{event}"), 1, event)

  @parameterized.parameters(1, 4)
  def test_ids_may_be_converted_ahead(self, num_devices):
    trainer = _trainer(num_devices)
    results = []
    for convert in (contextlib.nullcontext, trainer.preprocessed):
      state = trainer.init()
      with convert(map(_batch, range(3))) as batches:
        losses = [trainer.train_step(state, batch) for batch in batches]
      results.append((losses, resumed_runs.arrays(state)["tables"]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        *results,
    )

  def test_logits_change_nothing(self):
    trainer = _trainer()
    state = trainer.init()
    before = resumed_runs.arrays(state)
    first = np.asarray(trainer.logits(state, _batch(0)))
    np.testing.assert_array_equal(first, trainer.logits(state, _batch(0)))
    jax.tree.map(
        np.testing.assert_array_equal, before, resumed_runs.arrays(state)
    )
    self.assertEqual(state.step, 0)

  def test_the_loss_is_that_of_the_logits_and_falls(self):
    trainer = _trainer()
    state = trainer.init()
    batch = _batch(0)
    logits = np.asarray(trainer.logits(state, batch), np.float64)
    probabilities = 1 / (1 + np.exp(-logits))
    likelihoods = np.where(batch.labels == 1, probabilities, 1 - probabilities)
    losses = [float(trainer.train_step(state, batch)) for _ in range(30)]
    self.assertAlmostEqual(losses[0], -np.mean(np.log(likelihoods)), places=5)
    self.assertLess(losses[-1], losses[0] - 0.05)
    self.assertEqual(state.step, 30)

  @parameterized.parameters(1, 4)
  def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
      self, num_devices
  ):
    trainer = _trainer(num_devices)
    resumed_runs.assert_goes_on_as_if_it_had_not_stopped(
        self,
        trainer.init,
        lambda state: trainer.train_step(state, _batch(state.step)),
    )

  @parameterized.parameters((1, 4), (4, 2))
  def test_training_goes_on_on_other_devices_and_in_other_stacks(
      self, num_devices, other_num_devices
  ):
    first = _trainer(num_devices)
    saved = first.init()
    for i in range(3):
      first.train_step(saved, _batch(i))
    of_saved = resumed_runs.saved(self, saved)
    expected = float(first.train_step(saved, _batch(3)))
    # Of few tables in a stack, where the other has all in one.
    auto_stack_tables = functools.partial(
        embedding.auto_stack_tables, activation_mem_bytes_limit=1024
    )
    jax.set_mesh(
        jax.sharding.Mesh(jax.devices()[:other_num_devices], ("data",))
    )
    with mock.patch.object(embedding, "auto_stack_tables", auto_stack_tables):
      second = training.Trainer(
          dataclasses.replace(_CONFIG, num_devices=other_num_devices)
      )
      resumed = second.init()
      self.assertNotEqual(
          saved.table_variables().keys(), resumed.table_variables().keys()
      )
      resumed_runs.assert_restored(self, of_saved, resumed)
      loss = float(second.train_step(resumed, _batch(3)))
    # Sums are in another order.
    np.testing.assert_allclose(loss, expected, rtol=1e-5)

  def test_several_devices_train_as_one_does(self):
    losses = []
    for num_devices in (1, 4):
      trainer = _trainer(num_devices)
      state = trainer.init()
      losses.append(
          [float(trainer.train_step(state, _batch(i))) for i in range(5)]
      )
    # Sums are in another order.
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)

  @parameterized.parameters(("exact", 4), ("stale", 1))
  def test_pipelines(self, pipeline, num_devices):
    def trained(trainer):
      state, losses = trainer.init(), []
      for i in range(8):
        # As before an evaluation, after the fourth.
        ahead = () if i in (3, 7) else (_batch(i + 1),)
        losses.append(float(trainer.train_step(state, _batch(i), *ahead)))
      self.assertEqual(state.step, 8)
      return losses, resumed_runs.arrays(state)

    expected, expected_arrays = trained(_trainer(num_devices))
    config = dataclasses.replace(
        _CONFIG, num_devices=num_devices, pipeline=pipeline
    )
    losses, arrays = trained(training.Trainer(config))
    if pipeline == "exact":
      self.assertEqual(losses, expected)
      jax.tree.map(np.testing.assert_array_equal, arrays, expected_arrays)
    else:
      # Nothing is missing in the first step; in the second, an update is.
      self.assertAlmostEqual(losses[0], expected[0], places=6)
      self.assertNotEqual(losses[1], expected[1])
      np.testing.assert_allclose(losses, expected, atol=0.05)


if __name__ == "__main__":
  absltest.main()
