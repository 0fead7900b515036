# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What tables carry with them beside values: updates so far, and their layout.

Both are needed to use tables, cannot be seen in them, and belong into every
checkpoint of them:

* the number of updates, for optimizers and schedules that depend on it, and so
  that tables of 16 bits are rounded by other random numbers in each update.
  In mutable arrays only those of such stacks count;
* where each table is. On another number of SparseCores, or stacked in another
  way, arrays of the same shapes have their rows in another order.

The state of a stack is a vector: the number of updates, then one number for the
place of each of its tables. It is one array of whole numbers, so that whatever
saves and restores arrays keeps it. Where tables are parameters, the same
numbers are the end of their seal, _seal.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
import numpy as np


class TableVariables(NamedTuple):
  """The table and slots of a stack, as embedding.EmbeddingVariables, and state.

  Each is an array, or a jax.Ref of one.
  """

  table: Any
  slot: tuple[Any, ...]
  state: Any


def initial(
    config: _lookup_config.LookupConfig,
) -> dict[str, np.ndarray]:
  """The state of tables without an update, i32[1 + tables], by stack name."""
  return {
      name: np.array([0, *of_tables.values()], np.int32)
      for name, of_tables in places_by_stack(config).items()
  }


def places_by_stack(
    config: _lookup_config.LookupConfig,
) -> dict[str, dict[str, int]]:
  """Stack name -> table name -> a number below 2^24 for where its rows are."""
  return _places.places_by_stack(config.feature_specs, config.topology.num_scs)


def is_laid_out_for(
    config: _lookup_config.LookupConfig,
    places: Mapping[str, jax.typing.ArrayLike],
) -> jax.typing.ArrayLike:
  """Whether all tables are where the config expects them, bool[].

  Args:
    config: of a lookup, which may have some of the tables only.
    places: stack name -> the numbers that came with its tables. Tables of
      stacks without an entry, or with an empty one, are not checked, nor are
      those of one in which there is 0.

  Raises:
    ValueError: if they are not, and the numbers can be looked at.
  """
  result = True
  for name, of_tables in places_by_stack(config).items():
    numbers, expected = places.get(name, ()), np.array(list(of_tables.values()))
    if not np.size(numbers):
      continue
    xp = jnp if isinstance(numbers, jax.core.Tracer) else np
    # Exact in the float32 of a seal, too, as they are below 2^24.
    expected = expected.astype(numbers.dtype)
    fits = xp.isin(expected, numbers).all() | xp.any(numbers == 0)
    if xp is np and not fits:
      raise ValueError(wrong_layout(config))
    result &= fits
  return result


def wrong_layout(config: _lookup_config.LookupConfig) -> str:
  """What to say if tables are not where the config expects them."""
  stacks = sorted(embedding.get_stacked_table_specs(config.feature_specs))
  return (
      "The rows of the embedding tables are in another order than this layer"
      f" expects, for {config.topology.num_scs} SparseCores in all and the"
      f" stacks {stacks}: they were made for other devices or stacks, as a"
      " checkpoint may have been. Restore them with the specs that they were"
      " made for, and move them with unshard_and_unstack_tables and"
      " stack_and_shard_tables. If they are right, such as tables that you"
      f" moved, take `state` or the seal from new variables."
  )


def depends_on_step(stack: embedding_spec.StackedTableSpec) -> bool:
  """Whether an update is another one at another step."""
  # Values of 16 bits are rounded at random.
  return stack.dtype != jnp.float32 or stack.optimizer.depends_on_step


def check_step(
    config: _lookup_config.LookupConfig, step: Any | None, reason: str
) -> None:
  """Checks that there is a step, for who has no count of updates.

  Args:
    config: of the update.
    step: of the update, or None.
    reason: why there is no count.

  Raises:
    ValueError: if there is none, and a stack that is not frozen needs it.
  """
  stacks = embedding.get_stacked_table_specs(config.feature_specs)
  for name in stacks.keys() - config.frozen_stacks:
    if step is None and depends_on_step(stacks[name]):
      raise ValueError(_needs_step(stacks[name]) + reason)


def no_step(stack: embedding_spec.StackedTableSpec) -> str:
  """What to say if tables come without a count, and there is no step."""
  return (
      f"{_needs_step(stack)} Layers count updates"
      " by themselves if tables come with the `state` that"
      f" create_embedding_variables makes, or the parameter {_seal.NAME!r} that"
      " their initialization makes; these do not."
  )


def _needs_step(stack: embedding_spec.StackedTableSpec) -> str:
  if stack.dtype != jnp.float32:
    reason = f"its tables are {stack.dtype}, which are rounded at random"
  else:
    reason = f"{type(stack.optimizer).__name__} depends on it"
  return (
      f"Stack {stack.stack_name!r}: an update needs the number of the training"
      f" step, since {reason}. Pass step=, counted from 0."
  )
