# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The programs in several processes; ../dlrm/job_test.py has how jobs end."""

from __future__ import annotations

import re

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.shakespeare import small_run

program_runs.compile_once()

_PROGRAMS = "jax_tpu_embedding.sparsecore.examples.shakespeare"


def _run(program: str, *arguments: str) -> tuple[int, str, str]:
  process = program_runs.start(
      "-m", f"{_PROGRAMS}.{program}", *small_run.ARGUMENTS, *arguments
  )
  stdout, stderr = process.communicate()
  return process.returncode, stdout, stderr


class JobTest(program_runs.ProgramTest):

  @parameterized.parameters("shakespeare", "shakespeare_nnx")
  def test_two_processes_are_one_run(self, program):
    results = []
    directories = [self.directory() for _ in range(2)]
    for num_processes, output_dir in enumerate(directories, start=1):
      code, stdout, stderr = _run(
          program,
          "--num_devices=4",
          f"--num_processes={num_processes}",
          "--num_steps=10",
          "--evaluate_every=5",
          f"--output_dir={output_dir}",
      )
      self.assertEqual(code, 0, stderr)
      # With the text that the model writes.
      results.append(
          re.search("Held-out perplexity.*(?=\nCheckpoint)", stdout, re.S)[0]
      )
    self.assertEqual(*results)
    self.assert_same_checkpoint(*directories, 10)

  def test_others_are_one_process(self):
    code, _, stderr = _run(
        "shakespeare_pmap", "--num_devices=2", "--num_processes=2"
    )
    self.assertEqual(code, 1)
    self.assertEqual(
        stderr.count("This program needs --num_processes=1, got 2"), 1, stderr
    )


if __name__ == "__main__":
  absltest.main()
