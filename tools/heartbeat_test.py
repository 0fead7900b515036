# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import re
import signal
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_HEARTBEAT = pathlib.Path(__file__).with_name("heartbeat.py")
_LINE = "[1,024 / 2,048] 3 / 5 tests; Testing //a:b_test; 7s linux-sandbox"


class HeartbeatTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.bazel = pathlib.Path(self.create_tempdir().full_path, "bazel")

  def start(
      self,
      script: str,
      *words: str,
      silence: float = 0.2,
      stderr=subprocess.PIPE,
  ) -> subprocess.Popen[str]:
    """Starts a shell script in Bazel's place.

    Args:
      script: what it does.
      *words: its arguments.
      silence: seconds after which something is to be said.
      stderr: as of Popen.
    """
    self.bazel.write_text(f"#!/bin/bash\n{script}\n")
    self.bazel.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, _HEARTBEAT, self.bazel, *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | {"JTE_HEARTBEAT_SECONDS": str(silence)},
        text=True,
        # What runs in the background of a shell inherits that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    self.addCleanup(process.__exit__, None, None, None)
    return process

  def test_a_silent_bazel_is_said_to_do_what_it_last_said(self):
    process = self.start(f"echo '{_LINE}' >&2; echo other >&2; sleep 2", "test")
    _, stderr = process.communicate()
    self.assertRegex(
        stderr, rf"\n\(\d+ s, still running\) {re.escape(_LINE)}\n"
    )
    self.assertNotIn("still running) other", stderr)

  def test_no_more_than_20_seconds_are_silent_by_default(self):
    unset = {
        name: value
        for name, value in os.environ.items()
        if name != "JTE_HEARTBEAT_SECONDS"
    }
    done = subprocess.run(
        [sys.executable, "-c", "import heartbeat; print(heartbeat.INTERVAL)"],
        # Under Bazel 7 the directory that Python is started in is no place to
        # import from (PYTHONSAFEPATH).
        env=unset | {"PYTHONPATH": str(_HEARTBEAT.parent)},
        stdout=subprocess.PIPE,
        check=True,
    )
    self.assertLessEqual(float(done.stdout), 20)

  def test_while_bazel_prints_nothing_is_added(self):
    process = self.start(
        "for i in {1..20}; do echo line >&2; sleep 0.2; done", silence=2
    )
    _, stderr = process.communicate()
    self.assertEqual(stderr, "line\n" * 20)

  def test_standard_output_is_left_alone(self):
    process = self.start("printf out; sleep 1; exit 0")
    stdout, _ = process.communicate()
    self.assertEqual(stdout, "out")

  def test_lines_of_both_outputs_keep_their_order_in_one_file(self):
    process = self.start(
        "for i in {1..50}; do echo out$i; echo err$i >&2; done",
        stderr=subprocess.STDOUT,
    )
    stdout, _ = process.communicate()
    self.assertEqual(stdout, "".join(f"out{i}\nerr{i}\n" for i in range(1, 51)))

  def test_what_is_printed_last_is_there_when_it_ends(self):
    process = self.start("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3")
    _, stderr = process.communicate()
    self.assertLen(stderr, 300000)

  @parameterized.parameters(0, 1, 3, 127)
  def test_the_exit_code_is_bazels(self, code):
    process = self.start(f"exit {code}")
    process.communicate()
    self.assertEqual(process.returncode, code)

  def test_death_by_a_signal_is_bazels(self):
    process = self.start("kill -9 $$")
    process.communicate()
    self.assertEqual(process.returncode, -signal.SIGKILL)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  def test_a_signal_reaches_bazel(self, number):
    name = number.name.removeprefix("SIG")
    process = self.start(
        f"trap 'echo caught; exit 8' {name}; echo ready;"
        " for i in {1..200}; do sleep 0.1; done"
    )
    self.assertEqual(process.stdout.readline(), "ready\n")
    process.send_signal(number)
    stdout, _ = process.communicate()
    self.assertEqual(stdout, "caught\n")
    self.assertEqual(process.returncode, 8)

  def test_the_program_of_run_may_be_silent(self):
    process = self.start(
        "exec -a program sleep 4", "run", "//a:program", silence=2
    )
    _, stderr = process.communicate()
    self.assertEqual(stderr, "")

  def test_what_stays_in_the_background_is_not_waited_for(self):
    process = self.start("sleep 600 & echo pid $! >&2; exit 0")
    line = process.stderr.readline()
    self.addCleanup(os.kill, int(line.split()[1]), signal.SIGTERM)
    process.wait(timeout=60)

  def test_a_reader_that_leaves_ends_bazel(self):
    process = self.start("while echo line >&2; do :; done")
    process.stderr.readline()
    process.stderr.close()
    self.assertNotEqual(process.wait(), 0)


if __name__ == "__main__":
  absltest.main()
