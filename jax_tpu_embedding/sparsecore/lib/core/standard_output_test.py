# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_PROGRAM = """
import argparse
from jax_tpu_embedding.sparsecore.lib.core import standard_output

def main():
  argparse.ArgumentParser(prog="program").parse_args()
  print("a line")
  print(%d * "many lines, which fill a buffer\\n")
  return 3

standard_output.run(main)
"""


def _start(num_lines: int, *arguments: str, **options):
  return subprocess.Popen(
      [sys.executable, "-c", _PROGRAM % num_lines, *arguments],
      # argparse ignores errors of what is written at once.
      env={
          **os.environ,
          "PYTHONPATH": os.pathsep.join(sys.path),
          "PYTHONUNBUFFERED": "",
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      **options,
  )


class StandardOutputTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, []), (10_000, []), (0, ["--help"])  # printed at the end, or before it
  )
  def test_a_program_that_nobody_reads_ends_quietly(self, num_lines, arguments):
    process = _start(num_lines, *arguments)
    process.stdout.close()
    with process.stderr:
      self.assertEqual(process.stderr.read(), b"")
    self.assertEqual(process.wait(), 141)

  @parameterized.parameters(([], 3, b"a line\n"), (["--help"], 0, b"usage: "))
  def test_others_end_as_they_say(self, arguments, status, begin):
    process = _start(10_000, *arguments)
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (status, b""))
    self.assertStartsWith(stdout, begin)

  def test_there_may_be_no_standard_output(self):
    process = _start(0, preexec_fn=lambda: os.close(1))
    _, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (3, b""))


if __name__ == "__main__":
  absltest.main()
