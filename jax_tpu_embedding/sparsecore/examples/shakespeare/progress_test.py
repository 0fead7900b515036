# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import io
from unittest import mock

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.shakespeare import progress as progress_lib


class _Terminal(io.StringIO):

  def isatty(self) -> bool:
    return True


def _outputs(stderr: io.StringIO, clock, num_steps=3, first_step=0):
  """What is printed when one step is taken per entry of `clock` (seconds)."""
  stdout = io.StringIO()
  with (
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(stderr),
      mock.patch.object(progress_lib.time, "monotonic", side_effect=clock),
      progress_lib.Progress(num_steps, first_step, 100) as progress,
  ):
    for step in range(first_step + 1, num_steps + 1):
      progress.update(step, loss=1.25, heldout_perplexity=99.5)
    summary = progress.summary()
  return stdout.getvalue(), stderr.getvalue(), summary


class ProgressTest(absltest.TestCase):

  def test_a_pipe_gets_a_line_now_and_then_and_at_the_end(self):
    # Start at 0; steps at 2, 5 and 6; summary at 8.
    lines, bar, summary = _outputs(io.StringIO(), [0.0, 2.0, 5.0, 6.0, 8.0])
    self.assertEqual(
        lines,
        "step 2/3: loss 1.25, held-out perplexity 99.5, 40 words/s\n"
        "step 3/3: loss 1.25, held-out perplexity 99.5, 100 words/s\n",
    )
    self.assertEmpty(bar)
    self.assertEqual(summary, "3 steps in 8.0 s, 38 words/s")

  def test_a_resumed_run_counts_its_own_steps_only(self):
    _, _, summary = _outputs(io.StringIO(), [0.0, 6.0, 8.0], first_step=2)
    self.assertEqual(summary, "1 steps in 8.0 s, 12 words/s")

  def test_a_terminal_gets_a_bar_and_no_lines(self):
    lines, bar, _ = _outputs(_Terminal(), [0.0, 8.0])
    self.assertEmpty(lines)
    self.assertRegex(bar, r"100%.*300/300 .* words/s")
    self.assertIn("loss 1.25, held-out perplexity 99.5", bar)


if __name__ == "__main__":
  absltest.main()
