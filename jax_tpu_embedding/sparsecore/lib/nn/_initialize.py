# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Initial values of tables and slots, made on the devices that keep them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import _initializers
from jax_tpu_embedding.sparsecore.lib.nn import _shardings
from jax_tpu_embedding.sparsecore.lib.nn import _stack_placement
from jax_tpu_embedding.sparsecore.lib.nn import _stack_values
from jax_tpu_embedding.sparsecore.utils import utils
import numpy as np

StackPlacement = _stack_placement.StackPlacement


class EmbeddingVariablesInitializer(NamedTuple):
  """The initializers of a table and its slots."""

  table: Any
  slot: tuple[Any, ...]


class EmbeddingVariables(NamedTuple):
  """The table of a stack, [rows, D], and the optimizer's slots.

  Slots are f32[rows, D], or f32[rows, 1] where a row has one number.
  """

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
  (see cc/layout/mod_shard.h).

  An initializer is called once for its table, as `initializer(key, shape)` with
  the shape [vocabulary_size, embedding_dim] that the user declared. Its key is
  derived from `rng`, the name of the table and the variable (the table itself
  or one of its slots). So tables are independent of each other, and a table has
  the same values however it is stacked and sharded, up to how XLA rounds in
  different programs. The call is traced and sharded by rows: no device holds a
  whole table.

  An initializer without arguments returns the whole table, at least
  [vocabulary_size, embedding_dim]; the rest is cropped. It is called on the
  host, and each device gets its rows.

  Padding is zero in a table. In a slot it has initial values like any row, so
  that an optimizer can divide by it.

  Args:
    rng: a key.
    table_specs: prepared table specs, any tree.
    global_sharding: rows over one mesh axis or several: P(axis, None). With
      P(axis, None, None), the results have a leading dimension of devices.
    num_sparsecore_per_device: default: as JAX's first device.
    bypass_mesh_check: accept a mesh whose devices are not jax.devices().

  Returns:
    Stack name -> EmbeddingVariables with that sharding: the table, of the type
    that its spec says, is [stack_vocab_size, D]; slots are in the optimizer's
    NamedTuple.

  Raises:
    ValueError: if a table was prepared for another number of shards, the
      sharding is not by rows, or an initializer returns another shape.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(
      num_sparsecore_per_device
  )
  num_devices = _num_devices(global_sharding, bypass_mesh_check)
  # A key that was made in the context of a mesh is on it.
  if not isinstance(rng, jax.core.Tracer) and isinstance(
      rng.sharding, jax.sharding.NamedSharding
  ):
    # Whole, whatever the sharding of the numbers in it says.
    whole = rng.sharding.update(spec=jax.sharding.PartitionSpec())
    rng = jax.device_put(rng, _shardings.auto(whole))
  stacks = {}
  for table in jax.tree.leaves(table_specs):
    stacks.setdefault(table.setting_in_stack.stack_name, []).append(table)

  variables = {}
  for stack_name, members in stacks.items():
    members.sort(key=lambda table: table.setting_in_stack.row_offset_in_shard)
    placement = _stack_placement.from_specs(
        members, num_devices * num_sc_per_device
    )
    slots = [table.optimizer.slot_variables_initializers() for table in members]
    slot_initializers = zip(*(jax.tree.leaves(slot) for slot in slots))
    initializers = [[t.initializer for t in members], *slot_initializers]
    is_of_rows = (False, *members[0].optimizer.slot_variables_of_rows())
    with _shardings.auto_mesh(global_sharding):
      table, *slot = (
          _init_variable(
              rng,
              placement.one_column() if is_of_rows[i] else placement,
              i,
              initializers[i],
              global_sharding,
              members[0].dtype if i == 0 else np.dtype(np.float32),
          )
          for i in range(len(initializers))
      )
    variables[stack_name] = EmbeddingVariables(
        table=table,
        slot=jax.tree.unflatten(jax.tree.structure(slots[0]), slot),
    )
  return variables


def _num_devices(
    sharding: jax.sharding.NamedSharding, bypass_mesh_check: bool
) -> int:
  """Over how many devices `sharding` splits rows."""
  spec = sharding.spec
  if len(spec) not in (2, 3) or spec[0] is None or any(spec[1:]):
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
  return _shardings.num_parts(sharding.mesh, spec[0])


