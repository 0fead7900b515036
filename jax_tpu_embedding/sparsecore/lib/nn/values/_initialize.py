# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Initial values of tables and slots, made on the devices that keep them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.values import _compile_once
from jax_tpu_embedding.sparsecore.lib.nn.values import _fills
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _memory_check
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
from jax_tpu_embedding.sparsecore.lib.nn.values import _variables
import numpy as np


class EmbeddingVariablesInitializer(NamedTuple):
  """The initializers of a table and its slots.

  Attributes:
    table: of the table.
    slot: of each slot.
  """

  table: Any
  slot: tuple[Any, ...]


def init_embedding_variables(
    rng: jax.Array,
    table_specs: _tables.Nested[_tables.TableSpec],
    global_sharding: jax.sharding.NamedSharding,
    num_sparsecore_per_device: int | None = None,
    bypass_mesh_check: bool = False,
    *,
    commit: bool = True,
) -> dict[str, _variables.EmbeddingVariables]:
  """Initializes the table and slots of every stack.

  A stack's rows are stored shard after shard, within a shard table after table
  (see cc/layout/mod_shard.h).

  An initializer is called once for its table, as `initializer(key, shape)` with
  the shape [vocabulary_size, embedding_dim] that the user declared. Its key is
  derived from `rng`, the name of the table and the variable (the table itself
  or one of its slots). So tables are independent of each other, and a table has
  the same values however it is stacked and sharded, up to how XLA rounds in
  different programs. The call is traced and sharded by rows: no device holds a
  whole table. What is the same program for many tables is compiled once.

  Initializers of random numbers whose elements do not depend on each other, as
  those of jax.nn.initializers but for the orthogonal ones, are run in blocks of
  rows, with the bits of a plain call: for that, at most 64 MiB of a device are
  used beside the tables. (Of JAX 0.12 on CPUs, the last bit of some normal
  numbers depends on whether an array has 3 to 5 columns, so that in tables with
  as many it is not always that of the call.) On CPUs, a variable of at most 64
  MiB is put together by NumPy, and is twice in memory for a moment.

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
    bypass_mesh_check: accept a mesh whose devices are in another order than
      those of jax.devices().
    commit: False, which is for a mesh of the default device alone, makes arrays
      that JAX is free to move, as jnp.zeros does, and without the sharding. On
      TPU they are committed all the same, for the sake of their layout.

  Returns:
    Stack name -> _variables.EmbeddingVariables with that sharding, those of placement
    "tensorcore" whole on each device: the table, of the type that its spec
    says, is [stack_vocab_size, D]; slots are in the optimizer's NamedTuple.

  Raises:
    ValueError: if a table was prepared for another number of shards, the
      sharding is not by rows, or an initializer returns another shape.
    NotImplementedError: for tables with placement "tensorcore", with a leading
      dimension of devices.
    MemoryError: if it cannot fit; nothing was allocated.
  """
  if jax.config.jax_disable_jit:
    # Programs are compiled before they run, of which there is nothing then.
    with jax.disable_jit(False):
      return init_embedding_variables(
          rng,
          table_specs,
          global_sharding,
          num_sparsecore_per_device,
          bypass_mesh_check,
          commit=commit,
      )
  num_sc_per_device = hardware.resolve_num_sc_per_device(
      num_sparsecore_per_device
  )
  num_devices = _num_devices(global_sharding, bypass_mesh_check)
  _check_key(rng)
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

  num_shards = num_devices * num_sc_per_device
  with _shardings.auto_mesh(global_sharding):
    # Inside of another program all is traced, whatever rng is.
    is_traced = isinstance(jax.random.fold_in(rng, 0), jax.core.Tracer)
    check_memory = functools.partial(
        _memory_check.check,
        stacks,
        num_shards,
        num_devices,
        tuple(global_sharding.mesh.devices.flat),
    )
    if not is_traced:
      check_memory()  # what cannot stay needs no program
    plans = tuple(
        _plan_stack(
            rng,
            tables,
            num_shards,
            _shardings.auto(sharding_of(tables, global_sharding)),
            commit,
            is_traced,
        )
        for tables in stacks.values()
    )
    is_fills = lambda node: isinstance(node, list)
    of_variables = jax.tree.leaves(plans, is_leaf=is_fills)
    fills = sum(of_variables, [])
    if is_traced:
      programs = sum([fill.programs for fill in fills], [])
    else:
      programs = _compile_once.compile_all(
          sum([fill.lower() for fill in fills], []), (global_sharding, commit)
      )
      check_memory(_needs(of_variables, programs))
    programs = iter(programs)
    variables = [
        jax.tree.map(
            lambda fills, sharding=sharding_of(tables, global_sharding): _run(
                fills, programs, sharding, commit
            ),
            plan,
            is_leaf=is_fills,
        )
        for tables, plan in zip(stacks.values(), plans)
    ]
  return dict(zip(stacks, variables))


