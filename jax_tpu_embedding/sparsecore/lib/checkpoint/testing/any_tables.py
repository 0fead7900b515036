# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables on any devices and in any stacks, for tests."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _save
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stack_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import orbax_handlers
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np
from orbax.checkpoint import v1 as ocp

# Name, rows, columns: several chunks with a smaller last one, one chunk, and
# fewer rows than there are SparseCores.
TABLES = (("items", 1003, 12), ("users", 130, 9), ("hours", 5, 12))
# So that arrays of some thousand numbers have several chunks, and these pieces.
BLOCK_BYTES = 4096
PIECE_BYTES = 1536


def _quick_values(key: jax.Array, shape: Any) -> jax.Array:
  """An initializer that compiles faster than random numbers do."""
  del key
  return jnp.sin(jnp.arange(math.prod(shape))).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Topology:
  num_devices: int
  num_sc_per_device: int
  # "alone", "auto", or "rotated": all in one stack, rotated by 1; or "mixed":
  # alone, and every other table is replicated.
  stacking: str

  def __str__(self) -> str:
    return f"{self.num_devices}x{self.num_sc_per_device} {self.stacking}"


def optimizer(name: str = "adagrad") -> embedding_spec.OptimizerSpec:
  kinds = {
      "sgd": embedding_spec.SGDOptimizerSpec,
      "adagrad": embedding_spec.AdagradOptimizerSpec,
      "adam": embedding_spec.AdamOptimizerSpec,
      "rowwise_adagrad": embedding_spec.RowwiseAdagradOptimizerSpec,
  }
  return kinds[name](learning_rate=0.1)


def feature_specs(
    topology: Topology,
    tables: Any = TABLES,
    *,
    of: str = "adagrad",
    dtype: str = "float32",
) -> dict[str, embedding_spec.FeatureSpec]:
  """Prepared specs, a feature per table."""
  specs = {}
  for i, (name, rows, columns) in enumerate(tables):
    is_replicated = topology.stacking == "mixed" and i % 2 == 0
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=rows,
        embedding_dim=columns,
        optimizer=optimizer(of),
        dtype=dtype,
        initializer=_quick_values,
        placement="tensorcore" if is_replicated else "sparsecore",
    )
    specs[name] = embedding_spec.FeatureSpec(
        name=name,
        table_spec=table,
        input_shape=(48, 2),
        output_shape=(48, columns),
    )
  devices, num_sc = topology.num_devices, topology.num_sc_per_device
  if topology.stacking == "auto":
    embedding.auto_stack_tables(specs, devices, num_sc)
  elif topology.stacking == "rotated":
    table_stacking.stack_tables(
        specs,
        [name for name, *_ in tables],
        devices,
        num_sc,
        rotation=1,
        stack_name="all",
    )
  embedding.prepare_feature_specs_for_training(specs, devices, num_sc)
  return specs


def sharding(topology: Topology, ndim: int = 2) -> jax.sharding.NamedSharding:
  devices = jax.devices()[: topology.num_devices]
  return jax.sharding.NamedSharding(
      jax.sharding.Mesh(devices, ("x",)),
      jax.sharding.PartitionSpec("x", *[None] * (ndim - 1)),
  )


def new_variables(
    topology: Topology, specs: Any, seed: int = 0, ndim: int = 2
) -> dict[str, embedding.EmbeddingVariables]:
  return embedding.init_embedding_variables(
      jax.random.key(seed),
      embedding.get_table_specs(specs),
      sharding(topology, ndim),
      topology.num_sc_per_device,
  )


def values(
    tables: Any = TABLES,
    *,
    of: str = "adagrad",
    dtype: str = "float32",
    seed: int = 0,
) -> dict[str, dict[str | None, np.ndarray]]:
  """Random rows: table -> slot (None: the table) -> array."""
  rng = np.random.default_rng(seed)
  slots = optimizer(of).slot_variables_initializers()
  one_column = optimizer(of).slot_variables_of_rows()
  result = {}
  for name, rows, columns in tables:
    result[name] = {
        None: rng.normal(size=(rows, columns)).astype(jax.numpy.dtype(dtype))
    }
    for slot, is_narrow in zip(getattr(slots, "_fields", ()), one_column):
      shape = (rows, 1 if is_narrow else columns)
      result[name][slot] = rng.uniform(size=shape).astype(np.float32)
  return result


def step(variables: Any, specs: Any, topology: Topology) -> Any:
  """The variables after a training step, on ids that do not depend on them."""
  devices = topology.num_devices
  rng = np.random.default_rng(1)
  ids = {
      name: rng.integers(feature.table_spec.vocabulary_size, size=(48, 2))
      for name, feature in specs.items()
  }
  inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
      ids,
      None,
      specs,
      devices,
      devices,
      num_sc_per_device=topology.num_sc_per_device,
  )

  def on_device(inputs, variables):
    options = dict(global_device_count=devices)
    activations = embedding.tpu_sparse_dense_matmul(
        inputs, variables, specs, **options
    )
    return embedding.tpu_sparse_dense_matmul_grad(
        activations, inputs, variables, specs, **options
    )

  rows = jax.sharding.PartitionSpec("x")
  of_tables = {
      name: jax.sharding.PartitionSpec() if stack.is_replicated else rows
      for name, stack in embedding.get_stacked_table_specs(specs).items()
  }
  program = jax.shard_map(
      on_device,
      mesh=sharding(topology).mesh,
      in_specs=(rows, of_tables),
      out_specs=of_tables,
      check_vma=False,
  )
  return jax.jit(program)(inputs, variables)


