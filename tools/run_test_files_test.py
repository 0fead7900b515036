# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Files of tests run in one process, all or by name, unless they disagree."""

import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

from tools import run_test_files

_FILE = """
from absl.testing import absltest
{before}

class FooTest(absltest.TestCase):

  def test_passes(self):
    pass

  def test_{name}(self):
    self.assertEqual("{name}", "two")
"""
_DEVICES = 'import jax\njax.config.update("jax_num_cpu_devices", {})'


class RunTestFilesTest(absltest.TestCase):

  def run_files(self, files, *names):
    """Exit code and output, for {name: text} and the cases on the command."""
    directory = pathlib.Path(self.create_tempdir().full_path)
    for name, text in files.items():
      (directory / name).write_text(text)
    process = subprocess.run(
        [sys.executable, run_test_files.__file__, *names],
        env=os.environ
        | {
            "TEST_FILES": " ".join(files),
            "PYTHONPATH": str(directory),
            "XML_OUTPUT_FILE": str(directory / "test.xml"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout

  def test_all_files_run(self):
    code, output = self.run_files(
        {
            "one_test.py": _FILE.format(name="one", before=""),
            "two_test.py": _FILE.format(name="two", before=""),
        }
    )
    self.assertEqual(code, 1)
    self.assertIn("Ran 4 tests", output)
    self.assertRegex(output, r"FAIL: test_one \(one_test\.FooTest")
    self.assertNotIn("FAIL: test_two", output)

  def test_a_case_can_be_named(self):
    files = {"one_test.py": _FILE.format(name="one", before="")}
    code, output = self.run_files(files, "one_test.FooTest.test_passes")
    self.assertEqual(code, 0, output)
    self.assertIn("Ran 1 test", output)

  def test_files_with_other_settings_of_jax_are_an_error(self):
    files = {
        f"{name}_test.py": _FILE.format(name="two", before=before)
        for name, before in (("four", _DEVICES.format(4)), ("default", ""))
    }
    code, output = self.run_files(files)
    self.assertEqual(code, 1)
    self.assertRegex(output, "default_test.py sets .* cannot share a process")
    same = {name: _FILE.format(name="two", before="") for name in files}
    code, output = self.run_files(same)
    self.assertEqual(code, 0, output)

  def test_a_file_without_tests_is_an_error(self):
    code, output = self.run_files({"empty_test.py": ""})
    self.assertEqual(code, 1)
    self.assertIn("empty_test.py has no tests", output)


if __name__ == "__main__":
  absltest.main()
