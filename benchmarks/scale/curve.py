# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How something grows: a table, a picture, and exponents of a fit."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import pathlib

# One row of a table: column -> number, None where it was not measured.
Point = dict[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """Some numbers over one that grows."""

  # Of files: letters and underscores.
  name: str
  title: str
  # What was measured and how, in sentences.
  text: str
  # The column of what grows; all others are functions of it.
  x: str
  points: Sequence[Point]

  @property
  def columns(self) -> list[str]:
    return [column for column in self.points[0] if column != self.x]

  def exponent(self, column: str) -> float | None:
    """The p of y = c x^p, by least squares of logarithms.

    Of the upper half of the logarithms of x: below, what does not grow weighs
    most. None if that has fewer than two points with y > 0.
    """
    logs = [
        (math.log(point[self.x]), math.log(point[column]))
        for point in self.points
        if point[column]
    ]
    if not logs:
      return None
    middle = (logs[0][0] + logs[-1][0]) / 2
    logs = [(x, y) for x, y in logs if x >= middle]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    square = sum((x - mean_x) ** 2 for x, _ in logs)
    if square == 0:
      return None
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / square

  def to_markdown(self) -> str:
    columns = [self.x, *self.columns]
    lines = [
        f"## {self.title}\n",
        f"{self.text}\n",
        f"![{self.title}]({self.name}.png)\n",
        "| " + " | ".join(columns) + " |",
        "|" + "--:|" * len(columns),
    ]
    for point in self.points:
      lines.append(
          "| " + " | ".join(_number(point[column]) for column in columns) + " |"
      )
    exponents = [self.exponent(column) for column in self.columns]
    cells = ["-" if p is None else f"{p:.2f}" for p in exponents]
    lines.append("| *exponent* | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

  def draw(self, directory: pathlib.Path) -> None:
    """Writes the picture that to_markdown() names."""
    # Where nothing is drawn, nothing of it is needed.
    from matplotlib import pyplot  # pylint: disable=g-import-not-at-top

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for column in self.columns:
      known = [(p[self.x], p[column]) for p in self.points if p[column]]
      if known:
        axes.loglog(*zip(*known), marker="o", markersize=3, label=column)
    first, last = (self.points[i][self.x] for i in (0, -1))
    bottom = axes.get_ylim()[0]
    axes.loglog(
        [first, last],
        [bottom, bottom * last / first],
        color="lightgray",
        linestyle="--",
        label=f"proportional to {self.x}",
        scaley=False,
    )
    axes.set_xlabel(self.x)
    axes.set_title(self.title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(directory / f"{self.name}.png", dpi=110)
    pyplot.close(figure)


def _number(value: float | None) -> str:
  if value is None:
    return "-"
  if value == int(value) or value >= 1000:
    return f"{value:,.0f}"
  return f"{value:.3g}"
