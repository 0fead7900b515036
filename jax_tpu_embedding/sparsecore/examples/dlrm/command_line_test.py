# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.dlrm import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
  test_count: int = command_line.setting(3, "How many.")
  test_rate: float = command_line.setting(0.5, "How fast.")
  test_really: bool = command_line.setting(False, "Whether.")
  test_widths: tuple[int, ...] = command_line.setting((4, 5), "How wide.")
  test_file: str = command_line.setting("", "Which file.", is_path=True)
  test_word: str = command_line.setting("", "Which word.")


def _parse(*arguments: str) -> _Settings:
  with flagsaver.flagsaver():
    command_line.parse_flags(["program", *arguments])
    return command_line.from_flags(_Settings)


class CommandLineTest(parameterized.TestCase):

  def test_defaults(self):
    self.assertEqual(_parse(), _Settings())

  def test_every_type(self):
    self.assertEqual(
        _parse(
            "--test_count=7",
            "--test_rate=2",
            "--test_really",
            "--test_widths=1,20,3",
            "--test_file=/a",
            "--test_word=a",
        ),
        _Settings(
            test_count=7,
            test_rate=2.0,
            test_really=True,
            test_widths=(1, 20, 3),
            test_file="/a",
            test_word="a",
        ),
    )

  def test_paths_start_where_the_command_was_typed(self):
    with mock.patch.dict(os.environ, {"BUILD_WORKING_DIRECTORY": "/typed"}):
      bazel_run = _parse("--test_file=in", "--test_word=in")
    with mock.patch.dict(os.environ):
      os.environ.pop("BUILD_WORKING_DIRECTORY", None)
      direct = _parse("--test_file=in")
    self.assertEqual(bazel_run.test_file, "/typed/in")
    self.assertEqual(bazel_run.test_word, "in")
    self.assertEqual(direct.test_file, os.path.join(os.getcwd(), "in"))
    self.assertEqual(
        _parse("--test_file=~/x").test_file, str(pathlib.Path.home() / "x")
    )

  @parameterized.parameters("1,x", "1.5", "1,,2")
  def test_refuses_what_is_no_list_of_numbers(self, text):
    with self.assertRaisesRegex(
        command_line.UsageError,
        f"--test_widths must be whole numbers separated by commas, got '{text}'",
    ):
      _parse(f"--test_widths={text}")

  @parameterized.parameters(
      ("--test_coun=5", "program: Unknown command line flag 'test_coun'. Did"),
      ("--test_count=five", "program: flag --test_count=five: invalid literal"),
      ("five", "program: unexpected argument 'five'; flags start with --."),
  )
  def test_a_mistake_is_one_line(self, argument, message):
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
      with self.assertRaises(SystemExit) as caught:
        _parse(argument)
    self.assertEqual(caught.exception.code, 2)
    self.assertStartsWith(stderr.getvalue(), message)
    self.assertEqual(stderr.getvalue().count("\n"), 1)


if __name__ == "__main__":
  command_line.define_flags(_Settings)
  absltest.main()
