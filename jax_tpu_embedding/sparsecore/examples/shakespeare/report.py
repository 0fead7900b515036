# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The loss curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
import math
import pathlib

import matplotlib

matplotlib.use("agg")  # Draws to files; needs no display.

# pylint: disable=g-import-not-at-top
from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np

_TRAINING, _HELDOUT, _UNIGRAM = "#8fb8de", "#c1121f", "#555555"
# Far beyond a guess, whose perplexity is the size of the vocabulary.
_DIVERGED_PERPLEXITY = 1e9


def _perplexity(loss: float) -> float:
  """Of a loss in nats per word; infinite if it is more than a float holds."""
  try:
    return math.exp(loss)
  except OverflowError:
    return math.inf


def has_diverged(loss: float) -> bool:
  """Whether a loss, in nats per word, is far beyond that of a guess, or NaN."""
  return not _perplexity(loss) < _DIVERGED_PERPLEXITY  # NaN is not below it.


def perplexity_text(loss: float, digits: int = 1) -> str:
  """The perplexity of a loss in nats per word, with digits after the point.

  >>> perplexity_text(4.5), perplexity_text(45), perplexity_text(4500)
  ('90.0', '3.5e+19', 'inf')
  """
  kind = "e" if has_diverged(loss) else "f"
  return f"{_perplexity(loss):.{digits}{kind}}"


def _log(x: np.ndarray) -> np.ndarray:
  """Like np.log, but quiet about the zero that matplotlib tries."""
  return np.log(np.maximum(x, 1e-30))


def save_loss_curve(
    path: pathlib.Path,
    history: Sequence[dict[str, float]],
    unigram_loss: float,
    title: str,
) -> None:
  """Draws training loss, held-out loss and unigram baseline to a PNG file.

  Args:
    path: where to write.
    history: one record per evaluation: `step`, `heldout_loss` and, except for
      the one before the first step, `training_loss`; losses in nats per word.
      What is not finite is left out.
    unigram_loss: of the baseline, on the held-out text, in nats per word.
    title: what was learned.
  """
  figure, axes = plt.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
  trained = [record for record in history if "training_loss" in record]
  axes.plot(
      [record["step"] for record in trained],
      [record["training_loss"] for record in trained],
      color=_TRAINING,
      label="training, with dropout",
      marker=".",  # A short run has one point.
  )
  axes.plot(
      [record["step"] for record in history],
      [record["heldout_loss"] for record in history],
      color=_HELDOUT,
      label="held-out",
  )
  axes.axhline(
      unigram_loss,
      color=_UNIGRAM,
      linestyle="--",
      linewidth=1,
      label="unigram baseline, held-out",
  )
  last = history[-1]
  if math.isfinite(last["heldout_loss"]):
    axes.annotate(
        perplexity_text(last["heldout_loss"], digits=0),
        (last["step"], last["heldout_loss"]),
        xytext=(4, 0),
        textcoords="offset points",
        color=_HELDOUT,
        va="center",
    )
  axes.set_xlabel("step")
  axes.set_ylabel("loss [nats per word]")
  axes.set_title(title, loc="left")
  # The axis of a run that diverged would have numbers that nobody reads, or
  # that no float holds.
  if not has_diverged(axes.get_ylim()[1]):
    right = axes.secondary_yaxis("right", functions=(np.exp, _log))
    right.set_ylabel("perplexity")
    right.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    right.yaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  figure.savefig(path)
  plt.close(figure)
