# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelined steps in several processes: the bits of one process."""

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import process_job
from jax_tpu_embedding.sparsecore.lib.pipelining.testing import training_runs
import numpy as np

_NUM_DEVICES = 4
P = jax.sharding.PartitionSpec


def train():
  """Losses of each mode, and the parts of tables on this process's devices."""
  jax.config.update("jax_disable_most_optimizations", True)
  mesh = jax.sharding.Mesh(jax.devices(), "x")
  split = jax.sharding.NamedSharding(mesh, P("x"))

  def of_process(x):
    x = np.split(x, jax.process_count())[jax.process_index()]
    return jax.make_array_from_process_local_data(split, x)

  batches = jax.tree.map(of_process, training_runs.batches(4))
  results = {}
  for mode in ("plain", "exact", "stale"):
    run = training_runs.Refs(training_runs.OPTIMIZERS["adagrad"])
    if mode == "plain":
      losses = training_runs.train(run, batches)
    else:
      losses = training_runs.train_pipelined(run, batches, mode=mode)
    parts = [
        (shard.index[0].start or 0, np.asarray(shard.data))
        for table in run.stacks().values()
        for shard in table.addressable_shards
    ]
    results[mode] = losses, parts
  return results


class ProcessesTest(absltest.TestCase):

  def test_two_processes_of_two_devices(self):
    job = process_job.ProcessJob(
        self, train, num_processes=2, num_devices=_NUM_DEVICES
    )
    jax.config.update("jax_num_cpu_devices", _NUM_DEVICES)
    expected = train()
    results = job.results()
    for mode, (losses, parts) in expected.items():
      of_one = {}
      for first_row, rows in parts:
        of_one.setdefault(first_row, []).append(rows)
      for result in results:
        found_losses, found = result[mode]
        np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
        self.assertLen(found, 4, "Two tables on two devices.")
        for number, (first_row, rows) in enumerate(found):
          np.testing.assert_allclose(
              rows, of_one[first_row][number // 2], rtol=1e-5, atol=1e-6
          )
    for result in results:
      self.assertEqual(result["exact"][0], result["plain"][0])
      jax.tree.map(
          np.testing.assert_array_equal,
          result["exact"][1],
          result["plain"][1],
      )
      self.assertNotAlmostEqual(
          result["stale"][0][1], result["plain"][0][1], places=5
      )


if __name__ == "__main__":
  absltest.main()
