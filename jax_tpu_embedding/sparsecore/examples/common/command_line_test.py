# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings(command_line.Settings):
  test_count: int = command_line.setting(
      3, "How many.", shapes_result=True, older_name="test_number"
  )
  test_rate: float = command_line.setting(0.5, "How fast.")
  test_really: bool = command_line.setting(False, "Whether.")
  test_widths: tuple[int, ...] = command_line.setting(
      (4, 5), "How wide.", shapes_result=True
  )
  test_file: str = command_line.setting("", "Which file.", is_path=True)
  test_word: str = command_line.setting("", "Which word.")


def _parse(*arguments: str) -> _Settings:
  with flagsaver.flagsaver():
    command_line.parse_flags(["/bin/program.py", *arguments])
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

  def test_an_older_name_is_understood(self):
    self.assertEqual(_parse("--test_number=7"), _Settings(test_count=7))

  def test_result_shaping_settings_are_as_json_has_them(self):
    self.assertEqual(
        _Settings(test_rate=0.7).result_shaping(),
        {"test_count": 3, "test_widths": [4, 5]},
    )

  def test_check_at_least(self):
    _Settings().check_at_least(test_count=3)
    with self.assertRaisesRegex(
        command_line.UsageError, "--test_count must be at least 4, got 3"
    ):
      _Settings().check_at_least(test_rate=0, test_count=4)

  @parameterized.parameters(0.0, -1.0, float("inf"), float("nan"))
  def test_check_positive_and_finite(self, rate):
    _Settings().check_positive_and_finite("test_rate")
    with self.assertRaisesRegex(
        command_line.UsageError,
        f"--test_rate must be positive and finite, got {rate}",
    ):
      _Settings(test_rate=rate).check_positive_and_finite("test_rate")

  def test_makes_a_directory_and_what_it_is_in(self):
    path = pathlib.Path(self.create_tempdir().full_path, "a", "b")
    for _ in range(2):
      command_line.make_directory(path, "out")
    self.assertTrue(path.is_dir())

  def test_refuses_a_directory_that_cannot_be_made(self):
    with self.assertRaisesRegex(
        command_line.UsageError, "--out: cannot make /dev/null/x: Not a direct"
    ):
      command_line.make_directory(pathlib.Path("/dev/null/x"), "out")

  def test_an_output_directory_that_was_chosen_stays(self):
    directory = self.create_tempdir().full_path
    with command_line.output_directory(directory, "run_") as path:
      self.assertEqual(path, pathlib.Path(directory))
    self.assertTrue(path.is_dir())

  @parameterized.parameters((None, False), ("checkpoints/1", True))
  def test_a_new_output_directory_stays_if_it_has_a_file(self, file, stays):
    parent = self.create_tempdir().full_path
    with mock.patch.object(tempfile, "tempdir", parent):
      with command_line.output_directory("", "run_") as path:
        (path / "checkpoints").mkdir()
        if file:
          (path / file).touch()
    self.assertStartsWith(str(path), f"{parent}/run_")
    self.assertEqual(path.is_dir(), stays)

  def test_refuses_a_file_that_cannot_be_written(self):
    with self.assertRaisesRegex(
        command_line.UsageError, "--out: cannot write /dev/full: No space left"
    ):
      with command_line.writing(pathlib.Path("/dev/full"), "out"):
        pathlib.Path("/dev/full").write_text("a picture")

  def test_an_output_that_cannot_be_written_is_a_sentence(self):
    with open("/dev/full", "w", encoding="utf-8") as full:
      with contextlib.redirect_stdout(full):
        with self.assertRaisesRegex(
            command_line.UsageError, "cannot write its output: No space left"
        ):
          command_line.say("trained", 5)
        command_line.say("What follows has nowhere to go.")

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
    self.assertEqual(_parse().test_file, "")

  def test_refuses_paths_that_start_nowhere(self):
    with self.assertRaisesRegex(
        command_line.UsageError, "--test_file: cannot find ~no-one/x: .*home"
    ):
      _parse("--test_file=~no-one/x")
    with (
        mock.patch.object(
            os, "getcwd", side_effect=FileNotFoundError(2, "No.")
        ),
        self.assertRaisesRegex(
            command_line.UsageError, "--test_file: cannot find x: No"
        ),
    ):
      _parse("--test_file=x")

  @parameterized.parameters("1,x", "1.5", "1,,2")
  def test_refuses_what_is_no_list_of_numbers(self, text):
    with self.assertRaisesRegex(
        command_line.UsageError,
        f"--test_widths must be whole numbers separated by commas, got '{text}'",
    ):
      _parse(f"--test_widths={text}")

  def test_refuses_a_number_of_more_than_64_bits(self):
    self.assertEqual(_parse(f"--test_count={2**63 - 1}").test_count, 2**63 - 1)
    with self.assertRaisesRegex(
        command_line.UsageError,
        "--test_count must be of at most 64 bits, got 9223372036854775808",
    ):
      _parse(f"--test_count={2**63}")

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
