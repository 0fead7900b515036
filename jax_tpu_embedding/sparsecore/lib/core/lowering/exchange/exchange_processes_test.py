# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Several processes with jax.distributed: the bits of one device."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.testing import exchange_process
from jax_tpu_embedding.sparsecore.lib.core.testing import process_job
import numpy as np


@functools.cache
def _on_one_device(name):
  return exchange_process.on_one_device(exchange_process.CASES[name])


class ExchangeProcessesTest(parameterized.TestCase):

  # 2 processes of 2 devices, so that some devices share a process; and 4 of 1.
  # To start them takes longer than a case, so they run all.
  @parameterized.parameters(2, 4)
  def test_same_bits_as_on_one_device(self, num_processes):
    job = process_job.ProcessJob(
        self,
        exchange_process.parts_of_all,
        num_processes=num_processes,
        num_devices=4,
    )
    expected = {name: _on_one_device(name) for name in exchange_process.CASES}
    for process, parts_by_case in enumerate(job.results()):
      self.assertSameElements(parts_by_case, expected)
      for name, arrays in parts_by_case.items():
        with self.subTest(name, process=process):
          for parts, whole in zip(arrays, expected[name], strict=True):
            self.assertNotEmpty(parts)
            for index, values in parts:
              np.testing.assert_array_equal(values, whole[index])


if __name__ == "__main__":
  absltest.main()
