# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A stacking plan as a picture.

One line per stack. On the left a shard, to its own scale: how its rows are
divided among tables, and which rows and columns are padding. On the right what
the stack takes of a device, all to one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report_stacks

# Inches.
_WIDTH = 13.0
_LINE_HEIGHT = 0.34
_MARGIN_TOP = 0.75
_MARGIN_BOTTOM = 0.55
_SHARD_WIDTH = 5.6
_BYTES_WIDTH = 2.9

_BAR_HEIGHT = 0.72  # of a line
_FONT_SIZE = 8
_POINTS_PER_INCH = 72
_CHARACTER_WIDTH = 0.62  # of the font size, on average
_MAX_NAME_LENGTH = 34
_MIN_SHORTENED_LENGTH = 8

# Pairs of neighbours differ in lightness too, for readers who see no colours.
_TABLE_COLORS = (
    "#4878a8",
    "#9ec5e8",
    "#e08a3c",
    "#f4c99a",
    "#5b9a5b",
    "#b5dcb0",
)
_SLOT_COLOR = "#bdbdbd"
_VALUE_COLOR = "#6b6b6b"
_PADDING = dict(facecolor="#f4f4f4", edgecolor="#a0a0a0", hatch="////", lw=0)


def figure(
    stacks: Sequence[_report_stacks.StackInPlan],
    *,
    num_shards: int,
    num_devices: int,
    title: str,
) -> Any:
  """The picture as a matplotlib Figure, of no window and no global state.

  Args:
    stacks: of the plan.
    num_shards: SparseCores of all devices.
    num_devices: that share the tables.
    title: the plan in a line.
  """
  # Not at the top: matplotlib is an extra.
  try:
    import matplotlib.figure
  except ImportError as e:
    raise ImportError(
        "Drawing a plan needs matplotlib. Install it with"
        " `pip install jax_tpu_embedding[plots]`; describe() needs nothing."
    ) from e

  lines = _LINE_HEIGHT * len(stacks)
  height = _MARGIN_TOP + lines + _MARGIN_BOTTOM
  result = matplotlib.figure.Figure(figsize=(_WIDTH, height), facecolor="white")
  bytes_left = _WIDTH - _BYTES_WIDTH - 0.75
  shard_left = bytes_left - _SHARD_WIDTH - 1.1

  def panel(left, width):
    axes = result.add_axes(
        (left / _WIDTH, _MARGIN_BOTTOM / height, width / _WIDTH, lines / height)
    )
    # Line i is from i to i + 1, the first one on top.
    axes.set_ylim(len(stacks), 0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=_FONT_SIZE, left=False)
    return axes

  _draw_shards(panel(shard_left, _SHARD_WIDTH), stacks, num_shards)
  _draw_bytes(panel(bytes_left, _BYTES_WIDTH), stacks, num_devices)
  result.text(
      0.3 / _WIDTH,
      1 - 0.28 / height,
      title,
      fontsize=11,
      weight="bold",
      va="center",
  )
  return result


def _draw_shards(
    axes: Any, stacks: Sequence[_report_stacks.StackInPlan], num_shards: int
) -> None:
  axes.set_title(
      "One shard, rows to the scale of its stack", fontsize=9, loc="left"
  )
  axes.text(1.01, -0.25, "rows x columns", fontsize=_FONT_SIZE, va="baseline")
  axes.set_xlim(0, 1)
  axes.set_xticks([])
  axes.spines["bottom"].set_visible(False)
  axes.set_yticks(
      [line + 0.5 for line in range(len(stacks))],
      [shorten(stack.name, _MAX_NAME_LENGTH) for stack in stacks],
  )
  for line, stack in enumerate(stacks):
    rows_in_shard = stack.num_rows / num_shards
    for i, table in enumerate(stack.tables):
      block = (
          table.row_offset_in_shard / rows_in_shard,
          line + (1 - _BAR_HEIGHT) / 2,
          table.padded_vocabulary_size / stack.num_rows,
          _BAR_HEIGHT,
      )
      _draw_table(axes, table, block, _TABLE_COLORS[i % len(_TABLE_COLORS)])
    axes.text(
        1.01,
        line + 0.5,
        f"{rows_in_shard:.0f} x {stack.num_columns}",
        fontsize=_FONT_SIZE,
        va="center",
    )


