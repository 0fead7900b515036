# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The programs in several processes; ../dlrm/job_test.py has how jobs end."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_pmap
from jax_tpu_embedding.sparsecore.examples.shakespeare import small_run

program_runs.compile_once()

_PROGRAM = "jax_tpu_embedding.sparsecore.examples.shakespeare.shakespeare"
# Each is as much work as half of the other tests of this folder: two, whose ids
# are converted in the step and on the hosts, and KILLS, which says how long tests
# of jobs may be, for all.
_PROGRAMS = ("nnx", "primitives")
if "KILLS" in os.environ:
  _PROGRAMS += ("linen", "pipelined")


class JobTest(program_runs.ProgramTest):

  @parameterized.named_parameters(*((api, api) for api in _PROGRAMS))
  def test_two_processes_are_one_run(self, api):
    directories = [self.directory() for _ in range(2)]
    runs = [
        program_runs.start(
            "-m",
            _PROGRAM if api == "linen" else f"{_PROGRAM}_{api}",
            *small_run.ARGUMENTS,
            "--num_devices=4",
            f"--num_processes={num_processes}",
            "--num_steps=10",
            "--evaluate_every=5",
            f"--output_dir={output_dir}",
        )
        for num_processes, output_dir in enumerate(directories, start=1)
    ]
    results = []
    for run in runs:
      stdout, stderr = run.communicate()
      self.assertEqual(run.returncode, 0, stderr)
      # With the text that the model writes.
      results.append(
          re.search("Held-out perplexity.*(?=\nCheckpoint)", stdout, re.S)[0]
      )
    self.assertEqual(*results)
    self.assert_same_checkpoint(*directories, 10)
    # With the losses on the way.
    metadata = [
        pathlib.Path(directory, "checkpoints", "10", "run", "metadata")
        for directory in directories
    ]
    self.assertEqual(*(path.read_text(encoding="utf-8") for path in metadata))

  def test_pmap_is_one_process(self):
    config = dataclasses.replace(
        small_run.CONFIG, num_devices=2, num_processes=2
    )
    with self.assertRaisesRegex(
        config_lib.UsageError, "program needs --num_processes=1, got 2"
    ):
      program.run(config, shakespeare_pmap.PmapTrainer)


if __name__ == "__main__":
  absltest.main()
