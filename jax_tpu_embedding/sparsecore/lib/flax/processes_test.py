# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Layers in several processes with jax.distributed: the bits of one process."""

import multiprocessing

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import local_ports
from jax_tpu_embedding.sparsecore.lib.flax import training_process
import numpy as np

_NUM_PROCESSES = 2
_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_SECONDS = 240


class ProcessesTest(absltest.TestCase):

  def test_two_processes_of_two_devices(self):
    (port,) = local_ports.free(1)
    processes, pipes = [], []
    for number in range(_NUM_PROCESSES):
      pipe, of_process = _SPAWN.Pipe()
      process = _SPAWN.Process(
          target=training_process.run,
          args=(of_process, number, _NUM_PROCESSES, port),
          daemon=True,
      )
      process.start()
      self.addCleanup(process.kill)
      processes.append(process)
      pipes.append(pipe)
    training_process.configure(training_process.NUM_DEVICES)
    expected = training_process.train()
    for pipe in pipes:
      self.assertTrue(pipe.poll(_TIMEOUT_SECONDS), "A process does not answer.")
      actual = pipe.recv()
      self.assertIsInstance(actual, dict, actual)
      self.assertEqual(list(actual), ["refs", "parameters", "nnx"])
      for form, arrays in actual.items():
        with self.subTest(form):
          self.assertLen(arrays, 2, "A table and its accumulator.")
          for parts, of_one in zip(arrays, expected[form], strict=True):
            self.assertLen(parts, 2, "One of each device.")
            for first_row, rows in parts.items():
              np.testing.assert_array_equal(rows, of_one[first_row])
    for process in processes:
      process.join(_TIMEOUT_SECONDS)
      self.assertEqual(process.exitcode, 0)


if __name__ == "__main__":
  absltest.main()