def _draw_table(
    axes: Any,
    table: _report_stacks.TableInPlan,
    block: tuple[float, float, float, float],
    color: str,
) -> None:
  """Draws padding, and the values over it: rows go right, columns down."""
  import matplotlib.patches

  left, top, width, height = block
  axes.add_patch(
      matplotlib.patches.Rectangle((left, top), width, height, **_PADDING)
  )
  axes.add_patch(
      matplotlib.patches.Rectangle(
          (left, top),
          width * table.vocabulary_size / table.padded_vocabulary_size,
          height * table.embedding_dim / table.padded_embedding_dim,
          facecolor=color,
          edgecolor="white",
          lw=0.5,
      )
  )
  points = width * _SHARD_WIDTH * _POINTS_PER_INCH
  room = int(points / (_CHARACTER_WIDTH * _FONT_SIZE)) - 1
  if room >= min(len(table.name), _MIN_SHORTENED_LENGTH):
    axes.annotate(
        shorten(table.name, room),
        (left, top + height / 2),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=_FONT_SIZE,
        va="center",
        # A label may lie on values, on padding, or on both.
        bbox=dict(facecolor="white", alpha=0.75, edgecolor="none", pad=0.8),
    )


def _draw_bytes(
    axes: Any, stacks: Sequence[_report_stacks.StackInPlan], num_devices: int
) -> None:
  axes.set_title("Bytes per device", fontsize=9, loc="left")
  axes.set_yticks([])
  axes.xaxis.set_major_locator(_byte_ticks(stacks, num_devices))
  axes.xaxis.set_major_formatter(
      lambda num_bytes, _: readable_text.format_bytes(num_bytes).replace(
          ".0 ", " "
      )
  )
  middles = [line + 0.5 for line in range(len(stacks))]
  parts = {"tables": [], "slots": [], "padding": []}
  for stack in stacks:
    for name, num_bytes in (
        ("tables", stack.num_table_bytes),
        ("slots", stack.num_slot_bytes),
        ("padding", stack.num_padding_bytes),
    ):
      parts[name].append(num_bytes / num_devices)
  styles = {
      "tables": dict(color=_VALUE_COLOR),
      "slots": dict(color=_SLOT_COLOR),
      "padding": _PADDING,
  }
  ends = [0.0] * len(stacks)
  for name, widths in parts.items():
    axes.barh(
        middles, widths, _BAR_HEIGHT, left=ends, label=name, **styles[name]
    )
    ends = [end + width for end, width in zip(ends, widths)]
  axes.set_xlim(0, max(ends))
  for middle, end in zip(middles, ends):
    axes.annotate(
        readable_text.format_bytes(end),
        (end, middle),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=_FONT_SIZE,
        va="center",
    )
  axes.legend(
      loc="lower right",
      bbox_to_anchor=(1.2, 1.0),
      ncols=3,
      frameon=False,
      fontsize=_FONT_SIZE,
      borderpad=0,
      handlelength=1.2,
      columnspacing=1,
  )


def _byte_ticks(
    stacks: Sequence[_report_stacks.StackInPlan], num_devices: int
) -> Any:
  """Ticks at round numbers of the unit that they are shown in."""
  import matplotlib.ticker

  largest = max(stack.num_bytes for stack in stacks)
  largest /= num_devices
  unit = 1
  while largest >= 1024 * unit:
    unit *= 1024
  step = next(
      step * unit
      for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)
      if largest <= 3.5 * step * unit
  )
  return matplotlib.ticker.MultipleLocator(step)


def shorten(name: str, max_length: int) -> str:
  """`name`, or what fits of it with its end replaced by an ellipsis."""
  if len(name) <= max_length:
    return name
  return name[: max(max_length - 1, 0)] + "…"