def _init_variable(
    rng: jax.Array,
    placement: StackPlacement,
    variable: int,
    initializers: Sequence[Callable[..., Any]],
    global_sharding: jax.sharding.NamedSharding,
    dtype: np.dtype,
) -> jax.Array:
  """One variable of a stack, [stack_vocab_size, D].

  Args:
    rng: the user's key.
    placement: the stack.
    variable: 0 for the table, then the slots.
    initializers: that of every table of the stack.
    global_sharding: how the result is laid out.
    dtype: of the result.
  """
  by_rows = _shardings.auto(
      global_sharding.update(
          spec=jax.sharding.PartitionSpec(global_sharding.spec[0], None)
      )
  )
  # Whole tables are made outside of the program, where they are arguments
  # rather than constants.
  whole = {}
  keys = {}
  for table, initializer in zip(placement.tables, initializers):
    if _initializers.returns_whole_table(initializer, table.name):
      values = _initializers.call_whole(initializer, table)
      whole[table.name] = _place(placement.only(table), values, by_rows)
    else:
      keys[table.name] = _initializers.key_of(rng, table.name, variable)

  program = init_program(
      placement, initializers, by_rows, pads_with_zero=variable == 0
  )
  shape = (placement.num_rows, placement.embedding_dim)
  # SparseCores have a layout for tables, which are two-dimensional.
  to_layout = utils.embedding_table_format_with_sharding
  if len(global_sharding.spec) == 3:
    num_devices = _shardings.num_parts(
        global_sharding.mesh, global_sharding.spec[0]
    )
    shape = (num_devices, shape[0] // num_devices, shape[1])
    to_layout = lambda sharding: sharding
  result = jax.jit(
      lambda keys, whole: program(keys, whole).astype(dtype).reshape(shape),
      out_shardings=to_layout(_shardings.auto(global_sharding)),
  )(keys, whole)
  if _shardings.auto(global_sharding) == global_sharding:
    return result
  return jax.device_put(result, to_layout(global_sharding))


def init_program(
    placement: StackPlacement,
    initializers: Sequence[Callable[..., Any]],
    by_rows: jax.sharding.NamedSharding,
    *,
    pads_with_zero: bool,
) -> Callable[[dict[str, jax.Array], dict[str, jax.Array]], jax.Array]:
  """The function (keys, whole tables) -> f32[stack_vocab_size, D].

  Both arguments are by table name, each table is in one of them.

  Args:
    placement: the stack.
    initializers: that of every table of the stack.
    by_rows: the sharding of tables.
    pads_with_zero: whether padding is zero, rather than initialized.
  """

  def padded_table(initializer, key, table):
    rows, columns = table.vocabulary_size, table.embedding_dim
    shape = (table.padded_vocabulary_size, placement.embedding_dim)
    values = _initializers.call(initializer, key, (rows, columns), table.name)
    padded = jnp.pad(values, ((0, shape[0] - rows), (0, shape[1] - columns)))
    if not pads_with_zero:
      row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
      column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
      padding = _initializers.call(initializer, key, shape, table.name)
      padded = jnp.where((row < rows) & (column < columns), padded, padding)
    return padded

  def program(keys, whole):
    blocks = []
    for table, initializer in zip(placement.tables, initializers):
      if table.name in whole:
        block = whole[table.name].reshape(
            placement.num_shards, -1, placement.embedding_dim
        )
      else:
        block = _stack_values.to_block(
            placement,
            table,
            padded_table(initializer, keys[table.name], table),
            by_rows,
        )
      blocks.append(block)
    stack = _stack_values.join_blocks(placement, blocks)
    return stack.reshape(-1, placement.embedding_dim)

  return program


def _place(
    placement: StackPlacement, values: np.ndarray, by_rows: Any
) -> jax.Array:
  """The stack of one table, f32[rows, D], each device's rows made for it."""

  def rows_on_device(index):
    first, end, _ = index[0].indices(placement.num_rows)
    first, end = (row // placement.rows_in_shard for row in (first, end))
    out = np.empty(
        (end - first, placement.rows_in_shard, placement.embedding_dim),
        np.float32,
    )
    for shard in range(first, end):
      _stack_values.fill_shard(
          placement, shard, [values], 0.0, out[shard - first]
      )
    return out.reshape(-1, placement.embedding_dim)

  return jax.make_array_from_callback(
      (placement.num_rows, placement.embedding_dim), by_rows, rows_on_device
  )
