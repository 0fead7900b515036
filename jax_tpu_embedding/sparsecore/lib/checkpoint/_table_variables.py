# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The variables of a model, table by table.

Checks that the variables are those of the specs before any of them is touched,
and finds the rows of a table or slot in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stack_rows
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
import numpy as np

Variable = _row_blocks.Variable


def slot_names(table: embedding_spec.TableSpec) -> tuple[str, ...]:
  """The names of a table's slots; their numbers if they have no names."""
  slots = table.optimizer.slot_variables_initializers()
  return tuple(getattr(slots, "_fields", None) or map(str, range(len(slots))))


def _slots_of_rows(table: embedding_spec.TableSpec) -> dict[str, bool]:
  """Slot name -> whether a row has one number of it."""
  return dict(zip(slot_names(table), table.optimizer.slot_variables_of_rows()))


def slot_columns(table: embedding_spec.TableSpec) -> dict[str, int]:
  """Slot name -> columns, in the optimizer's order."""
  return {
      name: 1 if is_of_row else table.embedding_dim
      for name, is_of_row in _slots_of_rows(table).items()
  }


def by_stack(
    tables: Mapping[str, embedding_spec.TableSpec],
) -> dict[str, list[embedding_spec.TableSpec]]:
  """Stack name -> its tables."""
  result = {}
  for table in tables.values():
    result.setdefault(table.setting_in_stack.stack_name, []).append(table)
  return result


def planned(feature_specs: Any, num_shards: int) -> Any:
  """`feature_specs`, or copies if they have sizes that only raw ids tell.

  Layers plan such specs for each batch, and the planner refuses them.
  """
  complete = _partial_shapes.complete(feature_specs, None, num_shards)
  if complete is not feature_specs:
    embedding.prepare_feature_specs_for_training(complete, num_shards, 1)
  return complete


class TableVariables:
  """{stack name: EmbeddingVariables} and the specs that they belong to.

  Args:
    variables: with or without slots. Arrays or jax.Refs of [rows, D] or
      [devices, rows / devices, D], by rows on several devices or on one. What
      layers keep beside them, `state`, is used if it is there.
    feature_specs: prepared for these variables, or those of a layer, which has
      to take sizes from raw ids.
    num_sc_per_device: default: what the specs were prepared for; if a layer
      could not prepare them, as JAX's first device.
    with_slots: whether slots are needed.

  Raises:
    TypeError: if the variables are no arrays on devices.
    ValueError: if variables and specs do not belong together, or an array was
      donated.
  """

  def __init__(
      self,
      variables: Mapping[str, Any],
      feature_specs: Any,
      num_sc_per_device: int | None = None,
      *,
      with_slots: bool = True,
  ):
    stacks = by_stack(embedding.get_table_specs(feature_specs))
    _check_same_names(stacks, variables)
    for name in stacks:
      if not hasattr(variables[name], "table"):
        raise TypeError(
            f"Stack {name!r}: is a {type(variables[name]).__name__}, not"
            " EmbeddingVariables. Pass variables as init_embedding_variables"
            " makes them."
        )
      _check_is_there(f"Stack {name!r}, table", variables[name].table)
    feature_specs = planned(
        feature_specs,
        max(
            (
                _num_shards(tables, variables[name].table, num_sc_per_device)
                for name, tables in stacks.items()
            ),
            default=1,
        ),
    )
    self.tables = embedding.get_table_specs(feature_specs)
    self._variables = variables
    self._buffers = _row_blocks.Buffers()
    self._stacks = {}
    self._stack_of_table = {}
    self.num_shards = 1
    for name, tables in by_stack(self.tables).items():
      value = variables[name]
      num_shards = _num_shards(tables, value.table, num_sc_per_device)
      if not tables[0].is_replicated:
        self.num_shards = num_shards
      placement = _placement.from_specs(tables, num_shards)
      slots = self._slots(name, value, tables[0]) if with_slots else {}
      for slot, array in {None: value.table, **slots}.items():
        is_of_row = slot is not None and _slots_of_rows(tables[0])[slot]
        of_slot = placement.one_column() if is_of_row else placement
        dtype = tables[0].dtype if slot is None else np.dtype(np.float32)
        _check_array(
            f"Stack {name!r}, {slot or 'table'}", array, of_slot, dtype
        )
        self._stacks[name, slot] = _stack_rows.Stack(
            value=array, placement=of_slot
        )
      for table in placement.tables:
        self._stack_of_table[table.name] = name
    self._check_places(feature_specs)

  def _slots(
      self, stack: str, value: Any, table: embedding_spec.TableSpec
  ) -> dict[str, Any]:
    arrays = tuple(jax.tree.leaves(value.slot))
    names = slot_names(table)
    if len(arrays) != len(names):
      raise ValueError(
          f"Stack {stack!r} has {len(arrays)} slots, and its optimizer"
          f" {type(table.optimizer).__name__} has {list(names)}. Pass"
          " variables with these slots; to save tables alone, slots=False."
      )
    return dict(zip(names, arrays))

  def _check_places(self, feature_specs: Any) -> None:
    """Raises if layers say that the tables are laid out for other specs."""
    places = _places.places_by_stack(feature_specs, self.num_shards)
    for stack, of_tables in places.items():
      state = getattr(self._variables[stack], "state", None)
      if state is None:
        continue
      found = np.asarray(state[...])[1:]
      wrong = [name for name, place in of_tables.items() if place not in found]
      if wrong:
        raise ValueError(
            f"Stack {stack!r}: tables {wrong} are not where the specs say: the"
            " variables were made for other devices or stacks. Pass the specs"
            " and the number of SparseCores that they were made for."
        )

  def rows(self, variable: Variable) -> _stack_rows.StackRows:
    stack = self._stacks[self._stack_of_table[variable.table], variable.slot]
    table = next(
        table
        for table in stack.placement.tables
        if table.name == variable.table
    )
    return _stack_rows.StackRows(stack, table, self._buffers)

  def updates(self, table: str) -> int | None:
    """How often a table was updated, if that is known."""
    state = getattr(self._variables[self._stack_of_table[table]], "state", None)
    return None if state is None else int(np.asarray(state[0]))

  def result(self, updates: Mapping[str, int] | None = None) -> dict[str, Any]:
    """{stack name: variables} as they are now.

    Args:
      updates: table name -> how often it was updated, to be put into `state`.
        Of tables of one stack it is the same number.
    """
    result = {}
    for name, value in self._variables.items():
      if (name, None) not in self._stacks:
        result[name] = value
        continue
      slots = [
          stack.value
          for (of, slot), stack in self._stacks.items()
          if of == name and slot is not None
      ]
      new = value._replace(table=self._stacks[name, None].value)
      if slots:
        structure = jax.tree.structure(value.slot)
        new = new._replace(slot=jax.tree.unflatten(structure, slots))
      counts = {
          count
          for table, count in (updates or {}).items()
          if self._stack_of_table[table] == name
      }
      if counts and getattr(value, "state", None) is not None:
        new = new._replace(state=_with_count(value.state, *counts))
      result[name] = new
    return result

  def stack_of(self, table: str) -> str:
    return self._stack_of_table[table]


