# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the examples as they stand; they check their own results."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_HERE = pathlib.Path(__file__).parent
# Name -> the most temporary bytes of a device, of any chip.
_PROGRAMS = {
    "pipelined_add": 0,
    "prefetched_add": 0,
    "subcore_add": 256 * 1024,
    # Three blocks of a core for each of two cores.
    "swap": 3 * 8 * 1024,
    "swap_by_core_map": 3 * 8 * 1024,
}


def _run(name, *arguments):
  return subprocess.run(
      [sys.executable, _HERE / f"{name}.py", *arguments],
      env=os.environ
      | {
          "JAX_PLATFORMS": "cpu",
          "PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path]),
      },
      capture_output=True,
      text=True,
      check=False,
  )


class ExamplesTest(parameterized.TestCase):

  @parameterized.parameters(*_PROGRAMS)
  def test_is_right_on_four_cpu_devices(self, name):
    result = _run(name)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn(f"{name} is right on 4 cpu devices", result.stdout)

  @absltest.skipIf(
      importlib.util.find_spec("libtpu") is None,
      "libtpu is not installed: pip install 'jax[tpu]'.",
  )
  @parameterized.parameters(*_PROGRAMS)
  def test_compiles_with_little_memory(self, name):
    chips = ["v5p", "v6e", "7x"]
    if name != "subcore_add":
      chips += ["v5e", "v4"]  # without SparseCores
    result = _run(name, *(f"--compile_for={chip}" for chip in chips))
    self.assertEqual(result.returncode, 0, result.stderr)
    sizes = re.findall(r"temporary bytes of a device: (\d+)", result.stdout)
    self.assertLen(sizes, len(chips))
    self.assertLessEqual(max(map(int, sizes)), _PROGRAMS[name])

  def test_every_core_writes(self):
    result = _run("who_did_what")
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn("256 subcores wrote 1024 rows", result.stdout)


if __name__ == "__main__":
  absltest.main()
