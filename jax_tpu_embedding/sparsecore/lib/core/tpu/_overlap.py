# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What runs at the same time in a program: as numbers, text and a picture.

The picture has two lanes, what computes and calls beside it. On a TPU these are
the TensorCore, along its time as libtpu estimates it, and SparseCores. On GPUs
they are matrix products, along their FLOPs, and collectives, with a lane for
each operation. A call is drawn over the time that it has: how much of it the
call takes is not known. A call with nothing large beside it is a line.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any
from typing import Literal

Platform = Literal["tpu", "gpu"]

# Inches.
_WIDTH = 11.0
_TOP = 0.75
_LANE = 0.55
_BOTTOM = 0.75
_LEFT = {"tpu": 1.25, "gpu": 2.0}
_RIGHT = 0.3

_BAR_HEIGHT = 0.66  # of a lane
_FONT_SIZE = 8
# Of the first lane, and below all.
_LABELS = {
    "tpu": ("TensorCore", "estimated cycles of the TensorCore"),
    "gpu": ("matrix products", "FLOPs of matrix products"),
}
# They differ in lightness too, for readers who see no colours.
_MATMUL = "#4878a8"
_OTHER = "#c8d8e8"
_CALL = "#5b9a5b"
_EXPOSED = "#c0392b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
  """What a device computes, one after the other.

  The cost, and so every time here, is in cycles of the TensorCore, as libtpu
  estimates it; for GPUs in FLOPs of matrix products, so that other kernels take
  no time.
  """

  name: str
  start: int  # the sum of the costs before
  cost: int
  is_matmul: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
  """An asynchronous call of SparseCores, or a collective of GPUs."""

  name: str
  # Of the program that was compiled: sparse_dense_matmul_csr, or on GPUs
  # lookup/STACK/all_to_all. A call that XLA merged from several has the name of
  # one of them.
  operation: str
  start: int  # where in the time of the instructions it may begin
  end: int  # and where they wait for it
  matmul_cost: int  # of the matrix products between
  # Whether it is of a lookup or an update. Other collectives of GPUs are not.
  of_tables: bool

  @property
  def is_exposed(self) -> bool:
    return not self.matmul_cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverlapReport:
  """What runs at the same time in a program. `str()` of it is for people."""

  platform: Platform
  calls: tuple[Call, ...]  # in the order of their starts
  instructions: tuple[Instruction, ...]  # with a cost, in order
  matmul_cost: int  # of all matrix products
  # Of those beside any call of tables, each once.
  overlapped_matmul_cost: int

  @property
  def exposed_calls(self) -> tuple[Call, ...]:
    return tuple(call for call in self.calls if call.is_exposed)

  def __str__(self):
    unit, calls = (
        ("estimated cycles", "SparseCore calls")
        if self.platform == "tpu"
        else ("FLOPs", "exchanges of rows")
    )
    lines = [
        f"matrix products: {self.matmul_cost} {unit},"
        f" {self.overlapped_matmul_cost} of them beside {calls}"
    ]
    for call in self.calls:
      beside = (
          f"beside {call.matmul_cost} {unit.split()[-1]} of matrix products"
      )
      name = call.name
      if self.platform == "gpu" and call.operation:
        name += f" ({call.operation})"
      lines.append(f"{name}: {'exposed' if call.is_exposed else beside}")
    return "\n".join(lines)

  def plot(self, path: str | os.PathLike[str]) -> None:
    """Draws two lanes: what computes, and calls beside it.

    Args:
      path: the file to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
      ImportError: if matplotlib is not there. It comes with the extra `plots`.
    """
    figure(self).savefig(path, dpi=150)