def _with_count(state: Any, count: int) -> Any:
  if isinstance(state, jax.Ref):
    state[0] = count
    return state
  if isinstance(state, np.ndarray):
    return np.concatenate([np.array([count], state.dtype), state[1:]])
  return jax.device_put(state.at[0].set(count), state.sharding)


def _check_same_names(
    stacks: Mapping[str, Sequence[Any]], variables: Mapping[str, Any]
) -> None:
  if not isinstance(variables, Mapping):
    raise TypeError(
        "variables must be {stack name: EmbeddingVariables}, got a"
        f" {type(variables).__name__}. Pass them as init_embedding_variables"
        " makes them."
    )
  if set(stacks) != set(variables):
    raise ValueError(
        f"The variables are of the stacks {sorted(variables)}, and the specs"
        f" have {sorted(stacks)}. Pass the specs that the variables were"
        " made for."
    )


def _num_shards(
    tables: Sequence[embedding_spec.TableSpec],
    array: Any,
    num_sc_per_device: int | None,
) -> int:
  """SparseCores of the job, by what is known of it."""
  planned = tables[0].setting_in_stack.num_shards
  if planned is not None and num_sc_per_device is None:
    return planned
  sharding = array.sharding
  num_devices = 1
  if isinstance(sharding, jax.sharding.NamedSharding) and sharding.spec:
    num_devices = _stack_rows.num_parts(sharding.mesh, sharding.spec[0])
  return num_devices * hardware.resolve_num_sc_per_device(num_sc_per_device)


def _check_is_there(name: str, array: Any) -> None:
  # Neither arrays of NumPy nor shapes have one, nor what jit traces.
  if getattr(array, "sharding", None) is None:
    raise TypeError(
        f"{name}: is a {type(array).__name__}, not an array or jax.Ref on"
        " devices. Pass variables as init_embedding_variables makes them, and"
        " outside of jit."
    )
  if getattr(array, "is_deleted", bool)():  # jax.Refs are not.
    raise ValueError(
        f"{name}: is an array that was deleted, as by a step that it was"
        " donated to. Pass the variables that the step returned."
    )


def _check_array(
    name: str,
    array: Any,
    placement: _placement.StackPlacement,
    dtype: np.dtype,
) -> None:
  _check_is_there(name, array)
  shape = (placement.num_rows, placement.embedding_dim)
  if array.ndim not in (2, 3) or (
      (math.prod(array.shape[:-1]), array.shape[-1]) != shape
  ):
    raise ValueError(
        f"{name}: has shape {tuple(array.shape)}, and the specs say"
        f" {shape}, for {placement.num_shards} SparseCores. Pass the specs and"
        " the number of SparseCores that the variables were made for."
    )
  if np.dtype(array.dtype) != dtype:
    raise ValueError(
        f"{name}: is {np.dtype(array.dtype).name}, and the specs say"
        f" {dtype.name}. Pass the specs that the variables were made for."
    )
  sharding = array.sharding
  if isinstance(sharding, jax.sharding.NamedSharding):
    spec = sharding.spec
    if any(entry is not None for entry in tuple(spec)[1:]):
      raise ValueError(
          f"{name}: is sharded as {spec}. Only rows may be: P(axis, None)."
      )
    parts = _stack_rows.num_parts(sharding.mesh, spec[0]) if spec else 1
    if placement.num_shards % parts:
      raise ValueError(
          f"{name}: is on {parts} devices, which is not a divisor of its"
          f" {placement.num_shards} SparseCores."
      )
  elif len(sharding.device_set) != 1:
    raise ValueError(
        f"{name}: has a sharding {sharding}, not a NamedSharding by rows. Make"
        " variables with init_embedding_variables."
    )
