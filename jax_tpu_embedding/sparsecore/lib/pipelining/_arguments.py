# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which arguments of a train step are the batch, and which are static.

A pipelined step puts the arguments of two calls together: the batch of the call
before, and the others of this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import operator
from typing import Any

import jax


def argnums(name: str, positions: int | Iterable[int]) -> tuple[int, ...]:
  """`positions` as a tuple; `name` is for messages.

  Raises:
    ValueError: if they are not positions from 0, each once.
  """
  if not isinstance(positions, Iterable):
    positions = (positions,)
  positions = tuple(map(operator.index, positions))
  if any(i < 0 for i in positions) or len(set(positions)) < len(positions):
    raise ValueError(
        f"{name} are positions of arguments, from 0, each once; got"
        f" {positions}."
    )
  return positions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
  """Of the arguments of a train step, which are passed by position."""

  batch: tuple[int, ...]
  static: tuple[int, ...]  # none of the batch

  def check(self, args: Sequence[Any]) -> None:
    """Raises if the batch is not among `args`."""
    if len(args) <= max(self.batch):
      raise ValueError(
          f"Got {len(args)} arguments of train_step, but its batch is at"
          f" {self.batch}. Pass the flight first, and then all of them, by"
          " position."
      )

  def traced(self, args: Sequence[Any]) -> dict[int, Any]:
    """Position -> argument, of those that are not static."""
    return {i: arg for i, arg in enumerate(args) if i not in self.static}

  def with_traced(
      self, args: Sequence[Any], traced: Iterable[Any]
  ) -> list[Any]:
    """`args` with others in place of those that are not static."""
    traced = iter(traced)
    return [
        arg if i in self.static else next(traced) for i, arg in enumerate(args)
    ]

  def leaves(self, args: Sequence[Any]) -> list[Any]:
    """Those of all arguments that are not static."""
    return jax.tree.leaves(tuple(self.traced(args).values()))

  def with_leaves(
      self, args: Sequence[Any], leaves: Sequence[Any]
  ) -> list[Any]:
    """`args` with other leaves."""
    structure = jax.tree.structure(tuple(self.traced(args).values()))
    return self.with_traced(args, structure.unflatten(leaves))

  def batch_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments that are the batch."""
    return tuple(args[i] for i in self.batch)

  def without_batch(self, args: Sequence[Any]) -> list[Any]:
    """The arguments that are not."""
    return [x for i, x in enumerate(args) if i not in self.batch]

  def with_batch(
      self, others: Sequence[Any], batch: Sequence[Any]
  ) -> list[Any]:
    """All arguments, of those that are not the batch and the batch."""
    args = list(others)
    for i, x in sorted(zip(self.batch, batch), key=operator.itemgetter(0)):
      args.insert(i, x)
    return args
