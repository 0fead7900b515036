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
  feature_specs: Any = None  # What the tables were made for.

  @abc.abstractmethod
  def arrays(self) -> dict[str, Any]:
    """All arrays but the tables, by name.

    Names and shapes are the same on any devices, and in all programs for one
    model, so that one continues what another one saved.
    """

  @abc.abstractmethod
  def assign(self, arrays: dict[str, Any]) -> None:
    """Takes over the values of `arrays`, NumPy arrays as of arrays().

    Each goes to the devices where the one it replaces is.
    """

  @abc.abstractmethod
  def table_variables(self) -> Any:
    """{stack name: table, slot, ..}, as lib/checkpoint saves them."""

  @abc.abstractmethod
  def assign_tables(self, variables: Any) -> None:
    """Takes over what was restored into table_variables()."""


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
        name: array
        for part in _PARTS
        for name, array in _by_name(part, getattr(self, part)).items()
        if not _is_anchor(name)
    }

  def assign(self, arrays: dict[str, Any]) -> None:
    for part in _PARTS:
      tree = getattr(self, part)
      leaves = [
          leaf if _is_anchor(name) else put_like(leaf, arrays[name])
          for name, leaf in _by_name(part, tree).items()
      ]
      setattr(self, part, jax.tree.unflatten(jax.tree.structure(tree), leaves))

  def table_variables(self) -> Any:
    return self.tables

  def assign_tables(self, variables: Any) -> None:
    self.tables = variables


_PARTS = ("dense", "optimizer_state")


def _by_name(part: str, tree: Any) -> dict[str, Any]:
  return {
      f"{part}.{jax.tree_util.keystr(path, simple=True, separator='.')}": leaf
      for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _is_anchor(name: str) -> bool:
  """Whether this is there for JAX alone, and always zero; see the layers."""
  return "update_anchor" in name.split(".")


def put_like(array: jax.Array, value: Any) -> jax.Array:
  """`value` on the devices of `array`."""
  return jax.device_put(value, array.sharding)
