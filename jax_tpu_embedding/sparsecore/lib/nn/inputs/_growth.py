# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The rule by which limits grow, and what grew.

A program is compiled for limits. If they were what each batch needs, nearly
every batch would compile one. So they are taken from a ladder whose rungs are a
quarter apart, a quarter above what was seen, and those that are close to the
next rung grow together with the one that has to. In 3,000 batches with drift
and bursts that gave 8 programs, where following the largest need gave 78.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import logging
import math
import numbers
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared

# Stacks of which a line of the log has numbers.
_MAX_LOGGED = 4


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What limits make sense up to.

  Attributes:
    rows_per_sc: stack name -> rows of a SparseCore.
    num_scs: of the job.
    ceiling: number -> the most that it grows to.
  """

  rows_per_sc: Mapping[str, int]
  num_scs: int
  ceiling: Mapping[str, int] = dataclasses.field(default_factory=dict)


# Counts of independent ids spread by the root of their mean. Below this square,
# 25% of headroom are less than three times that, and thousands of batches from
# one law still find a larger need.
_STEADY_NEED = 12**2


@dataclasses.dataclass(frozen=True)
class GrowthRule:
  """How far limits grow.

  Attributes:
    growth: the ratio of two rungs.
    headroom: what is kept above the largest need that was seen; of needs below
      144 more, since they vary more.
    near: a number also grows if `near` times its largest need exceeds it.
  """

  growth: float = 1.25
  headroom: float = 1.25
  near: float = 1.1

  def __post_init__(self):
    for name, least, is_open in (
        ("growth", 1, True),
        ("headroom", 1, False),
        ("near", 1, False),
    ):
      value = getattr(self, name)
      if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}.")
      if not (
          math.isfinite(value)
          and (value > least or value == least and not is_open)
      ):
        raise ValueError(
            f"{name} must be a number {'above' if is_open else 'of at least'}"
            f" {least}, got {value!r}."
        )

  def rung(self, k: int) -> int:
    """The number of rung k = 1, 2, ..."""
    return _round_up(8 * self.growth ** (k - 1))

  def rung_above(self, need: float) -> int:
    """The lowest rung whose number is at least `need`."""
    # Many rungs may be rounded up to one number: it is the first of them.
    below = _round_up(need) - constants.ALIGNMENT
    k = 1
    if below > 0:
      k = 2 + math.floor(math.log(below / 8, self.growth))
    while self.rung(k) < need:
      k += 1
    while k > 1 and self.rung(k - 1) >= need:
      k -= 1
    return k

  def with_headroom(self, need: float) -> float:
    """What a number should be of which this is the largest need."""
    steady = max(math.sqrt(_STEADY_NEED / max(need, 1)), 1.0)
    return need * (1 + (self.headroom - 1) * steady)

  def wanted(
      self,
      limits: _limits.Limits,
      needs: _limits.Limits,
      largest: _limits.Limits,
  ) -> list[int]:
    """For each stack and number the rung that it grows to, or 0.

    Args:
      limits: the present ones.
      needs: those of the batch.
      largest: of all batches, this one included.
    """
    rungs = []
    needs, largest = dict(needs.stacks), dict(largest.stacks)
    for name, of_stack in limits.stacks:
      for number in _limits.NUMBERS:
        limit = getattr(of_stack, number)
        most = getattr(largest[name], number)
        grows = max(getattr(needs[name], number), self.near * most) > limit
        rung = self.rung_above(self.with_headroom(most)) if grows else 0
        rungs.append(rung)
    return rungs

  def grown(
      self,
      limits: _limits.Limits,
      rungs: list[int],
      bounds: Bounds,
  ) -> _limits.Limits:
    """`limits` with numbers raised to rungs, as far as that makes sense.

    A partition has no more distinct rows than a SparseCore has, or ids there
    are; nor can buffers have more cells than partitions fill.

    Args:
      limits: the present ones.
      rungs: for each stack and number, or 0.
      bounds: what they make sense up to.
    """
    stacks = []
    rungs = iter(rungs)
    passes = constants.MAX_MINIBATCHES if limits.enable_minibatching else 1
    for name, old in limits.stacks:
      new = {}
      for number in _limits.NUMBERS:
        k = next(rungs)
        value = (
            min(self.rung(k), bounds.ceiling.get(number, math.inf)) if k else 0
        )
        new[number] = max(value, getattr(old, number))
      ids, unique, cells = new.values()
      unique = max(
          min(unique, ids, bounds.rows_per_sc[name]),
          old.max_unique_ids_per_partition,
      )
      most_cells = _round_up(ids) * bounds.num_scs * passes
      cells = max(min(_round_up(cells), most_cells), old.coo_cells_per_sc)
      stacks.append((name, _limits.StackLimits(ids, unique, cells)))
    return dataclasses.replace(limits, stacks=tuple(stacks))


def rows_per_sc(feature_specs: Any, num_scs: int) -> dict[str, int]:
  """Stack name -> rows of a SparseCore."""
  return {
      name: stack.stack_vocab_size // num_scs
      for name, stack in _prepared.get_split_stacks(feature_specs).items()
  }


@dataclasses.dataclass(frozen=True)
class Growth:
  """A number that grew.

  Attributes:
    batch_number: of the batch that did not fit, on some process.
    stack: its name.
    number: a field of StackLimits.
    need: the largest that this process has seen so far.
    old: what it was.
    new: what it is since.
  """

  batch_number: int
  stack: str
  number: str
  need: int
  old: int
  new: int


def growths_of(
    batch_number: int,
    old: _limits.Limits,
    new: _limits.Limits,
    largest: _limits.Limits,
) -> tuple[Growth, ...]:
  """What grew at a batch.

  Args:
    batch_number: of the batch.
    old: the limits before it.
    new: those after it.
    largest: the needs for which they grew.
  """
  return tuple(
      Growth(
          batch_number,
          name,
          number,
          getattr(largest[name], number),
          getattr(old[name], number),
          getattr(of_stack, number),
      )
      for name, of_stack in new.stacks
      for number in _limits.NUMBERS
      if getattr(old[name], number) != getattr(of_stack, number)
  )


def log_growth(growths: tuple[Growth, ...]) -> None:
  """Logs what grew at one batch, in one line."""
  by_stack = {}
  for growth in growths:
    by_stack.setdefault(growth.stack, []).append(
        f"{growth.number} {growth.old} -> {growth.new} (need {growth.need})"
    )
  listed = [
      f"stack {name!r}: {', '.join(changes)}"
      for name, changes in by_stack.items()
  ]
  if len(listed) > _MAX_LOGGED:
    others = len(listed) - _MAX_LOGGED
    listed[_MAX_LOGGED:] = [f"and those of {others} other stacks"]
  logging.getLogger(__name__).info(
      "limits: batch %d, %s. The step compiles again.",
      growths[0].batch_number,
      "; ".join(listed),
  )


def _round_up(x: float) -> int:
  """To what cells and row pointers come in multiples of."""
  return math.ceil(x / constants.ALIGNMENT) * constants.ALIGNMENT
