# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Restoring: which rows go where, and that they all can, before any of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stack_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _fills
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _initialize
from jax_tpu_embedding.sparsecore.lib.nn.values import _memory_check
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
import numpy as np

CheckpointError = _row_blocks.CheckpointError
Variable = _row_blocks.Variable

# Blocks on their way to devices.
_WINDOW_BYTES = 3 * _row_blocks.BLOCK_BYTES

# That tell whether slots begin with one number everywhere.
_SAMPLE_ROWS = 8

_HOW_TO_IGNORE = (
    "Pass one RestorePolicy(unused_tables='ignore') for all tables; beside a"
    " policy by table, pass tables= with the names of those that are meant."
)

_CHOICES = {
    "missing_tables": ("error", "initialize"),
    "unused_tables": ("error", "ignore"),
    "rows": ("exact", "grow", "crop"),
    "slots": ("exact", "reset"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestorePolicy:
  """What to do where the checkpoint is not what the specs say.

  Attributes:
    missing_tables: those of the specs that the checkpoint does not have:
      "error", or "initialize" them.
    unused_tables: those of the checkpoint that the specs do not have: "error",
      or "ignore" them, which only one policy for all tables can say.
    rows: of tables with another vocabulary_size: "exact" is an error; "grow"
      keeps the new rows as those of a new table; "crop" leaves out the last.
    slots: that the checkpoint does not have, or with other columns: "exact" is
      an error; "reset" keeps them as those of a new table, and leaves out those
      that the specs do not have.

  Raises:
    ValueError: if a field has another value.
  """

  missing_tables: str = "error"
  unused_tables: str = "error"
  rows: str = "exact"
  slots: str = "exact"

  def __post_init__(self):
    for name, choices in _CHOICES.items():
      if getattr(self, name) not in choices:
        raise ValueError(
            f"RestorePolicy: {name} must be one of {choices}, got"
            f" {getattr(self, name)!r}."
        )


Policies = RestorePolicy | Mapping[str, RestorePolicy]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRestore:
  """What a table gets.

  Attributes:
    source: its name in the checkpoint.
    rows: how many.
    slots: which slots, beside the table.
    is_whole: whether this is all there is of the table and its slots.
  """

  source: str
  rows: int
  slots: tuple[str, ...]
  is_whole: bool


def plan(
    saved: _tables_json.SavedTables,
    specs: Mapping[str, embedding_spec.TableSpec],
    *,
    tables: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    policy: Policies = RestorePolicy(),
    ignores_slots: bool = False,
) -> dict[str, TableRestore]:
  """What each table of the specs gets; those without an entry get nothing.

  Args:
    saved: what there is.
    specs: the tables to restore.
    tables: the names of those that are meant; None: all.
    names: table -> its name in the checkpoint, where that is another one.
    policy: for all tables, or by table.
    ignores_slots: whether slots keep what they have.

  Raises:
    TypeError: policy or tables is something else.
    ValueError: naming all that does not fit.
  """
  is_by_table = isinstance(policy, Mapping)
  for given in policy.values() if is_by_table else [policy]:
    if not isinstance(given, RestorePolicy):
      raise TypeError(
          "policy must be a RestorePolicy or {table: RestorePolicy}, got"
          f" {policy!r}. Pass, for example, RestorePolicy(rows='grow')."
      )
  if isinstance(tables, str):
    raise TypeError(
        f"tables must be a list of names, got {tables!r}. Pass [{tables!r}]."
    )
  problems = []
  names = dict(names or {})
  for argument, given in (("tables", tables or ()), ("names", names)):
    for name in given:
      if name not in specs:
        problems.append(
            f"{argument} has {name!r}, and the specs have {sorted(specs)}."
        )
  if is_by_table:
    for name, given in policy.items():
      if name not in specs:
        problems.append(
            f"policy has {name!r}, and the specs have {sorted(specs)}."
        )
      if given.unused_tables != "error" and tables is None:
        problems.append(
            f"policy has unused_tables={given.unused_tables!r} for {name!r},"
            f" and no table of the specs is unused. {_HOW_TO_IGNORE}"
        )
  restores = {}
  for name, spec in specs.items():
    if tables is not None and name not in tables:
      continue
    source = names.get(name, name)
    own = _policy_of(policy, name)
    if source not in saved.tables:
      if own.missing_tables == "error" or name in names:
        problems.append(
            f"Table {name!r}: the checkpoint has no table {source!r}, only"
            f" {sorted(saved.tables)}. Pass names={{{name!r}: ...}} if it has"
            " another name there, or missing_tables='initialize'."
        )
      continue
    found, problem = _plan_table(
        name, spec, source, saved.tables[source], own, ignores_slots
    )
    problems += problem
    restores[name] = found
  used = {restore.source for restore in restores.values()}
  unused = [name for name in saved.tables if name not in used]
  ignores = tables is not None or (
      _policy_of(policy, None).unused_tables == "ignore"
  )
  if unused and not ignores and not problems:
    problems.append(
        f"The checkpoint has tables {unused}, which the specs do not."
        f" {_HOW_TO_IGNORE}"
    )
  if problems:
    raise ValueError("\n".join(problems))
  return restores


def _policy_of(policy: Policies, table: str | None) -> RestorePolicy:
  if isinstance(policy, RestorePolicy):
    return policy
  return policy.get(table, RestorePolicy())


def _plan_table(
    name: str,
    spec: embedding_spec.TableSpec,
    source: str,
    saved: _tables_json.SavedTable,
    policy: RestorePolicy,
    ignores_slots: bool,
) -> tuple[TableRestore, list[str]]:
  """What a table gets, and what does not fit."""
  problems = []
  if saved.columns != spec.embedding_dim:
    problems.append(
        f"Table {name!r}: the checkpoint has {saved.columns} columns, the spec"
        f" {spec.embedding_dim}. No policy changes columns; load_tables takes"
        " an array you made."
    )
  allowed = {
      "exact": saved.rows == spec.vocabulary_size,
      "grow": saved.rows <= spec.vocabulary_size,
      "crop": saved.rows >= spec.vocabulary_size,
  }
  if not allowed[policy.rows]:
    needed = "grow" if saved.rows < spec.vocabulary_size else "crop"
    problems.append(
        f"Table {name!r}: the checkpoint has {saved.rows} rows, the spec"
        f" {spec.vocabulary_size}, and the policy is rows={policy.rows!r}. Pass"
        f" RestorePolicy(rows={needed!r}) if that is meant."
    )
  wanted = _table_variables.slot_columns(spec)
  slots = ()
  if not ignores_slots:
    slots = tuple(
        slot
        for slot, columns in wanted.items()
        if saved.slots.get(slot) == columns
    )
    same = dict(saved.slots) == wanted
    if policy.slots == "exact" and not same and not problems:
      problems.append(
          f"Table {name!r}: the checkpoint has slots"
          f" {_slots_text(saved.slots)}, and {type(spec.optimizer).__name__}"
          f" has {_slots_text(wanted)}. Pass RestorePolicy(slots='reset') to"
          " begin with new slots where they differ."
      )
  return (
      TableRestore(
          source=source,
          rows=min(saved.rows, spec.vocabulary_size),
          slots=slots,
          is_whole=saved.rows >= spec.vocabulary_size
          and set(slots) == set(wanted),
      ),
      problems,
  )


def _slots_text(slots: Mapping[str, int]) -> str:
  if not slots:
    return "none"
  return ", ".join(
      f"{name} ({columns} columns)" for name, columns in slots.items()
  )


def specs_of(feature_specs: Any) -> dict[str, embedding_spec.TableSpec]:
  """The tables of the features by name."""
  return embedding.get_table_specs(feature_specs)


@jax.transfer_guard("allow")
def load_tables(
    variables: Mapping[str, Any],
    feature_specs: Any,
    arrays: Mapping[str, Any],
    num_sc_per_device: int | None,
    policy: Policies,
) -> dict[str, Any]:
  """checkpoint.load_tables."""
  sources = {}
  for name, array in arrays.items():
    sources[Variable(table=name)] = _row_blocks.ArrayRows(name, array)
  given = {
      variable.table: _tables_json.SavedTable(
          rows=source.rows,
          columns=source.columns,
          dtype=source.dtype.name,
          chunk_rows=source.block_rows,
          slots={},
      )
      for variable, source in sources.items()
  }
  restores = plan(
      _tables_json.SavedTables(tables=given),
      specs_of(feature_specs),
      tables=list(arrays),
      policy=policy,
      ignores_slots=True,
  )
  return fill(
      variables,
      feature_specs,
      restores,
      sources,
      updates={},
      num_sc_per_device=num_sc_per_device,
  )


def open_sources(
    directory: _zarr_rows.Directory,
    saved: _tables_json.SavedTables,
    restores: Mapping[str, TableRestore],
) -> dict[Variable, _zarr_rows.ZarrRows]:
  """The rows for each variable of the model, their metadata checked."""
  sources = {}
  for name, restore in restores.items():
    for slot in (None, *restore.slots):
      variable = Variable(table=restore.source, slot=slot)
      sources[Variable(table=name, slot=slot)] = directory.open_array(
          _tables_json.directory_of(variable),
          saved.array_format(variable),
          variable,
      )
  return sources


def fill(
    variables: Mapping[str, Any],
    feature_specs: Any,
    restores: Mapping[str, TableRestore],
    sources: Mapping[Variable, _row_blocks.RowSource],
    *,
    updates: Mapping[str, int | None],
    num_sc_per_device: int | None = None,
) -> dict[str, Any]:
  """Writes rows into variables; arrays are consumed.

  Args:
    variables: of the model.
    feature_specs: of the model.
    restores: what each table gets.
    sources: the rows of each variable.
    updates: how often each table was updated, where that is known.
    num_sc_per_device: default: as the specs were prepared.

  Returns:
    The variables with what was written.

  Raises:
    ValueError: variables and specs do not fit each other, or tables of one
      stack were updated a different number of times. Nothing was written.
    CheckpointError: naming the tables that were overwritten before.
  """
  of_model = _table_variables.TableVariables(
      variables,
      feature_specs,
      num_sc_per_device,
      with_slots=any(restore.slots for restore in restores.values()),
  )
  known = {name: count for name, count in updates.items() if count is not None}
  _check_same_updates(of_model, known)
  window = _row_blocks.Window(_WINDOW_BYTES)
  begun = []
  total = sum(
      restores[variable.table].rows * source.columns * source.dtype.itemsize
      for variable, source in sources.items()
  )
  try:
    with _progress.Progress("restoring", total) as progress:
      for variable, source in sources.items():
        begun.append(str(variable))
        sink = of_model.rows(variable)
        restore = restores[variable.table]
        ranges = _row_blocks.ranges_of(restore.rows, source.block_rows)
        converted = _row_blocks.Converted(sink, sink.dtype, variable)
        _row_blocks.copy(progress.of(source), converted, ranges, window)
      window.wait()
  except (CheckpointError, ValueError) as error:
    raise type(error)(
        f"{error} Overwritten, wholly or in part: {', '.join(begun)}."
    ) from error
  return of_model.result(known)


def _check_same_updates(
    of_model: _table_variables.TableVariables, updates: Mapping[str, int]
) -> None:
  """Tables of a stack count their updates together."""
  of_stack = {}
  for table, count in updates.items():
    if of_model.updates(table) is not None:
      of_stack.setdefault(of_model.stack_of(table), {})[table] = count
  for stack, counts in of_stack.items():
    if len(set(counts.values())) > 1:
      raise ValueError(
          f"Stack {stack!r}: its tables were updated a different number of"
          f" times, {counts}, and one stack has one count. Keep them in stacks"
          " of their own, as they were when they were saved."
      )


def make_variables(
    feature_specs: Any,
    restores: Mapping[str, TableRestore],
    sharding: jax.sharding.NamedSharding,
    key: jax.Array | None,
    num_sc_per_device: int | None,
) -> dict[str, Any]:
  """Variables to be filled: as new ones where nothing is going to be written.

  Raises:
    ValueError: a key is needed, and there is none; or the specs were prepared
      for another number of SparseCores.
    MemoryError: the variables cannot fit.
  """
  num_devices = _stack_rows.num_parts(sharding.mesh, sharding.spec[0])
  num_sc = hardware.resolve_num_sc_per_device(num_sc_per_device)
  feature_specs = _table_variables.planned(feature_specs, num_devices * num_sc)
  specs = embedding.get_table_specs(feature_specs)
  fresh = [
      name
      for name, spec in specs.items()
      if name not in restores or restores[name].rows < spec.vocabulary_size
  ]
  if fresh and key is None:
    raise ValueError(
        f"Tables {fresh} get initial values, in all rows or in new ones. Pass"
        " key, a jax.random.key, to make them from."
    )
  if key is None:
    key = jax.random.key(0)
  by_stack = _table_variables.by_stack(specs)
  _memory_check.check(
      by_stack, num_devices * num_sc, num_devices, sharding.mesh.devices.flat
  )
  is_written = {
      stack: all(
          table.name in restores and restores[table.name].is_whole
          for table in tables
      )
      for stack, tables in by_stack.items()
  }
  # First what needs more than itself while it is made, which is checked there.
  initialized = [
      table
      for stack, tables in by_stack.items()
      if not is_written[stack]
      for table in tables
  ]
  variables = {}
  if initialized:
    variables = embedding.init_embedding_variables(
        key,
        initialized,
        sharding,
        num_sc_per_device,
        # Rows are by the mesh, as those of layers.
        bypass_mesh_check=True,
    )
  for stack, tables in by_stack.items():
    if is_written[stack]:
      variables[stack] = _make_padding(tables, sharding, key, num_sc_per_device)
  return {stack: variables[stack] for stack in by_stack}


def _make_padding(
    tables: Sequence[embedding_spec.TableSpec],
    sharding: jax.sharding.NamedSharding,
    key: jax.Array,
    num_sc_per_device: int | None,
) -> embedding.EmbeddingVariables:
  """The variables of a stack all rows of which are going to be written.

  Padding is what counts: zero in a table, the initial value in slots. Rows get
  the same, so nothing is sent between devices.
  """
  num_devices = _stack_rows.num_parts(sharding.mesh, sharding.spec[0])
  sharding = _initialize.sharding_of(tables, sharding)
  placement = _placement.from_specs(
      tables,
      num_devices * hardware.resolve_num_sc_per_device(num_sc_per_device),
  )

  def make(initializer, columns, dtype):
    rows = placement.num_rows
    shape = (rows, columns)
    if len(sharding.spec) == 3:
      shape = (num_devices, rows // num_devices, columns)
    sample = np.asarray(initializer(key, (_SAMPLE_ROWS, columns)))
    if (sample == sample[0, 0]).all():
      program = _constant_program(shape, np.dtype(dtype), sharding)
      argument = sample[0, 0]
    else:
      # Of a user's optimizer. No two of them are known to be the same.
      program = _on_devices(
          lambda key: initializer(key, (rows, columns)), shape, dtype, sharding
      )
      argument = key
    with _shardings.auto_mesh(sharding):
      array = program(argument)
    if _shardings.auto(sharding) == sharding:
      return array
    return jax.device_put(array, _fills.layout_of(sharding, dtype))

  optimizer = tables[0].optimizer
  initializers = optimizer.slot_variables_initializers()
  slots = [
      make(initializer, 1 if is_of_row else placement.embedding_dim, np.float32)
      for initializer, is_of_row in zip(
          jax.tree.leaves(initializers), optimizer.slot_variables_of_rows()
      )
  ]
  return embedding.EmbeddingVariables(
      make(_zeros, placement.embedding_dim, tables[0].dtype),
      jax.tree.unflatten(jax.tree.structure(initializers), slots),
  )


def _zeros(key: jax.Array, shape: Sequence[int]) -> np.ndarray:
  del key
  return np.zeros(shape, np.float32)


def _on_devices(make, shape, dtype, sharding):
  return jax.jit(
      lambda argument: jnp.reshape(make(argument), shape).astype(dtype),
      out_shardings=_fills.layout_of(_shardings.auto(sharding), dtype),
  )


# Kept, because jit finds a compiled program by the function.
@functools.lru_cache(maxsize=256)
def _constant_program(shape, dtype, sharding):
  """A number -> an array of it."""
  if _host_fill.is_memory_of(sharding.mesh.devices.flat):
    zeros = _fills.new_stack(
        jax.ShapeDtypeStruct(shape, dtype, sharding=_shardings.auto(sharding))
    )
    # XLA adds in place.
    make = lambda value: zeros() + value.astype(dtype)
  else:
    make = lambda value: jnp.full(shape, value)
  return _on_devices(make, shape, dtype, sharding)