def figure(report: OverlapReport) -> Any:
  """The picture as a matplotlib Figure, of no window and no global state."""
  try:
    import matplotlib.figure
    import matplotlib.patches
  except ImportError as e:
    raise ImportError(
        "Drawing overlap needs matplotlib. Install it with"
        " `pip install jax_tpu_embedding[plots]`; str() needs nothing."
    ) from e

  compute, unit = _LABELS[report.platform]
  left = _LEFT[report.platform]
  if report.platform == "tpu":
    lanes = _lanes(report.calls)
    names = ["SparseCores"] + [""] * max(lanes, default=0)
  else:
    operations = [call.operation or call.name for call in report.calls]
    names = list(dict.fromkeys(operations))
    lanes = [names.index(x) for x in operations]
  num_lanes = 1 + len(names)
  height = _TOP + _LANE * num_lanes + _BOTTOM
  result = matplotlib.figure.Figure(figsize=(_WIDTH, height), facecolor="white")
  axes = result.add_axes(
      (
          left / _WIDTH,
          _BOTTOM / height,
          1 - (left + _RIGHT) / _WIDTH,
          _LANE * num_lanes / height,
      )
  )
  end = max((x.start + x.cost for x in report.instructions), default=1)
  axes.set_xlim(0, end)
  # The first lane is on top.
  axes.set_ylim(num_lanes, 0)
  axes.spines[["top", "right", "left"]].set_visible(False)
  axes.tick_params(labelsize=_FONT_SIZE, left=False)
  axes.set_yticks([lane + 0.5 for lane in range(num_lanes)], [compute, *names])
  axes.set_xlabel(unit, fontsize=_FONT_SIZE)

  bar = lambda lane: (lane + (1 - _BAR_HEIGHT) / 2, _BAR_HEIGHT)
  for is_matmul, color in ((True, _MATMUL), (False, _OTHER)):
    spans = [
        (x.start, x.cost)
        for x in report.instructions
        if x.is_matmul == is_matmul
    ]
    axes.broken_barh(spans, bar(0), facecolor=color, edgecolor="white", lw=0.4)
  for call, lane in zip(report.calls, lanes, strict=True):
    # Lanes of GPUs have their names.
    label = call.operation or call.name if report.platform == "tpu" else ""
    _draw_call(axes, call, label, bar(1 + lane), end)
  result.text(
      left / _WIDTH,
      1 - 0.3 / height,
      _summary(report),
      fontsize=10,
      weight="bold",
      va="center",
  )
  patches = [
      matplotlib.patches.Patch(color=color, label=label)
      for color, label in (
          (_MATMUL, "matrix products"),
          (_OTHER, "other work"),
          (_CALL, "time that a call has"),
          (_EXPOSED, "exposed: with nothing beside it"),
      )
  ]
  result.legend(
      handles=patches,
      loc="lower left",
      bbox_to_anchor=(left / _WIDTH, 0.0),
      ncols=len(patches),
      fontsize=_FONT_SIZE,
      frameon=False,
      borderpad=0,
  )
  return result


def _draw_call(
    axes: Any,
    call: Call,
    label: str,
    bar: tuple[float, float],
    end: int,
) -> None:
  low, height = bar
  if not call.is_exposed:
    axes.broken_barh(
        [(call.start, max(call.end - call.start, 1))], bar, facecolor=_CALL
    )
    is_right = (call.start + call.end) / 2 > end / 2
    axes.text(
        call.end - end / 200 if is_right else call.start + end / 200,
        low + height / 2,
        label,
        ha="right" if is_right else "left",
        va="center",
        fontsize=_FONT_SIZE,
    )
    return
  axes.vlines(call.start, low, low + height, color=_EXPOSED, lw=3)
  # Where there is room.
  is_right = call.start > end / 2
  axes.text(
      call.start + (-end if is_right else end) / 100,
      low + height / 2,
      label,
      ha="right" if is_right else "left",
      va="center",
      fontsize=_FONT_SIZE,
      color=_EXPOSED,
  )


def _lanes(calls: Any) -> list[int]:
  """A lane for each call, such that none hides another."""
  lanes, ends = [], []
  for call in calls:
    free = [i for i, end in enumerate(ends) if end <= call.start]
    lane = free[0] if free else len(ends)
    ends[lane : lane + 1] = [call.end]
    lanes.append(lane)
  return lanes


def _summary(report: OverlapReport) -> str:
  num, exposed = len(report.calls), len(report.exposed_calls)
  calls, them = (
      ("SparseCore call", "them")
      if report.platform == "tpu"
      else ("collective", "exchanges of rows")
  )
  share = report.overlapped_matmul_cost / max(report.matmul_cost, 1)
  return (
      f"{num} {calls}{'' if num == 1 else 's'}, {exposed} exposed;"
      f" {share:.0%} of the matrix products run beside {them}"
  )
