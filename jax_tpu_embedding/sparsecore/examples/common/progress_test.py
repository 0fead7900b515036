# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import io
import pathlib
from unittest import mock

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import progress as progress_lib


class _Terminal(io.StringIO):

  def isatty(self) -> bool:
    return True


def _outputs(stderr, clock, first=0, status="AUC 0.75"):
  """What is printed when 100 words are done per entry of `clock` (seconds)."""
  stdout = io.StringIO()
  with (
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(stderr),
      mock.patch.object(progress_lib.time, "monotonic", side_effect=clock),
      progress_lib.Progress("trained", "words", 300, first) as progress,
  ):
    for done in range(first + 100, 400, 100):
      progress.update(done, status)
    summary = progress.summary()
  return stdout.getvalue(), stderr.getvalue(), summary


class ProgressTest(absltest.TestCase):

  def test_a_line_that_cannot_be_written_is_no_error_of_a_file(self):
    with open("/dev/full", "w", encoding="utf-8") as full:
      with (
          contextlib.redirect_stdout(full),
          self.assertRaisesRegex(command_line.UsageError, "write its output"),
          command_line.writing(pathlib.Path("clicks.tsv"), "out"),
      ):
        list(progress_lib.shown("generated", "samples", 3, ["abc"]))

  def test_a_pipe_gets_a_line_now_and_then_and_at_the_end(self):
    # Start at 0; 100, 200 and 300 words at 2, 5 and 6; summary at 8.
    lines, bar, summary = _outputs(io.StringIO(), [0.0, 2.0, 5.0, 6.0, 8.0])
    self.assertEqual(
        lines,
        "trained 200/300 words, 40/s: AUC 0.75\n"
        "trained 300/300 words, 100/s: AUC 0.75\n",
    )
    self.assertEmpty(bar)
    self.assertEqual(summary, "300 words in 8.0 s, 38/s")

  def test_a_line_without_a_status(self):
    lines, _, _ = _outputs(io.StringIO(), [0.0, 2.0, 3.0, 4.0, 8.0], status="")
    self.assertEqual(lines, "trained 300/300 words, 75/s\n")

  def test_a_resumed_run_counts_its_own_words_only(self):
    _, _, summary = _outputs(io.StringIO(), [0.0, 6.0, 8.0], first=200)
    self.assertEqual(summary, "100 words in 8.0 s, 12/s")

  def test_a_terminal_gets_a_bar_and_no_lines(self):
    lines, bar, _ = _outputs(_Terminal(), [0.0, 8.0])
    self.assertEmpty(lines)
    self.assertRegex(bar, r"trained: 100%.*300/300 .* words/s")
    self.assertIn("AUC 0.75", bar)

  def test_a_stopwatch_leaves_pauses_out(self):
    # Start at 0, a pause from 2 to 7, laps at 8 and 9.
    clock = [0.0, 2.0, 7.0, 8.0, 9.0]
    with mock.patch.object(progress_lib.time, "monotonic", side_effect=clock):
      stopwatch = progress_lib.Stopwatch()
      with stopwatch.paused():
        pass
      self.assertEqual((stopwatch.lap(), stopwatch.lap()), (3.0, 1.0))

  def test_shown_passes_blocks_on(self):
    stdout = io.StringIO()
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(io.StringIO()),
    ):
      blocks = list(progress_lib.shown("made", "eggs", 5, ["abc", "de"]))
    self.assertEqual(blocks, ["abc", "de"])
    self.assertRegex(stdout.getvalue(), r"\Amade 5/5 eggs, [\d,]+/s\n\Z")


if __name__ == "__main__":
  absltest.main()
