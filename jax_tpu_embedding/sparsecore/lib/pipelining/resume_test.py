# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A run that ends without notice goes on from what was saved."""

import pickle

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

_SAVED_AFTER = 3


def _run(form):
  return training_runs.FORMS[form](training_runs.OPTIMIZERS["adam"])


class ResumeTest(parameterized.TestCase):

  @parameterized.product(
      form=list(training_runs.FORMS), mode=["exact", "stale"]
  )
  def test_run_goes_on_as_one_that_did_not_end(self, form, mode):
    uninterrupted = _run(form)
    expected, _ = _train(uninterrupted, mode)
    # Of a run that is lost after five steps, three were saved.
    _, saved = _train(_run(form), mode, num_steps=5)
    run = _run(form)
    structure = jax.tree.structure(run.arrays())
    run.restore(structure.unflatten(pickle.loads(saved)))
    losses, _ = _train(run, mode, begin=_SAVED_AFTER)
    self.assertEqual(losses, expected[_SAVED_AFTER:])
    training_runs.assert_same_bits(self, run.arrays(), uninterrupted.arrays())


def _train(run, mode, begin=0, num_steps=training_runs.STEPS):
  """Losses, and what was saved on the way."""
  batches = training_runs.batches()
  step = pipelining.pipelined(run.train_step, 2, mode)
  losses, saved = [], None
  flight = step.start(*run.arguments(), batches[begin])
  for i in range(begin, num_steps):
    if i + 1 < len(batches):
      flight, results = step(flight, *run.arguments(), batches[i + 1])
    else:
      flight, results = step.finish(flight, *run.arguments())
    losses.append(run.take(results))
    if i + 1 == _SAVED_AFTER:
      # Nothing but the state, after all updates. Next is the batch in flight.
      run.flushed(step.flush(flight, *run.arguments()))
      saved = pickle.dumps(jax.tree.leaves(run.arrays()))
      if mode == "stale":
        flight = step.start(*run.arguments(), *flight.batch)
  run.flushed(step.flush(flight, *run.arguments()))
  return losses, saved


if __name__ == "__main__":
  absltest.main()
