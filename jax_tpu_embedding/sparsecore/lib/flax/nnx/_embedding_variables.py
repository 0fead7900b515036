# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables as NNX variables: their type, its filters and their shardings."""

from __future__ import annotations

from typing import Any

from flax import nnx
import jax


class EmbeddingVariablesParam(nnx.Param):
  """What belongs to tables: above all, stack name -> EmbeddingVariables.

  Its "gradient" is the new value: the backward pass of a lookup runs the
  optimizers of the tables. So no optimizer of optax may see it; give the model
  to PartitionedOptimizer.

  The metadata `embedding_sharding` is the NamedSharding of every array in it;
  or, where some stacks are replicated, pairs of stack name and NamedSharding.
  """


def is_embedding_variables(_: Any, value: Any) -> bool:
  """The NNX filter for EmbeddingVariablesParams."""
  return isinstance(value, EmbeddingVariablesParam)


def is_non_embedding_variables(_: Any, value: Any) -> bool:
  """The NNX filter for all that does not belong to tables.

  Tables that are jax.Refs match neither filter: they are not to be
  differentiated by, nor is there a new value to be put in their place.
  """
  return not isinstance(value, (EmbeddingVariablesParam, jax.Ref))


def get_named_sharding(node: Any, mesh: jax.sharding.Mesh) -> nnx.StateSharding:
  """The shardings of a model or optimizer, for nnx.jit.

      shardings = get_named_sharding(model, mesh)
      step = nnx.jit(step, in_shardings=(shardings, ...))

  Args:
    node: a model, an optimizer or their state.
    mesh: where variables are that are not tables: as nnx.get_named_sharding has
      them, which goes by their metadata.

  Returns:
    The state of `node` with a NamedSharding for every array: for those of
    EmbeddingVariablesParams, the one in their metadata, and for tables that are
    jax.Refs, their own. nnx.jit takes one sharding for a variable: where some
    of its tables are split and others replicated it is None, with which each
    array keeps the sharding that it has.

  Raises:
    ValueError: if an EmbeddingVariablesParam has no embedding_sharding.
  """

  def shardings(path, leaf):
    if isinstance(leaf, EmbeddingVariablesParam):
      if not leaf.has_metadata("embedding_sharding"):
        raise ValueError(
            f"{jax.tree_util.keystr(path)}: EmbeddingVariablesParam has no"
            " metadata 'embedding_sharding', only"
            f" {sorted(leaf.get_metadata())}. Make it with"
            " EmbeddingVariablesParam(value, embedding_sharding=...)."
        )
      sharding = leaf.get_metadata("embedding_sharding")
      if isinstance(sharding, tuple):
        by_stack = {of_stack for _, of_stack in sharding}
        sharding = by_stack.pop() if len(by_stack) == 1 else None
      return leaf.replace(sharding)
    if isinstance(leaf, jax.Ref):
      return leaf.sharding
    return nnx.get_named_sharding(leaf, mesh)

  return nnx.StateSharding(
      jax.tree.map_with_path(
          shardings,
          nnx.state(node),
          is_leaf=lambda x: isinstance(x, nnx.Variable),
      )
  )
