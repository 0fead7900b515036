# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program in several processes."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import time

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.dlrm import small_run

program_runs.compile_once()

_PROGRAM = "jax_tpu_embedding.sparsecore.examples.dlrm"


def _start(*arguments: str):
  return program_runs.start("-m", _PROGRAM, *small_run.FLAGS, *arguments)


def _run(*arguments: str) -> tuple[int, str, str]:
  process = _start(*arguments)
  stdout, stderr = process.communicate()
  return process.returncode, stdout, stderr


def _process_ids(starter: int) -> list[int]:
  children = pathlib.Path(f"/proc/{starter}/task/{starter}/children")
  return [int(pid) for pid in children.read_text().split()]


class JobTest(program_runs.ProgramTest):

  def test_two_processes_are_one_run(self):
    one, job = self.directory(), self.directory()
    code, alone, _ = _run("--num_devices=2", f"--output_dir={one}")
    self.assertEqual(code, 0)
    code, together, _ = _run(
        "--num_devices=2", "--num_processes=2", f"--output_dir={job}"
    )
    self.assertEqual(code, 0)

    def result(stdout):
      return re.findall("Held-out .*|Log: [^/]*|Tables: .*", stdout)

    self.assertLen(result(alone), 3)
    self.assertEqual(result(together), result(alone))
    self.assertTrue(pathlib.Path(job, "training.png").is_file())
    self.assert_same_checkpoint(one, job, 10)

  def test_a_killed_process_ends_the_job_and_one_continues_it(self):
    output_dir = self.directory()
    job = _start(
        "--num_devices=4",
        "--num_processes=2",
        f"--output_dir={output_dir}",
        "--num_steps=1000000",
        "--checkpoint_every=2",
        "--evaluate_every=1000000",
    )
    while not list(pathlib.Path(output_dir).glob("checkpoints/[0-9]*/tables")):
      self.assertIsNone(job.poll())
      time.sleep(0.05)
    processes = _process_ids(job.pid)
    self.assertLen(processes, 2)
    os.kill(processes[1], signal.SIGKILL)
    _, stderr = job.communicate()
    self.assertEqual(job.returncode, 75)
    self.assertRegex(
        stderr, r"dlrm: process 1 of 2 was ended by SIGKILL, .* --resume"
    )
    self.assertFalse(
        [p for p in processes if pathlib.Path(f"/proc/{p}").exists()]
    )
    steps = pathlib.Path(output_dir, "checkpoints").glob("[0-9]*/tables")
    step = max(int(path.parent.name) for path in steps)
    code, stdout, _ = _run(
        f"--output_dir={output_dir}", "--resume", f"--num_steps={step + 2}"
    )
    self.assertEqual(code, 0)
    self.assertIn(f"Resumed at step {step} ", stdout)

  def test_what_is_wrong_is_said_once(self):
    code, stdout, stderr = _run(
        "--num_devices=2",
        "--num_processes=2",
        f"--output_dir={self.directory()}",
        "--data=/nowhere.tsv",
    )
    self.assertEqual((code, stdout), (1, ""))
    self.assertEqual(stderr.count("dlrm: --data: there is no file"), 1)


if __name__ == "__main__":
  absltest.main()
