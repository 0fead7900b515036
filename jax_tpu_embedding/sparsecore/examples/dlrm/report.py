# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Loss, AUC and throughput of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib

import matplotlib

matplotlib.use("agg")  # Draws to files; needs no display.

# pylint: disable=g-import-not-at-top
from matplotlib import pyplot as plt
from matplotlib import ticker

_TRAINING, _HELDOUT, _BASELINE = "#8fb8de", "#c1121f", "#555555"


def save_picture(
    path: pathlib.Path,
    history: Sequence[dict[str, float]],
    baseline: dict[str, float],
    title: str,
) -> None:
  """Draws three panels to a PNG file.

  Args:
    path: where to write.
    history: one record per evaluation: `samples` seen so far, `heldout_loss`,
      `heldout_auc`; `training_loss`, except before the first step; and
      `samples_per_second`, where it was measured. Losses are in nats.
    baseline: `heldout_loss` and `heldout_auc` of logistic regression.
    title: what was learned.
  """
  figure, (loss, auc, rate) = plt.subplots(
      1, 3, figsize=(12, 3.6), dpi=100, layout="constrained"
  )
  # Not what an untrained model gives: it would flatten all that follows.
  trained = [record for record in history if record["samples"]]

  def draw(axes, name, color, label=None):
    records = [record for record in trained if name in record]
    axes.plot(
        [record["samples"] for record in records],
        [record[name] for record in records],
        color=color,
        label=label,
        marker=".",
    )

  def draw_baseline(axes, name):
    axes.axhline(
        baseline[name],
        color=_BASELINE,
        linestyle="--",
        linewidth=1,
        label="logistic regression, held-out",
    )

  draw(loss, "training_loss", _TRAINING, "training")
  draw(loss, "heldout_loss", _HELDOUT, "held-out")
  draw_baseline(loss, "heldout_loss")
  loss.set_title("log loss [nats]", loc="left")
  draw(auc, "heldout_auc", _HELDOUT, "held-out")
  draw_baseline(auc, "heldout_auc")
  auc.set_title("AUC", loc="left")
  draw(rate, "samples_per_second", _TRAINING)
  if all("samples_per_second" not in record for record in trained):
    rate.text(
        0.5,
        0.5,
        "a single step: not measured",
        transform=rate.transAxes,
        ha="center",
    )
    rate.set_yticks([])
  rate.set_ylim(bottom=0)
  rate.set_title("training, samples/s", loc="left")
  for axes in (loss, auc, rate):
    axes.set_xlabel("samples seen")
    axes.set_xlim(0, 1.03 * history[-1]["samples"])
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  rate.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
  loss.legend(frameon=False)
  auc.legend(frameon=False)
  figure.suptitle(title, x=0.01, ha="left")
  figure.savefig(path)
  plt.close(figure)
