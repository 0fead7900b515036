# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The costs of a model as a picture: a device's memory, and the time of a batch."""

from __future__ import annotations

import os
from typing import Any

from jax_tpu_embedding.sparsecore.lib.planning import _costs

# Inches.
_WIDTH = 12.0
_LINE_HEIGHT = 0.32
_TOP = 1.0
_BOTTOM = 0.9
_LEFT = 2.1
_PANEL = 4.4
_GAP = 0.7

_FONT_SIZE = 8
_BAR_HEIGHT = 0.7  # of a line
_MAX_NAME_LENGTH = 26
# They differ in lightness too, for readers who see no colours.
_MEMORY = (
    ("tables", "#2f4f6f"),
    ("slots", "#7fa6cc"),
    ("padding", "#e4e4e4"),
    ("batch", "#e08a3c"),
)
_TIME = (("lookup", "#2f6f3f"), ("update", "#9fd0a0"))


def plot(costs: _costs.ModelCost, path: str | os.PathLike[str]) -> None:
  """Writes the picture to a file."""
  figure(costs).savefig(path, dpi=150)


def figure(costs: _costs.ModelCost) -> Any:
  """The picture as a matplotlib Figure, of no window and no global state."""
  try:
    import matplotlib.figure
  except ImportError as e:
    raise ImportError(
        "Drawing costs needs matplotlib. Install it with"
        " `pip install jax_tpu_embedding[plots]`; describe() needs nothing."
    ) from e
  lines = _LINE_HEIGHT * max(len(costs.stacks), 2)
  height = _TOP + lines + _BOTTOM
  result = matplotlib.figure.Figure(figsize=(_WIDTH, height), facecolor="white")

  def panel(left, title, label):
    axes = result.add_axes(
        (left / _WIDTH, _BOTTOM / height, _PANEL / _WIDTH, lines / height)
    )
    # Line i is from i to i + 1, the first one on top.
    axes.set_ylim(len(costs.stacks), 0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=_FONT_SIZE, left=False)
    axes.set_yticks([])
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(label, fontsize=_FONT_SIZE)
    return axes

  memory = panel(
      _LEFT,
      f"Memory: {costs.bytes_per_device() / 2**30:.2f} of"
      f" {costs.topology.chip.memory_bytes / 2**30:.0f} GiB",
      "MiB of a device",
  )
  memory.set_yticks(
      [i + 0.5 for i in range(len(costs.stacks))],
      [_shortened(stack.name) for stack in costs.stacks],
  )
  _bars(
      memory,
      _MEMORY,
      [
          [
              x / 2**20
              for x in (
                  stack.table_bytes,
                  stack.slot_bytes,
                  stack.padding_bytes,
                  stack.buffer_bytes + 2 * stack.activation_bytes,
              )
          ]
          for stack in costs.stacks
      ],
  )
  time = panel(
      _LEFT + _PANEL + _GAP,
      f"SparseCores: {costs.lookup_seconds * 1e3:.3f} ms lookup,"
      f" {costs.update_seconds * 1e3:.3f} ms update,"
      f" {costs.source_of_times}",
      "ms of a batch"
      if costs.is_measured
      else f"ms of a batch, at an efficiency of {costs.efficiency_in_words}",
  )
  _bars(
      time,
      _TIME,
      [
          [1e3 * stack.lookup_seconds, 1e3 * stack.update_seconds]
          for stack in costs.stacks
      ],
  )
  result.text(
      0.3 / _WIDTH,
      1 - 0.3 / height,
      f"{costs.topology.name}, {costs.workload}",
      fontsize=11,
      weight="bold",
      va="center",
  )
  return result


def _bars(axes: Any, parts: Any, lines: list[list[float]]) -> None:
  for number, (label, color) in enumerate(parts):
    axes.barh(
        [i + 0.5 for i in range(len(lines))],
        [values[number] for values in lines],
        left=[sum(values[:number]) for values in lines],
        height=_BAR_HEIGHT,
        color=color,
        label=label,
    )
  axes.set_xlim(left=0)
  axes.legend(
      loc="upper right",
      bbox_to_anchor=(1.0, -0.45 / (_LINE_HEIGHT * max(len(lines), 2))),
      ncols=len(parts),
      fontsize=_FONT_SIZE,
      frameon=False,
      borderpad=0,
  )


def _shortened(name: str) -> str:
  if len(name) <= _MAX_NAME_LENGTH:
    return name
  return name[: _MAX_NAME_LENGTH - 3] + "..."
