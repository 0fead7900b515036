# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The most that limits grow to: what exceeds it takes several passes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import logging
from typing import Literal

from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits

# (stack name, limits) -> whether they can be had.
CanHave = Callable[[str, _limits.StackLimits], bool]
Ceiling = Literal["compile"] | Mapping[str, int] | CanHave | None

_IDS = "max_ids_per_partition"
_UNIQUE = "max_unique_ids_per_partition"
_NUMBERS = (_IDS, _UNIQUE)
# Rungs below what was refused where the search for a ceiling begins.
_NEAR = 4


class LimitCeiling:
  """Numbers that are given, or found by asking. Not thread-safe.

  Args:
    ceiling: number -> the most; or who can say whether limits can be had; or
      None: there is none.
    enable_minibatching: whether batches may take several passes.

  Attributes:
    numbers: that are given: number -> the most.

  Raises:
    TypeError: for another kind of ceiling.
    ValueError: for another word or other numbers, or these without
      minibatching.
  """

  def __init__(
      self,
      ceiling: Mapping[str, int] | CanHave | None,
      enable_minibatching: bool,
  ):
    self.numbers: dict[str, int] = {}
    self._can_have = ceiling if callable(ceiling) else None
    self._most_unique: dict[str, int] = {}  # by stack, where some were refused
    self._enable_minibatching = enable_minibatching
    if ceiling is None or callable(ceiling):
      return
    if not isinstance(ceiling, Mapping):
      error = ValueError if isinstance(ceiling, str) else TypeError
      raise error(
          "ceiling must be 'compile', a mapping, a function or None, got"
          f" {ceiling!r}."
      )
    for number, most in ceiling.items():
      if number not in _NUMBERS:
        raise ValueError(f"ceiling has {number!r}; the choices are {_NUMBERS}.")
      if not isinstance(most, int) or most <= 0:
        raise ValueError(
            f"ceiling: {number} must be a positive integer, got {most!r}."
        )
      self.numbers[number] = most
    # A pass has no more distinct rows than ids.
    if (most_ids := self.numbers.get(_IDS)) is not None:
      self.numbers[_UNIQUE] = min(self.numbers.get(_UNIQUE, most_ids), most_ids)
    if self.numbers and not enable_minibatching:
      raise ValueError(
          "ceiling needs enable_minibatching=True: what is above it takes"
          " several passes."
      )

  def cut(self, needs: _limits.Limits) -> _limits.Limits:
    """What of the needs one pass has to have room for."""
    if not self.numbers and not self._most_unique:
      return needs
    stacks = []
    for name, need in needs.stacks:
      most = dict(self.numbers)
      if name in self._most_unique:
        unique = self._most_unique[name]
        most[_UNIQUE] = min(unique, most.get(_UNIQUE, unique))
      changes = {
          number: min(getattr(need, number), value)
          for number, value in most.items()
      }
      stacks.append((name, dataclasses.replace(need, **changes)))
    return dataclasses.replace(needs, stacks=tuple(stacks))

  def below(
      self, new: _limits.Limits, old: _limits.Limits, rule: _growth.GrowthRule
  ) -> _limits.Limits:
    """`new` with no more distinct rows than can be had, at least as `old`.

    Raises:
      ValueError: if a stack cannot have any, or not what it needs and there is
        no minibatching.
    """
    if self._can_have is None:
      return new
    stacks = []
    for name, wanted in new.stacks:
      had = old[name].max_unique_ids_per_partition
      if wanted.max_unique_ids_per_partition > had:
        wanted = self._highest(name, wanted, had, rule)
      stacks.append((name, wanted))
    return dataclasses.replace(new, stacks=tuple(stacks))

  def _highest(self, name, limits, old: int, rule) -> _limits.StackLimits:
    """`limits`, or those of the highest rung of distinct rows below."""

    def with_rows(unique):
      return dataclasses.replace(limits, max_unique_ids_per_partition=unique)

    wanted = limits.max_unique_ids_per_partition
    most = self._most_unique.get(name)
    if most is not None:
      return with_rows(max(min(wanted, most), old))
    if self._can_have(name, limits):
      return limits
    if not self._enable_minibatching:
      raise ValueError(
          f"Stack {name!r}: {wanted} distinct rows per partition do not compile."
          " Let batches take several passes, with enable_minibatching=True here"
          " and in the layer, or use more devices, or a smaller batch."
      )
    low, high = 0, rule.rung_above(wanted)  # `low` can be had, `high` cannot
    while old > 1 and rule.rung(low + 1) <= old:
      low += 1
    # What is refused is mostly refused by a little.
    middle = max(high - _NEAR, (low + high) // 2)
    while high - low > 1:
      if self._can_have(name, with_rows(rule.rung(middle))):
        low = middle
      else:
        high = middle
      middle = (low + high) // 2
    if not low:
      raise ValueError(
          f"Stack {name!r}: not even {rule.rung(1)} distinct rows per partition"
          " can be had. Use more devices, or a smaller batch."
      )
    self._most_unique[name] = max(rule.rung(low), old)
    logging.getLogger(__name__).warning(
        "limits: stack %r needs %d distinct rows per partition, and %d are the"
        " most that compile: batches take several passes. More devices or a"
        " smaller batch need fewer.",
        name,
        wanted,
        self._most_unique[name],
    )
    return with_rows(self._most_unique[name])
