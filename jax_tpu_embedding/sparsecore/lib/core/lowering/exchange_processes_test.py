# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Several processes with jax.distributed: the bits of one device."""

import multiprocessing

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import local_ports
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange_process

_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_SECONDS = 240


class ExchangeProcessesTest(parameterized.TestCase):

  # 2 processes of 2 devices, so that some devices share a process; and 4 of 1.
  @parameterized.parameters(2, 4)
  def test_same_bits_as_on_one_device(self, num_processes):
    (port,) = local_ports.free(1)
    processes, pipes = [], []
    for number in range(num_processes):
      pipe, of_process = _SPAWN.Pipe()
      process = _SPAWN.Process(
          target=exchange_process.run,
          args=(of_process, number, num_processes, port),
          daemon=True,
      )
      process.start()
      self.addCleanup(process.kill)
      processes.append(process)
      pipes.append(pipe)
    for pipe in pipes:
      self.assertTrue(pipe.poll(_TIMEOUT_SECONDS), "A process does not answer.")
      self.assertEqual(pipe.recv(), 0)
    for process in processes:
      process.join(_TIMEOUT_SECONDS)
      self.assertEqual(process.exitcode, 0)


if __name__ == "__main__":
  absltest.main()
