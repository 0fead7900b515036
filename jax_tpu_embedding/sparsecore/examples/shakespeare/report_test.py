# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import pathlib
from unittest import mock
import warnings

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.shakespeare import report
from matplotlib import image
from matplotlib import pyplot as plt

_HISTORY = [
    {"step": 0, "heldout_loss": math.log(150)},
    {"step": 10, "training_loss": math.log(120), "heldout_loss": math.log(90)},
    {"step": 20, "training_loss": math.log(95), "heldout_loss": math.log(80)},
]


class ReportTest(parameterized.TestCase):

  def _save(self, *more: dict[str, float]) -> pathlib.Path:
    path = pathlib.Path(self.create_tempdir().full_path, "curve.png")
    report.save_loss_curve(
        path, [*_HISTORY, *more], math.log(150), title="Title"
    )
    return path

  def test_writes_a_picture(self):
    height, width, _ = image.imread(self._save()).shape
    self.assertEqual((width, height), (1200, 675))

  @parameterized.parameters(
      (math.log(90), "90.0", False),
      (20, "485165195.4", False),
      (21, "1.3e+09", True),
      (710, "inf", True),
      (math.inf, "inf", True),
      (math.nan, "nan", True),
  )
  def test_perplexities(self, loss, text, has_diverged):
    self.assertEqual(report.perplexity_text(loss), text)
    self.assertEqual(report.has_diverged(loss), has_diverged)

  @parameterized.parameters(50.0, 700.0, 1e5, 3e38, math.inf, math.nan)
  def test_draws_a_run_that_diverges(self, loss):
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      path = self._save({"step": 30, "training_loss": 5, "heldout_loss": loss})
    self.assertTrue(path.is_file())

  def test_draws_both_losses_and_the_baseline(self):
    with mock.patch.object(plt, "close") as close:
      self._save()
    (figure,) = close.call_args.args
    lines = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].get_lines()
    }
    plt.close(figure)
    self.assertEqual(
        lines["held-out"],
        ([0, 10, 20], [math.log(150), math.log(90), math.log(80)]),
    )
    self.assertEqual(
        lines["training, with dropout"],
        ([10, 20], [math.log(120), math.log(95)]),
    )
    self.assertEqual(
        lines["unigram baseline, held-out"][1], [math.log(150)] * 2
    )


if __name__ == "__main__":
  absltest.main()
