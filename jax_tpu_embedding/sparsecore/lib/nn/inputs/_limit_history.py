# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the batches of a run needed, in memory that does not grow with them."""

from __future__ import annotations

import collections
from collections.abc import Iterable
import dataclasses
from typing import Any

from jax_tpu_embedding.sparsecore import extras
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits

_FIRST_BLOCK = 100  # batches
_MAX_BLOCKS = 1000


@dataclasses.dataclass
class _Block:
  """The needs of some batches in a row."""

  size: int
  least: int
  total: int
  most: int

  def add(self, other: _Block) -> None:
    self.size += other.size
    self.least = min(self.least, other.least)
    self.total += other.total
    self.most = max(self.most, other.most)


class LimitHistory:
  """The needs of each stack and number over the batches. Not thread-safe."""

  def __init__(self):
    self._block_size = _FIRST_BLOCK
    self._blocks: dict[tuple[str, str], list[_Block]] = collections.defaultdict(
        list
    )
    # Rung -> batches whose need is not beyond it.
    self._rungs: dict[tuple[str, str], collections.Counter[int]] = (
        collections.defaultdict(collections.Counter)
    )

  def add(self, needs: _limits.Limits, rule: _limits.GrowthRule) -> None:
    """Adds a batch. The rule must always be the same."""
    for stack, of_stack in needs.stacks:
      for number in _limits.NUMBERS:
        need = getattr(of_stack, number)
        key = stack, number
        self._rungs[key][rule.rung_above(need)] += 1
        blocks = self._blocks[key]
        block = _Block(1, need, need, need)
        if blocks and blocks[-1].size < self._block_size:
          blocks[-1].add(block)
        else:
          blocks.append(block)
    if any(len(blocks) > _MAX_BLOCKS for blocks in self._blocks.values()):
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
    for name, of_stack in zip(names, all_axes):
      for number, axes in zip(_limits.NUMBERS, of_stack):
        blocks = self._blocks[name, number]
        ends = []
        for block in blocks:
          ends.append((ends[-1] if ends else 0) + block.size)
        begins = [0, *ends[:-1]]
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
          at, values = [0], [now]
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
