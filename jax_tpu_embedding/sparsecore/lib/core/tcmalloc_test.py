# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs that start again, and what keeps them from it."""

import os
import subprocess
import sys
import textwrap
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import tcmalloc
from jax_tpu_embedding.sparsecore.lib.core.testing import unread_output

_MODULE = "jax_tpu_embedding.sparsecore.lib.core.tcmalloc"
# Has the malloc that it says, and what it was started with.
_PROGRAM = """
    import ctypes
    import sys
    print(hasattr(ctypes.CDLL(None), "tc_version"), *sys.argv[1:])
"""


def _environment(**variables):
  """Without what a user may have chosen."""
  result = {
      name: value
      for name, value in os.environ.items()
      if name != "LD_PRELOAD" and not name.startswith(("MALLOC_", "GLIBC_"))
  }
  return result | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables


def _run(arguments, *, without_stdout=False, **variables):
  return subprocess.run(
      [sys.executable, *arguments],
      env=_environment(**variables),
      capture_output=True,
      text=True,
      preexec_fn=(lambda: os.close(1)) if without_stdout else None,
  )


class TcmallocTest(parameterized.TestCase):

  def _program(self, text):
    return self.create_tempfile("program.py", textwrap.dedent(text)).full_path

  def _restarting(self):
    return self._program(
        f"from {_MODULE[:-9]} import tcmalloc\n"
        "tcmalloc.restart()\n" + textwrap.dedent(_PROGRAM)
    )

  @absltest.skipIf(tcmalloc.library() is None, "tcmalloc is not installed")
  def test_a_program_starts_again_once_with_its_arguments(self):
    result = _run(["-X", "utf8", self._restarting(), "--flag", "a b"])
    self.assertEqual(result.stdout, "True --flag a b\n")
    self.assertRegex(result.stderr, "^Starting again with libtcmalloc[^\n]*\n$")

  @absltest.skipIf(tcmalloc.library() is None, "tcmalloc is not installed")
  def test_there_may_be_no_standard_output(self):
    program = self._program("import sys; sys.exit(3)")
    result = _run(["-m", _MODULE, program], without_stdout=True)
    self.assertEqual((result.returncode, result.stderr), (3, ""))

  def test_help_that_nobody_reads_ends_quietly(self):
    result = _run(["-m", _MODULE, "--help"])
    self.assertRegex(result.stdout, f"^Usage: python -m {_MODULE} PROGRAM.py")
    self.assertEqual((result.returncode, result.stderr), (0, ""))
    self.assertEqual(unread_output.run(_MODULE, "--help"), (141, ""))

  @parameterized.parameters(
      {"LD_PRELOAD": ""},
      {"MALLOC_ARENA_MAX": "1"},
      {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
  )
  def test_what_the_user_has_chosen_stays(self, **variables):
    result = _run([self._restarting()], **variables)
    self.assertEqual((result.stdout, result.stderr), ("False\n", ""))

  def test_nothing_happens_where_it_is_not_installed(self):
    with (
        mock.patch.dict(os.environ, clear=True),
        mock.patch.object(tcmalloc, "library", return_value=None),
        mock.patch.object(os, "execvpe") as execute,
    ):
      tcmalloc.restart()
    execute.assert_not_called()

  @absltest.skipIf(tcmalloc.library() is None, "tcmalloc is not installed")
  def test_the_command_runs_a_program_with_it(self):
    result = _run(["-m", _MODULE, self._program(_PROGRAM), "-v"])
    self.assertEqual((result.stdout, result.stderr), ("True -v\n", ""))

  def test_the_command_keeps_other_libraries(self):
    with (
        mock.patch.dict(os.environ, LD_PRELOAD="libother.so"),
        mock.patch.object(tcmalloc, "library", return_value="libtcmalloc.so.4"),
        mock.patch.object(os, "execvpe", side_effect=SystemExit) as execute,
        self.assertRaises(SystemExit),
    ):
      tcmalloc.main(["train.py"])
    _, command, environment = execute.call_args.args
    self.assertEqual(command, [sys.executable, "train.py"])
    self.assertEqual(environment["LD_PRELOAD"], "libtcmalloc.so.4:libother.so")

  def test_the_command_says_what_is_missing(self):
    result = _run(["-m", _MODULE])
    self.assertRegex(result.stderr, f"^Usage: python -m {_MODULE} PROGRAM.py")
    with (
        mock.patch.object(tcmalloc, "library", return_value=None),
        mock.patch.object(sys, "stderr") as stderr,
        self.assertRaisesRegex(SystemExit, "2"),
    ):
      tcmalloc.main(["train.py"])
    self.assertIn("apt-get install", stderr.write.call_args_list[0].args[0])


if __name__ == "__main__":
  absltest.main()
