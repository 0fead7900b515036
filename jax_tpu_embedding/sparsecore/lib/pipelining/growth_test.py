# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits that grow while a batch is in flight."""

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

_BATCH = training_runs.BATCH


def _batches():
  """Batches whose ids are few, and from the fourth on many and distinct."""
  rng = np.random.default_rng(2)
  return [
      dict(
          ids={
              "users": rng.integers(0, num_rows, (_BATCH, 1), np.int32),
              "items": rng.integers(0, num_rows, (_BATCH, 3), np.int32),
          },
          labels=rng.normal(size=(_BATCH, 1)).astype(np.float32),
      )
      for num_rows in (2, 2, 2, 64, 64, 64)
  ]


def _preprocessed(limits):
  """The batches, and each batch's limits."""
  split = jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices(), "x"), jax.sharding.PartitionSpec("x")
  )
  batches, seen = [], []
  for batch in _batches():
    inputs, _ = limits.preprocess(batch["ids"])
    batches.append({**batch, "ids": jax.device_put(inputs, split)})
    seen.append(limits.limits)
  return batches, seen


def _limits_of(run, **options):
  return embedding.AdaptiveLimits(
      run.specs,
      4,
      4,
      num_sc_per_device=1,
      ceiling=None,
      # With more, the limits of the first batch are enough for the others.
      headroom=1.0,
      **options,
  )


class GrowthTest(parameterized.TestCase):

  @parameterized.product(
      form=list(training_runs.FORMS), mode=["exact", "stale"]
  )
  def test_step_is_traced_once_more_and_makes_the_same_bits(self, form, mode):
    make = lambda: training_runs.FORMS[form](
        training_runs.OPTIMIZERS["adagrad"]
    )
    run, fixed = make(), make()
    # More in the fourth batch only.
    batches, seen = _preprocessed(_limits_of(run))
    self.assertEqual([x == seen[-1] for x in seen], [False] * 3 + [True] * 3)
    traces, plain_step = [], run.train_step

    def train_step(*args):
      traces.append(jax.tree.leaves(args[-1])[0].shape)
      return plain_step(*args)

    step = pipelining.pipelined(train_step, 2, mode)
    flight = step.start(*run.arguments(), batches[0])
    losses, num_traces = [], []
    for batch in batches[1:]:
      flight, results = step(flight, *run.arguments(), batch)
      losses.append(run.take(results))
      num_traces.append(len(traces))
    flight, results = step.finish(flight, *run.arguments())
    losses.append(run.take(results))
    run.flushed(step.flush(flight, *run.arguments()))

    # "stale" has another step after the first, in which nothing is pending.
    before = num_traces[1]
    self.assertEqual(num_traces[2:], [before + 1] * 3)
    fixed_batches, _ = _preprocessed(_limits_of(fixed, start=seen[-1]))
    self.assertEqual(
        losses,
        training_runs.train_pipelined(fixed, fixed_batches, mode=mode),
    )
    training_runs.assert_same_bits(self, run.arrays(), fixed.arrays())


if __name__ == "__main__":
  absltest.main()
