# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
from unittest import mock

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.examples.dlrm import report
from matplotlib import image
from matplotlib import pyplot as plt

_HISTORY = [
    {"samples": 0, "heldout_loss": 0.7, "heldout_auc": 0.5},
    {
        "samples": 100,
        "training_loss": 0.6,
        "heldout_loss": 0.59,
        "heldout_auc": 0.6,
    },
    {
        "samples": 200,
        "training_loss": 0.5,
        "heldout_loss": 0.55,
        "heldout_auc": 0.7,
        "samples_per_second": 1000.0,
    },
]
_BASELINE = {"heldout_loss": 0.58, "heldout_auc": 0.65}


class ReportTest(absltest.TestCase):

  def _save(self, history=_HISTORY) -> pathlib.Path:
    path = pathlib.Path(self.create_tempdir().full_path, "training.png")
    report.save_picture(path, history, _BASELINE, title="Title")
    return path

  def _figure(self, history=_HISTORY) -> plt.Figure:
    with mock.patch.object(plt, "close") as close:
      self._save(history)
    (figure,) = close.call_args.args
    self.addCleanup(plt.close, figure)
    return figure

  def test_writes_a_picture(self):
    height, width, _ = image.imread(self._save()).shape
    self.assertEqual((width, height), (1200, 360))

  def test_draws_loss_auc_and_throughput(self):
    curves = [
        [
            (list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.get_lines()
        ]
        for axes in self._figure().axes
    ]
    self.assertEqual(
        curves,
        [
            [
                ([100, 200], [0.6, 0.5]),
                ([100, 200], [0.59, 0.55]),
                ([0, 1], [0.58, 0.58]),
            ],
            [([100, 200], [0.6, 0.7]), ([0, 1], [0.65, 0.65])],
            [([200], [1000.0])],
        ],
    )

  def test_a_run_of_one_step_says_that_it_has_no_throughput(self):
    *_, rate = self._figure(_HISTORY[:2]).axes
    self.assertEqual(
        [text.get_text() for text in rate.texts],
        ["a single step: not measured"],
    )
    *_, rate = self._figure().axes
    self.assertEmpty(rate.texts)

  def test_panels_share_the_number_of_samples(self):
    limits = {axes.get_xlim() for axes in self._figure(_HISTORY[:2]).axes}
    self.assertEqual(limits, {(0.0, 103.0)})


if __name__ == "__main__":
  absltest.main()
