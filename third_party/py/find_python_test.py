# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import subprocess
import sys

from absl.testing import absltest

_FIND_PYTHON = pathlib.Path(__file__).with_name("find_python.sh")
# What pyenv puts on the PATH for a version that is not activated.
_SHIM = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"
_INTERPRETER = '#!/bin/sh\nexec {} "$@"\n'.format(sys.executable)


class FindPythonTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def add(self, path: str, script: str) -> str:
    file = self.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    file.chmod(0o755)
    return str(file)

  def find(self, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_FIND_PYTHON],
        env={
            "PATH": f"{self.root}/shims:{self.root}/bin:{os.environ['PATH']}",
            "PYENV_ROOT": str(self.root),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )

  def test_the_first_on_the_path_is_found(self):
    python = self.add("bin/python7.1", _INTERPRETER)
    self.add("versions/7.1.3/bin/python7.1", _INTERPRETER)
    found = self.find(JTE_HERMETIC_PYTHON_VERSION="7.1")
    self.assertEqual(found.stdout.strip(), python)

  def test_a_shim_that_does_not_run_is_passed_over(self):
    self.add("shims/python7.1", _SHIM)
    self.add("versions/7.1.9/bin/python7.1", _INTERPRETER)
    newest = self.add("versions/7.1.10/bin/python7.1", _INTERPRETER)
    self.add("versions/7.2.0/bin/python7.2", _INTERPRETER)
    found = self.find(HERMETIC_PYTHON_VERSION="7.1")
    self.assertEqual(found.stdout.strip(), newest)

  def test_none_that_runs_is_an_error_that_names_both_places(self):
    self.add("shims/python7.1", _SHIM)
    found = self.find(JTE_HERMETIC_PYTHON_VERSION="7.1")
    self.assertEqual(found.returncode, 1)
    self.assertRegex(
        found.stderr, r"No python7\.1 that runs.*PATH.*/versions\. Install it"
    )


if __name__ == "__main__":
  absltest.main()
