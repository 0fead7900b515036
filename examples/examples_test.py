# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the example programs as they stand; they check their own results."""

import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_HERE = pathlib.Path(__file__)
# Where a checkout has the folder beside it, the programs that users were
# promised are there; those in this folder are their copies.
_PROMISED = _HERE.resolve().parents[2] / "shared" / "quickstart"

# Name, devices, what the program prints. A stack has rows for every SparseCore,
# four per device, in multiples of eight for each of its two tables.
_PROGRAMS = (
    ("quick_start", 1, r"loss .* -> .*; 402 rows of the table were updated"),
    ("quick_start", 4, r"loss .* -> .*; 402 rows of the table were updated"),
    ("stacking", 1, r"\{'users_items': \(192, 16\)\}"),
    ("stacking", 4, r"\{'users_items': \(256, 16\)\}"),
)


class ExamplesTest(parameterized.TestCase):

  def _assert_prints(self, command, num_devices, expected, **environment):
    result = subprocess.run(
        command,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(num_devices),
        }
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertRegex(result.stdout, expected)

  @parameterized.parameters(*_PROGRAMS)
  def test_runs_and_reports(self, name, num_devices, expected):
    self._assert_prints([_HERE.parent / name], num_devices, expected)

  @parameterized.parameters(*_PROGRAMS)
  def test_promised_program_runs_unchanged(self, name, num_devices, expected):
    program = _PROMISED / f"{name}.py"
    if not program.exists():
      self.skipTest("There is no folder shared/quickstart beside the checkout.")
    self._assert_prints(
        [sys.executable, program],
        num_devices,
        expected,
        PYTHONPATH=os.pathsep.join(sys.path),
    )


if __name__ == "__main__":
  absltest.main()
