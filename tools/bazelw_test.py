# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).parent.parent
# What the script itself runs.
_COMMANDS = (
    "bash",
    "cat",
    "cksum",
    "cut",
    "dirname",
    "env",
    "find",
    "grep",
    "mkdir",
    "mktemp",
    "rm",
    "sleep",
    "sort",
    "tail",
    "uname",
)


class BazelwTest(parameterized.TestCase):
  """On machines that have nothing but the commands named."""

  def setUp(self):
    super().setUp()
    self.bin = pathlib.Path(self.create_tempdir().full_path)
    for command in _COMMANDS:
      self.bin.joinpath(command).symlink_to(shutil.which(command))

  def add(self, command: str, script: str) -> None:
    file = self.bin / command
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)

  def add_all_that_is_needed(self) -> None:
    self.add("g++", "")
    self.add("python3", f'exec {sys.executable} "$@"')
    self.add("bazel", 'echo "[1 / 2] Testing //a:b; $*" >&2; sleep 1')

  def run_bazelw(
      self, *words: str, root: pathlib.Path = _ROOT, **variables: str
  ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "bazelw", *words],
        env={"PATH": str(self.bin), "PYENV_ROOT": "/nowhere", **variables},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )

  @parameterized.named_parameters(
      ("fedora", "dnf", r"gcc-c\+\+ .*\n  bazelisk .*[^$]*npm install"),
      ("arch", "pacman", r"gcc .*\n  bazel [^$]*pacman -S gcc bazel "),
      (
          "homebrew",
          "brew",
          r"gcc .*\n  bazelisk [^$]*extension modules.*\n.*not",
      ),
      ("unknown", "unheard_of", r"Debian's names.*\n  g\+\+ .*\n  bazel-boot"),
  )
  def test_without_apt_the_system_s_own_names_are_given(self, manager, text):
    self.add(manager, "echo installing; exit 1")
    done = self.run_bazelw("test", "//...")
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, text)
    self.assertRegex(done.stderr, "tried on Debian only")
    self.assertNotIn("installing", done.stderr + done.stdout)

  def test_a_package_that_stands_for_two_is_named_once_in_the_command(self):
    self.add("pacman", "")
    done = self.run_bazelw("test", "//...")
    command = next(
        line for line in done.stderr.splitlines() if "pacman -S" in line
    )
    words = command.split()
    self.assertLen(words, len(set(words)))

  @parameterized.named_parameters(
      ("without_threads", "None", True),
      # Bazel refuses it, and no package would change that.
      ("free_threaded", "1", False),
  )
  def test_packages_of_a_python_without_headers(self, disabled, are_named):
    # A stand-in that runs what it is given after a few words of its own.
    self.add(
        "python7.1",
        f"""[[ $1 == - ]] || exec {sys.executable} "$@"
{{
  echo 'import sysconfig'
  echo 'sysconfig.get_config_var = {{"Py_GIL_DISABLED": {disabled}}}.get'
  echo 'sysconfig.get_path = lambda name: "/nowhere"'
  cat
}} | {sys.executable} -""",
    )
    done = self.run_bazelw(JTE_HERMETIC_PYTHON_VERSION="7.1")
    self.assertEqual(done.returncode, 1)
    self.assertIn("bazel-bootstrap", done.stderr)
    self.assertEqual("python3-dev" in done.stderr, are_named)

  def test_where_apt_fails_its_words_and_the_command_are_given(self):
    self.add("apt-get", "echo no route to host; exit 100")
    self.add("sudo", '[[ $1 == -n ]] && shift; exec "$@"')
    done = self.run_bazelw("test", "//...")
    self.assertEqual(done.returncode, 1)
    self.assertRegex(
        done.stderr,
        r"no route to host\n[^$]*by hand:\n  apt-get install .*g\+\+ bazel-boot",
    )

  def test_what_nothing_needs_comes_with_the_others_and_is_not_asked_for(self):
    self.add(
        "apt-get", '[[ $1 == update ]] || { echo "asked for $@"; exit 100; }'
    )
    self.add("sudo", '[[ $1 == -n ]] && shift; exec "$@"')
    done = self.run_bazelw("test", "//...")
    self.assertRegex(done.stderr, "asked for [^\n]*libtcmalloc-minimal4\n")
    self.assertNotRegex(done.stderr, "  [^\n]*libtcmalloc")

  def test_a_long_installation_says_what_it_is_doing(self):
    self.add("apt-get", "echo Unpacking bazel; sleep 1; exit 100")
    self.add("sudo", '[[ $1 == -n ]] && shift; exec "$@"')
    done = self.run_bazelw("test", "//...", JTE_HEARTBEAT_SECONDS="0.3")
    self.assertRegex(
        done.stderr, r"\n\(\d+ s, still installing\) Unpacking baz"
    )

  def test_a_silent_bazel_is_spoken_for_where_there_is_no_terminal(self):
    self.add_all_that_is_needed()
    done = self.run_bazelw("test", "//a", JTE_HEARTBEAT_SECONDS="0.3")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(
        done.stderr,
        r"\n\(\d+ s, still running\) \[1 / 2\] .*not_a_terminal.bazelrc test //a",
    )

  def checkout(self, name: str = "a checkout") -> pathlib.Path:
    """A copy of what the script reads, that it may write to."""
    root = pathlib.Path(self.create_tempdir(name).full_path)
    shutil.copy(_ROOT / "bazelw", root)
    for directory in ("tools", "third_party"):
      root.joinpath(directory).symlink_to(_ROOT / directory)
    return root

  def test_tests_get_a_directory_for_compiled_programs(self):
    self.add_all_that_is_needed()
    home = pathlib.Path(self.create_tempdir("a home").full_path)
    seen = set()
    for root in (self.checkout("one"), self.checkout("another")):
      for _ in range(2):  # the second finds what the first has made
        done = self.run_bazelw("test", "//a", root=root, HOME=str(home))
        self.assertEqual(done.returncode, 0, done.stderr)
      options = shlex.split((root / ".test_programs.bazelrc").read_text())
      self.assertEqual(options.count("build"), 3)
      (programs,) = home.glob(".cache/jax_tpu_embedding/test_programs/*")
      self.assertIn(f"--test_env=JAX_COMPILATION_CACHE_DIR={programs}", options)
      self.assertIn(f"--sandbox_writable_path={programs}", options)
      seen.add(programs)
    self.assertLen(seen, 1)
    self.assertRegex(
        _ROOT.joinpath(".bazelrc").read_text(),
        r"\ntry-import %workspace%/\.test_programs\.bazelrc\n",
    )

  def test_systems_that_do_not_tell_of_their_processor(self):
    self.add_all_that_is_needed()
    grep = self.bin / "grep"
    grep.unlink(missing_ok=True)
    self.add(
        "grep",
        f'[[ "$*" != */proc/cpuinfo ]] && exec {shutil.which("grep")} "$@"',
    )
    home = pathlib.Path(self.create_tempdir().full_path)
    done = self.run_bazelw("test", "//a", root=self.checkout(), HOME=str(home))
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertLen(
        list(home.glob(".cache/jax_tpu_embedding/test_programs/*")), 1
    )

  def test_programs_of_a_month_ago_are_deleted(self):
    self.add_all_that_is_needed()
    home = pathlib.Path(self.create_tempdir().full_path)
    # Of this processor or of another one.
    programs = home / ".cache/jax_tpu_embedding/test_programs/1"
    programs.mkdir(parents=True)
    new, old = programs / "new", programs / "old"
    new.write_text("")
    old.write_text("")
    a_month_ago = time.time() - 32 * 24 * 3600
    os.utime(old, (a_month_ago, a_month_ago))
    done = self.run_bazelw("test", "//a", root=self.checkout(), HOME=str(home))
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(list(programs.iterdir()), [new])

  def test_where_nothing_can_be_written_tests_compile_for_themselves(self):
    self.add_all_that_is_needed()
    home = pathlib.Path(self.create_tempdir().full_path)
    cache = home / ".cache"
    for name in ("no home", "no checkout"):
      root = self.checkout(name)
      options = root / ".test_programs.bazelrc"
      if name == "no home":
        cache.write_text("no directory")
        options.write_text("build --of_a_time_when_it_could_be_written")
      else:
        cache.unlink()
        options.mkdir()
      done = self.run_bazelw("test", "//a", root=root, HOME=str(home))
      self.assertEqual(done.returncode, 0, done.stderr)
      self.assertIn("test //a", done.stderr)
      self.assertFalse(options.is_file())

  def test_without_root_and_sudo_nothing_is_installed(self):
    if not os.geteuid():
      self.skipTest("is run as root")
    self.add("apt-get", "echo installing")
    done = self.run_bazelw("test", "//...")
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, r"As root, run:\n  apt-get install .*g\+\+")
    self.assertNotIn("installing", done.stderr + done.stdout)


if __name__ == "__main__":
  absltest.main()
