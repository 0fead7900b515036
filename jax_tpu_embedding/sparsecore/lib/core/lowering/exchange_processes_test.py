# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Several processes with jax.distributed: the bits of one device."""

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange_process
from jax_tpu_embedding.sparsecore.lib.core.lowering import process_job


class ExchangeProcessesTest(parameterized.TestCase):

  # 2 processes of 2 devices, so that some devices share a process; and 4 of 1.
  # A mesh of two axes has the devices of a process along the second.
  @parameterized.parameters(
      (exchange_process.largest_difference, 2),
      (exchange_process.largest_difference, 4),
      (exchange_process.largest_difference_over_one_of_two_axes, 2),
      (exchange_process.largest_difference_over_the_axis_of_a_process, 2),
      (exchange_process.largest_difference_over_two_axes, 2),
  )
  def test_same_bits_as_on_one_device(self, largest_difference, num_processes):
    job = process_job.ProcessJob(
        self,
        largest_difference,
        num_processes=num_processes,
        num_devices=4,
    )
    self.assertEqual(job.results(), [0] * num_processes)


if __name__ == "__main__":
  absltest.main()
