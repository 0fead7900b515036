# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tools import build_wheel

_SETUP = pathlib.Path(__file__).parent.parent / "setup.py"
WHEEL = "pkg-1.0-cp311-cp311-linux_x86_64.whl"
REPAIRED = "pkg-1.0-cp311-cp311-manylinux_2_34_x86_64.whl"

SHOW_UNREPAIRED = f"""
{WHEEL} is
consistent with the following platform tag: "linux_x86_64".

The wheel references external versioned symbols in these
system-provided shared libraries: libc.so.6 with versions {{'GLIBC_2.34'}}

This constrains the platform tag to
"manylinux_2_34_x86_64". In order to achieve a more compatible tag, you
"""
SHOW_WITHOUT_SYMBOLS = f"""
{WHEEL} is consistent with
the following platform tag: "manylinux_2_5_x86_64".
"""


class RunProcessTest(absltest.TestCase):

  def test_returns_both_streams(self):
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    output = build_wheel.run_process([sys.executable, "-c", code])
    self.assertCountEqual(output.split(), ["out", "err"])

  def test_failure_has_command_code_and_output(self):
    code = "print('the reason'); raise SystemExit(7)"
    with self.assertRaisesRegex(
        RuntimeError, "(?s)SystemExit.*exit code 7.*the reason"
    ):
      build_wheel.run_process([sys.executable, "-c", code])


class DescriptionTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          "[a](b/c.md), [d](https://e), [f](#g)",
          "u/",
          "[a](u/b/c.md), [d](https://e), [f](#g)",
      ),
      ("[a](b/c.md), [d](https://e)\n`[x]`(", "", "a, [d](https://e)\n`[x]`("),
  )
  def test_relative_links_become_absolute_or_text(self, readme, url, expected):
    self.assertEqual(build_wheel.description(readme, url), expected)


class OutputsTest(parameterized.TestCase):

  def printing(self, output: str):
    """Lets run_process print `output` instead of running anything."""
    self.enter_context(
        mock.patch.object(build_wheel, "run_process", return_value=output)
    )

  @parameterized.parameters(
      (SHOW_UNREPAIRED, "manylinux_2_34_x86_64"),
      (SHOW_WITHOUT_SYMBOLS, "manylinux_2_5_x86_64"),
  )
  def test_show_returns_the_tag_after_repair(self, output, tag):
    self.printing(output)
    self.assertEqual(build_wheel.run_auditwheel_show(WHEEL), tag)

  def test_repair_returns_the_new_path(self):
    self.printing(f"INFO\n\nFixed-up wheel written to /dist/{REPAIRED}\n")
    self.assertEqual(
        build_wheel.run_auditwheel_repair(WHEEL, "manylinux_2_34", "/dist"),
        f"/dist/{REPAIRED}",
    )

  def test_tags_returns_the_new_name(self):
    self.printing(f"{REPAIRED}\n")
    self.assertEqual(
        build_wheel.run_wheel_tags(f"/dist/{WHEEL}", "cp311", "cp311"), REPAIRED
    )

  @parameterized.named_parameters(
      ("show", build_wheel.run_auditwheel_show, (WHEEL,)),
      ("repair", build_wheel.run_auditwheel_repair, (WHEEL, "plat", "/dist")),
      ("tags", build_wheel.run_wheel_tags, (WHEEL, "cp311", "cp311")),
  )
  def test_unknown_output_is_an_error_that_quotes_it(self, function, arguments):
    self.printing("something new")
    with self.assertRaisesRegex(RuntimeError, "Expected .*\nsomething new"):
      function(*arguments)


class SetupTest(absltest.TestCase):

  def test_a_source_distribution_is_refused(self):
    done = subprocess.run(
        [sys.executable, _SETUP, "sdist"],
        cwd=self.create_tempdir().full_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stderr, "no source distribution: run tools/local_bu")


class MainTest(absltest.TestCase):

  def test_argument_that_is_no_flag_is_refused(self):
    with self.assertRaisesRegex(Exception, "Unexpected arguments: typo"):
      build_wheel.main(["build_wheel", "typo"])


if __name__ == "__main__":
  absltest.main()
