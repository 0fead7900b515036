# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What training changes, and what a checkpoint has to hold."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax


@dataclasses.dataclass(kw_only=True)
class State(abc.ABC):
  """The state of a run.

  There is no random number generator in it: every random number of a step is a
  function of the seed and the step.
  """

  step: int  # Steps taken so far.

  @abc.abstractmethod
  def arrays(self) -> Any:
    """All arrays but the step, as a tree to save."""

  @abc.abstractmethod
  def assign(self, arrays: Any) -> None:
    """Takes over the values of `arrays`, NumPy arrays in the tree of arrays().

    Each goes to the devices where the one it replaces is.
    """


@dataclasses.dataclass(kw_only=True)
class TreeState(State):
  """The state of programs that keep arrays in plain trees."""

  dense: Any  # Parameters of the dense layers.
  optimizer_state: Any  # Of the dense layers.
  # {stack name: EmbeddingVariables}, of jax.Ref where a step updates them in
  # place, of arrays where it returns new ones.
  tables: Any

  def arrays(self) -> dict[str, Any]:
    return {
        "dense": self.dense,
        "optimizer_state": self.optimizer_state,
        "tables": jax.tree.map(lambda leaf: leaf[...], self.tables),
    }

  def assign(self, arrays: dict[str, Any]) -> None:
    def assigned(leaf, value):
      value = jax.device_put(value, leaf.sharding)
      if isinstance(leaf, jax.Ref):
        leaf[...] = value
        return leaf
      return value

    for name, tree in arrays.items():
      setattr(self, name, jax.tree.map(assigned, getattr(self, name), tree))
