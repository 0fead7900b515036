# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What writes rows before a batch is looked up, once for each batch."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()


def _scale(unused_dense, tables, batch):
  """Multiplies tables by a number of the batch."""
  for variables in tables.values():
    variables.table[...] = variables.table[...] * batch["labels"][0, 0]


def _train(run, batches):
  scale, step = jax.jit(_scale), jax.jit(run.train_step)
  losses = []
  for batch in batches:
    scale(*run.arguments(), batch)
    losses.append(run.take(step(*run.arguments(), batch)))
  return losses


class BeforeLookupTest(parameterized.TestCase):

  # In a stale step, activations miss an update, which is none here.
  @parameterized.parameters(
      ("off", 0.1, 0), ("exact", 0.1, 0), ("stale", 0.0, 0), ("stale", 0.0, 2)
  )
  def test_each_batch_is_made_ready_once(self, mode, rate, warmup_steps):
    optimizer = embedding_spec.SGDOptimizerSpec(rate)
    plain, pipelined = (training_runs.Refs(optimizer) for _ in range(2))
    batches = training_runs.batches()
    losses = training_runs.train_pipelined(
        pipelined,
        batches,
        mode=mode,
        warmup_steps=warmup_steps,
        before_lookup=_scale,
    )
    self.assertEqual(losses, _train(plain, batches))
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  def test_last_batch_is_not_made_ready_again(self):
    optimizer = training_runs.OPTIMIZERS["adagrad"]
    plain, pipelined = (training_runs.Refs(optimizer) for _ in range(2))
    # Each a pipeline of its own, whose only update is made by `flush`.
    for batch in training_runs.batches(2):
      losses = training_runs.train_pipelined(
          pipelined, [batch], mode="stale", before_lookup=_scale
      )
      self.assertEqual(losses, _train(plain, [batch]))
    training_runs.assert_same_bits(self, pipelined.arrays(), plain.arrays())

  @parameterized.parameters("off", "exact", "stale")
  def test_tables_that_are_values(self, mode):
    run = training_runs.Parameters(training_runs.OPTIMIZERS["sgd"])
    with self.assertRaisesRegex(
        NotImplementedError,
        "before_lookup is for tables in jax.Refs.* those of the lookup in .*"
        " tables='ref'",
    ):
      training_runs.train_pipelined(
          run, training_runs.batches(2), mode=mode, before_lookup=_scale
      )


if __name__ == "__main__":
  absltest.main()
