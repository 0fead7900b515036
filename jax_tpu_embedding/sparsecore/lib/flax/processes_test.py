# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Layers in several processes with jax.distributed: the bits of one process."""

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import process_job
from jax_tpu_embedding.sparsecore.lib.flax.testing import training_process
import numpy as np


class ProcessesTest(absltest.TestCase):

  def test_two_processes_of_two_devices(self):
    job = process_job.ProcessJob(
        self,
        training_process.train,
        num_processes=2,
        num_devices=training_process.NUM_DEVICES,
    )
    jax.config.update("jax_num_cpu_devices", training_process.NUM_DEVICES)
    expected = training_process.train()
    for actual in job.results():
      self.assertEqual(list(actual), ["refs", "parameters", "nnx"])
      for form, arrays in actual.items():
        with self.subTest(form):
          self.assertLen(arrays, 4, "Two tables and their accumulators.")
          for parts, of_one in zip(arrays, expected[form], strict=True):
            self.assertLen(parts, 2, "One of each device.")
            for device, rows in parts.items():
              self.assertTrue(np.isfinite(rows).all())
              np.testing.assert_array_equal(rows, of_one[device])

  def test_raw_ids_may_name_more_rows_than_the_limits_of_tables(self):
    job = process_job.ProcessJob(
        self,
        training_process.look_up_many_rows,
        num_processes=2,
        num_devices=2,
    )
    for arrays in job.results():
      np.testing.assert_allclose(arrays["found"], arrays["expected"], rtol=1e-5)


if __name__ == "__main__":
  absltest.main()
