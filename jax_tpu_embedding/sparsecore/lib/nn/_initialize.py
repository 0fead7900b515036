# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Initial values of tables and slots, made shard by shard."""

from __future__ import annotations

from collections.abc import Callable
import inspect
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import _plan
from jax_tpu_embedding.sparsecore.lib.nn import _reshard
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.utils import utils


class EmbeddingVariablesInitializer(NamedTuple):
  """The initializers of a table and its slots."""

  table: Any
  slot: tuple[Any, ...]


class EmbeddingVariables(NamedTuple):
  """The table of a stack and the optimizer's slots, all f32[rows, D]."""

  table: Any
  slot: tuple[Any, ...]


def init_embedding_variables(
    rng: jax.Array,
    table_specs: Any,
    global_sharding: jax.sharding.NamedSharding,
    num_sparsecore_per_device: int | None = None,
    bypass_mesh_check: bool = False,
) -> dict[str, EmbeddingVariables]:
  """Initializes the table and slots of every stack.

  A stack's rows are stored shard after shard, within a shard table after table
  (see cc/layout/mod_shard.h). An initializer with arguments is called as
  `initializer(key, shape)` for each shard of each table, so its `shape` is
  that of the padded shard. One without arguments is called once and returns
  the whole table, at least [vocabulary_size, embedding_dim]; the rest of the
  padded table is zero.

  Randomness: with M shards and k stacks, `keys = jax.random.split(rng, M * k)`;
  shard j of stack i uses `keys[i * M + j]` for the table and every slot.

  Args:
    rng: a key.
    table_specs: prepared table specs, any tree.
    global_sharding: rows over one mesh axis or several: P(axis, None).
    num_sparsecore_per_device: default: as JAX's first device.
    bypass_mesh_check: accept a mesh whose devices are not jax.devices().

  Returns:
    Stack name -> EmbeddingVariables of f32[stack_vocab_size, D] arrays with
    that sharding; slots in the optimizer's NamedTuple.

  Raises:
    ValueError: if a table was prepared for another number of shards, the
      sharding is not by rows, or an initializer returns a table that is too
      small.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(
      num_sparsecore_per_device
  )
  num_shards = _num_devices(global_sharding, bypass_mesh_check) * (
      num_sc_per_device
  )
  _plan.check_planned_for(table_specs, num_shards)
  stacks = {}
  for table in jax.tree.leaves(table_specs):
    stacks.setdefault(table.setting_in_stack.stack_name, []).append(table)
  keys = jax.random.split(rng, num_shards * len(stacks))
  sharding = utils.embedding_table_format_with_sharding(global_sharding)

  variables = {}
  for i, (stack_name, members) in enumerate(stacks.items()):
    members.sort(key=lambda table: table.setting_in_stack.row_offset_in_shard)
    stack_keys = keys[i * num_shards : (i + 1) * num_shards]
    slots = [table.optimizer.slot_variables_initializers() for table in members]
    variables[stack_name] = EmbeddingVariables(
        table=_init_stack(
            members, [t.initializer for t in members], stack_keys, sharding
        ),
        slot=jax.tree.map(
            lambda *initializers, members=members, stack_keys=stack_keys: (
                _init_stack(members, initializers, stack_keys, sharding)
            ),
            *slots,
        ),
    )
  return variables


def _num_devices(
    sharding: jax.sharding.NamedSharding, bypass_mesh_check: bool
) -> int:
  """Over how many devices `sharding` splits rows."""
  spec = sharding.spec
  if len(spec) != 2 or spec[0] is None or spec[1] is not None:
    raise ValueError(
        "PartitionSpec of the global sharding either needs to be in the format"
        f" P(axis, None) or P((axis, axis, ...), None), got {spec}."
    )
  if not bypass_mesh_check and list(sharding.mesh.devices.flat) != (
      jax.devices()
  ):
    raise ValueError(
        "global_sharding needs to be created with default device order from"
        f" jax.devices(), got {sharding.mesh.devices.tolist()}. Pass"
        " bypass_mesh_check=True if another order is meant."
    )
  axes = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
  return math.prod(sharding.mesh.shape[axis] for axis in axes)


def _init_stack(
    members: list[embedding_spec.TableSpec],
    initializers: list[Callable[..., Any]],
    keys: jax.Array,
    sharding: Any,
) -> jax.Array:
  """One variable of a stack: f32[stack_vocab_size, D].

  Args:
    members: the stack's tables in the order of their rows.
    initializers: the initializer of this variable, for every member.
    keys: one key per shard.
    sharding: how the result is laid out.
  """
  num_shards = keys.shape[0]
  # Whole tables are made outside of jit, where they are arguments rather than
  # constants of the program.
  whole = {
      i: _whole_table(initializer(), table)
      for i, (initializer, table) in enumerate(zip(initializers, members))
      if _takes_no_arguments(initializer)
  }

  def make(keys, whole):
    parts = []
    for i, (initializer, table) in enumerate(zip(initializers, members)):
      if i in whole:
        part = _reshard.shard_table(table, whole[i], num_shards, pad_value=0.0)
      else:
        setting = table.setting_in_stack
        shape = (
            setting.padded_vocab_size // num_shards,
            setting.padded_embedding_dim,
        )
        part = jax.vmap(lambda key, init=initializer, s=shape: init(key, s))(
            keys
        )
      parts.append(part.astype(jnp.float32))
    stacked = jnp.concatenate(parts, axis=1)
    return stacked.reshape(-1, stacked.shape[-1])

  return jax.jit(make, out_shardings=sharding)(keys, whole)


def _takes_no_arguments(initializer: Callable[..., Any]) -> bool:
  """Whether the initializer returns a whole table when called without any."""
  signature = inspect.signature(initializer)
  try:
    signature.bind(None, None)
  except TypeError:
    return True
  return False


def _whole_table(values: Any, table: embedding_spec.TableSpec) -> jax.Array:
  """`values` cropped to [vocabulary_size, embedding_dim]."""
  values = jnp.asarray(values)
  rows, width = table.vocabulary_size, table.embedding_dim
  if values.ndim != 2 or values.shape[0] < rows or values.shape[1] < width:
    raise ValueError(
        f"Table {table.name!r}: the initializer without arguments must return"
        f" at least {(rows, width)}, got {values.shape}."
    )
  return values[:rows, :width]