def save(path: str, variables: Any, specs: Any, **options: Any) -> None:
  """checkpoint.save with small chunks, cut in small pieces."""
  options.setdefault("block_bytes", BLOCK_BYTES)
  tables = orbax_handlers.Tables(variables, specs, **options)
  with mock.patch.object(_stack_rows, "_PIECE_BYTES", PIECE_BYTES):
    ocp.save_checkpointables(path, {"tables": tables})


def save_rows(path: Any, of: Any) -> None:
  """The same of values(), without a device."""
  tables = {
      name: _tables_json.saved_table(
          rows=len(by_slot[None]),
          columns=by_slot[None].shape[1],
          dtype=by_slot[None].dtype.name,
          slots={s: v.shape[1] for s, v in by_slot.items() if s is not None},
          block_bytes=BLOCK_BYTES,
      )
      for name, by_slot in of.items()
  }
  save = _save.Save(
      saved=_tables_json.SavedTables(tables=tables),
      source_of={
          _row_blocks.Variable(table=name, slot=slot): _row_blocks.ArrayRows(
              name, rows
          )
          for name, by_slot in of.items()
          for slot, rows in by_slot.items()
      },
  )
  ocp.save_checkpointables(
      path, {"tables": orbax_handlers.Tables.from_rows(save)}
  )


def place_of(
    variables: Any, specs: Any, topology: Topology, name: str, slot: str | None
) -> tuple[np.ndarray, np.ndarray]:
  """A variable of a stack as [rows, D], and the rows of a table in it.

  Written from the layout's definition, not with the code under test.
  """
  table = specs[name].table_spec
  setting = table.setting_in_stack
  num_shards = topology.num_devices * topology.num_sc_per_device
  if table.placement == "tensorcore":
    num_shards = 1
  of_stack = variables[setting.stack_name]
  array = of_stack.table if slot is None else getattr(of_stack.slot, slot)
  array = np.asarray(array[...])
  array = array.reshape(-1, array.shape[-1])
  rows = np.arange(table.vocabulary_size)
  shard = (rows + setting.shard_rotation) % num_shards
  local = rows // num_shards + setting.row_offset_in_shard
  return array, shard * (len(array) // num_shards) + local


def fill_shapes(
    variables: Any, specs: Any, topology: Topology, of: Any
) -> dict[str, embedding.EmbeddingVariables]:
  """NumPy arrays of new variables' shapes with the given values.

  Padding is as in new variables: zero, and Adagrad's accumulators 0.1.
  """

  def initial(path, array):
    is_slot = any(getattr(key, "name", "") == "slot" for key in path)
    return np.full(array.shape, 0.1 if is_slot else 0, array.dtype)

  empty = jax.tree.map_with_path(initial, variables)
  return fill(empty, specs, topology, of)


def fill(
    variables: Any, specs: Any, topology: Topology, of: Any
) -> dict[str, embedding.EmbeddingVariables]:
  """Variables with the given values."""
  new = {}
  for name, by_slot in of.items():
    stack = specs[name].table_spec.setting_in_stack.stack_name
    for slot, rows in by_slot.items():
      array, places = place_of(variables, specs, topology, name, slot)
      array = new.setdefault((stack, slot), array.copy())
      array[places, : rows.shape[1]] = rows
  result = {}
  for stack, before in variables.items():

    def put(slot, old, stack=stack):
      array = new.get((stack, slot), None)
      if array is None:
        return old
      array = array.reshape(old.shape)
      if isinstance(old, np.ndarray):
        return array
      return jax.device_put(array, old.sharding)

    slots = zip(getattr(before.slot, "_fields", ()), before.slot)
    result[stack] = before._replace(
        table=put(None, before.table),
        slot=type(before.slot)(*(put(slot, old) for slot, old in slots)),
    )
  return result


def read(
    variables: Any, specs: Any, topology: Topology
) -> dict[str, dict[str | None, np.ndarray]]:
  """The values that fill() wrote."""
  result = {}
  for name, feature in specs.items():
    table = feature.table_spec
    slots = table.optimizer.slot_variables_initializers()
    one_column = table.optimizer.slot_variables_of_rows()
    result[name] = {}
    for slot, is_narrow in zip(
        (None, *getattr(slots, "_fields", ())), (False, *one_column)
    ):
      array, places = place_of(variables, specs, topology, name, slot)
      columns = 1 if is_narrow else table.embedding_dim
      result[name][slot] = array[places, :columns]
  return result


def random_variables(
    topology: Topology, specs: Any, of: Any, ndim: int = 2
) -> dict[str, embedding.EmbeddingVariables]:
  return fill(new_variables(topology, specs, ndim=ndim), specs, topology, of)
