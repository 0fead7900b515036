# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the batches of a run needed, and which limits grew: to be looked at.

Memory does not grow with the batches.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
import dataclasses
import functools
from typing import Any

from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits

_FIRST_BLOCK = 100  # batches
_MAX_BLOCKS = 250
# Stacks of which a line of the log has numbers.
_MAX_LOGGED = 4


@dataclasses.dataclass(slots=True)
class _Block:
  """The needs of some batches in a row."""

  size: int
  least: int
  total: int
  most: int

  def add_batch(self, need: int) -> None:
    self.size += 1
    self.total += need
    if need < self.least:
      self.least = need
    elif need > self.most:
      self.most = need

  def add(self, other: _Block) -> None:
    self.size += other.size
    self.least = min(self.least, other.least)
    self.total += other.total
    self.most = max(self.most, other.most)


class LimitHistory:
  """The needs of each stack and number over the batches. Not thread-safe.

  Args:
    rule: what rungs needs are counted by.
  """

  def __init__(self, rule: _growth.GrowthRule):
    # Needs repeat, and their rungs take a logarithm.
    self._rung_above = functools.lru_cache(maxsize=4096)(rule.rung_above)
    self._block_size = _FIRST_BLOCK
    self._first_number: int | None = None  # of the batches
    self._blocks: dict[tuple[str, str], list[_Block]] = collections.defaultdict(
        list
    )
    # Rung -> batches whose need is not beyond it.
    self._rungs: dict[tuple[str, str], collections.Counter[int]] = (
        collections.defaultdict(collections.Counter)
    )

  @property
  def is_empty(self) -> bool:
    return self._first_number is None

  def add(self, needs: _limits.Limits, batch_number: int) -> None:
    """Adds a batch. The number of the first counts: others follow it."""
    if self._first_number is None:
      self._first_number = batch_number
    is_long = False
    for stack, of_stack in needs.stacks:
      for number in _limits.NUMBERS:
        need = getattr(of_stack, number)
        key = stack, number
        self._rungs[key][self._rung_above(need)] += 1
        blocks = self._blocks[key]
        if blocks and blocks[-1].size < self._block_size:
          blocks[-1].add_batch(need)
        else:
          blocks.append(_Block(1, need, need, need))
          is_long = is_long or len(blocks) > _MAX_BLOCKS
    if is_long:
      self._block_size *= 2
      for blocks in self._blocks.values():
        for i in range(0, len(blocks) - 1, 2):
          blocks[i].add(blocks[i + 1])
        del blocks[1::2]

  def quantile_rung(self, stack: str, number: str, quantile: float) -> int:
    """The lowest rung that this share of the batches is not beyond; 0: none."""
    rungs = self._rungs[stack, number]
    left = quantile * rungs.total()
    for rung in sorted(rungs):
      left -= rungs[rung]
      if left <= 1e-9:
        return rung
    return 0

  def plot(
      self,
      path: Any,
      limits: _limits.Limits,
      growths: Iterable[Any],
  ) -> None:
    """Draws needs as bands, limits as steps. Needs matplotlib."""
    extras.require("plots", "matplotlib")
    from matplotlib import figure  # pylint: disable=g-import-not-at-top

    names = [name for name, _ in limits.stacks]
    size = (3.6 * len(_limits.NUMBERS), 2.4 * len(names))
    picture = figure.Figure(figsize=size, layout="constrained")
    all_axes = picture.subplots(
        len(names), len(_limits.NUMBERS), squeeze=False, sharex=True
    )
    growths = list(growths)
    first = self._first_number or 0
    for name, of_stack in zip(names, all_axes):
      for number, axes in zip(_limits.NUMBERS, of_stack):
        blocks = self._blocks[name, number]
        ends = []
        for block in blocks:
          ends.append((ends[-1] if ends else first) + block.size)
        begins = [first, *ends[:-1]]
        x = [at for pair in zip(begins, ends) for at in pair]
        twice = lambda values: [v for value in values for v in (value, value)]
        axes.fill_between(
            x,
            twice(block.least for block in blocks),
            twice(block.most for block in blocks),
            alpha=0.3,
            linewidth=0,
        )
        axes.plot(
            x,
            twice(block.total / block.size for block in blocks),
            label="need",
        )
        grown = [g for g in growths if (g.stack, g.number) == (name, number)]
        now = getattr(limits[name], number)
        at = [growth.batch_number for growth in grown]
        values = [growth.new for growth in grown]
        if not grown:
          at, values = [first], [now]
        axes.step(
            [*at, max([*at, *ends])],
            [*values, values[-1]],
            where="post",
            label="limit",
        )
        axes.plot(at, values, ".", color="C1")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{name}: {number}", fontsize=8)
        axes.set_xlabel("batch", fontsize=8)
    all_axes[0][0].legend(frameon=False, fontsize=8)
    picture.savefig(path)


def describe(
    limits: _limits.Limits,
    largest: _limits.Limits | None,
    shrunk: _limits.Limits | None,
) -> list[str]:
  """Lines of text: limits beside the largest needs, and what is empty.

  Args:
    limits: the present ones.
    largest: what a batch needed at most; None before the first one.
    shrunk: what a restart could have; None before the first batch.
  """
  lines = []
  for name, of_stack in limits.stacks:
    lines.append(f"  {name}:")
    for number in _limits.NUMBERS:
      limit = getattr(of_stack, number)
      line = f"    {number}: {limit}"
      if largest is not None:
        need = getattr(largest[name], number)
        line += f", largest need {need}" + (
            f" ({100 * (limit - need) / limit:.0f}% above it)"
            if limit >= need
            else ", in several passes"
        )
      lines.append(line)
  if shrunk is not None:
    saved = sum(
        4 * 3 * (of_stack.coo_cells_per_sc - shrunk[name].coo_cells_per_sc)
        for name, of_stack in limits.stacks
    )
    if saved > 0:
      lines.append(
          f"  A restart with start=limits.shrunk() would save {saved} bytes"
          " per SparseCore and batch."
      )
  return lines