def _check_key(rng: Any) -> None:
  """Raises TypeError unless `rng` is one key of jax.random."""
  try:
    jax.eval_shape(jax.random.fold_in, rng, 0)
  except (TypeError, ValueError) as error:
    raise TypeError(
        f"rng must be one key, such as jax.random.key(0), got {rng!r}."
    ) from error


def sharding_of(
    tables: Sequence[_tables.TableSpec],
    global_sharding: jax.sharding.NamedSharding,
) -> jax.sharding.NamedSharding:
  """The sharding of a stack: by rows, or the whole of it on each device.

  Raises:
    NotImplementedError: if a table is replicated and there is a leading
      dimension of devices.
  """
  if not tables[0].is_replicated:
    return global_sharding
  if len(global_sharding.spec) == 3:
    raise NotImplementedError(
        f"Table {tables[0].name!r} has placement 'tensorcore', which has no"
        " leading dimension of devices. Pass a sharding P(axis, None), or give"
        " the table placement 'sparsecore'."
    )
  return global_sharding.update(spec=jax.sharding.PartitionSpec(None, None))


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
  of_mesh = [] if bypass_mesh_check else list(sharding.mesh.devices.flat)
  if of_mesh != [device for device in jax.devices() if device in of_mesh]:
    raise ValueError(
        "global_sharding needs to be created with default device order from"
        f" jax.devices(), got {sharding.mesh.devices.tolist()}. Pass"
        " bypass_mesh_check=True if another order is meant."
    )
  return _shardings.num_parts(sharding.mesh, spec[0])


def _plan_stack(
    rng: jax.Array,
    tables: Sequence[_tables.TableSpec],
    num_shards: int,
    sharding: jax.sharding.NamedSharding,
    commit: bool,
    is_traced: bool,
) -> _variables.EmbeddingVariables:
  """What makes each variable of a stack: lists of fills.

  Args:
    rng: the user's key.
    tables: the tables of the stack, in any order.
    num_shards: the number of SparseCores.
    sharding: how its variables are laid out, over axes of type Auto.
    commit: whether they are committed to it.
    is_traced: whether all runs inside of another program.
  """
  tables = sorted(
      tables, key=lambda table: table.setting_in_stack.row_offset_in_shard
  )
  placement = _placement.from_specs(tables, num_shards)
  optimizers = [table.optimizer for table in tables]
  slots = [spec.slot_variables_initializers() for spec in optimizers]
  slot_initializers = zip(*(jax.tree.leaves(slot) for slot in slots))
  initializers = [[table.initializer for table in tables], *slot_initializers]
  is_of_rows = (False, *optimizers[0].slot_variables_of_rows())
  table, *slot = (
      _fills.plan_fills(
          rng,
          placement.one_column() if is_of_rows[i] else placement,
          i,
          initializers[i],
          sharding,
          tables[0].dtype if i == 0 else np.dtype(np.float32),
          commit,
          is_traced,
      )
      for i in range(len(initializers))
  )
  structure = jax.tree.structure(slots[0])
  return _variables.EmbeddingVariables(
      table, jax.tree.unflatten(structure, slot)
  )


def _needs(
    of_variables: Sequence[Sequence[Any]],
    programs: Sequence[jax.stages.Compiled],
) -> list[int]:
  """Bytes of a device while each variable is made, itself included.

  Args:
    of_variables: the fills of each.
    programs: theirs, in order.
  """
  needs = {
      id(program): _memory_check.bytes_of_program(program)
      for program in set(programs)
  }
  of_fills = iter([needs[id(program)] for program in programs])
  return [
      max(
          fill.bytes_at_most([next(of_fills) for _ in fill.programs])
          for fill in fills
      )
      for fills in of_variables
  ]


def _run(
    fills: Sequence[Any],
    programs: Iterator[Callable[..., jax.Array]],
    global_sharding: jax.sharding.NamedSharding,
    commit: bool,
) -> jax.Array:
  """One variable of a stack.

  Args:
    fills: what makes it.
    programs: theirs, and those of later fills.
    global_sharding: how the variable is laid out.
    commit: whether it is committed to that.
  """
  stack = None
  for fill in fills:
    of_fill = [next(programs) for _ in fill.programs]
    # Before the next one begins, which needs memory, too.
    stack = jax.block_until_ready(fill.run(of_fill, stack))
  if commit and _shardings.auto(global_sharding) != global_sharding:
    layout = _fills.layout_of(global_sharding, stack.dtype)
    stack = jax.device_put(stack, layout)
  _use_huge_pages(stack)
  return stack


def _use_huge_pages(stack: jax.Array) -> None:
  """Moves what XLA or NumPy allocated, on CPU devices, to huge pages.

  The first steps would do so otherwise, and take longer.
  """
  if isinstance(stack, jax.core.Tracer):
    return
  if not _host_fill.is_memory_of(list(stack.sharding.device_set)):
    return
  for part in stack.addressable_shards:
    ffi_cpu.use_huge_pages(part.data.unsafe_buffer_pointer(), part.data.nbytes)
