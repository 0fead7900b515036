# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables to export: of a model's variables, or of a checkpoint.

Checks first, then rows in logical order, in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import operator
import os
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.serving import _versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """What is known of a table before its rows are read.

  Attributes:
    name: of the table.
    rows: vocabulary_size.
    columns: embedding_dim.
    combiner: of its features.
    encoding: of its rows in files.
  """

  name: str
  rows: int
  columns: int
  combiner: str
  encoding: _encodings.Encoding

  @property
  def row_bytes(self) -> int:
    return self.encoding.row_bytes(self.columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """Tables, and where their rows are.

  Attributes:
    tables: by name.
    rows_of: table name -> its rows.
    features: by name; None if they are not known.
    step: that of a checkpoint; None if it is not known.
    turns: table name -> the process that gets each of the blocks that are read
      together; none: this process gets all.
  """

  tables: Mapping[str, Table]
  rows_of: Mapping[str, _row_blocks.RowSource]
  features: Mapping[str, _versions.Feature] | None = None
  step: int | None = None
  turns: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

  def turns_of(self, table: str) -> Sequence[int]:
    """The process whose turn it is for each block, again and again."""
    return self.turns.get(table, (0,))

  def row_bytes(self, table: str) -> int:
    """Of a row as it is read."""
    rows = self.rows_of[table]
    return rows.columns * rows.dtype.itemsize


def of(
    source: Any,
    feature_specs: Any,
    tables: Sequence[str] | None,
    encoding: str | Mapping[str, str],
    num_sc_per_device: int | None = None,
) -> Source:
  """The tables of variables, or of the checkpoint at a path.

  Raises:
    TypeError: tables or encoding is of another kind.
    ValueError: specs, tables and encodings do not fit the source, or readers
      refuse the step of the checkpoint.
    CheckpointError: there is no checkpoint, or it is damaged.
  """
  if isinstance(source, (str, os.PathLike)):
    return _of_checkpoint(os.fspath(source), feature_specs, tables, encoding)
  if feature_specs is None:
    raise ValueError(
        "Variables need feature_specs: those that they were made for. A"
        " checkpoint, given by its path, does not."
    )
  of_model = _table_variables.TableVariables(
      source, feature_specs, num_sc_per_device, with_slots=False
  )
  described = of_specs(feature_specs, tables, encoding)
  _check_processes(source)
  rows_of = {
      name: of_model.rows(_row_blocks.Variable(table=name))
      for name in described
  }
  return Source(
      tables=described,
      rows_of=rows_of,
      features=features_of(feature_specs, described),
      turns={name: rows.turns for name, rows in rows_of.items()},
  )


def as_positive(name: str, value: Any) -> int:
  """An argument as an int.

  Raises:
    TypeError: it is not an integer.
    ValueError: it is not positive.
  """
  try:
    number = operator.index(value)
  except TypeError as error:
    raise TypeError(f"{name} must be an integer, got {value!r}.") from error
  if number < 1:
    raise ValueError(f"{name} must be positive, got {number}.")
  return number


def _check_processes(variables: Mapping[str, Any]) -> None:
  """Raises ValueError unless variables are of all processes of the job."""
  expected = set(range(jax.process_count()))
  for name, stack in variables.items():
    found = {device.process_index for device in stack.table.sharding.device_set}
    if found != expected:
      raise ValueError(
          f"Stack {name!r} is on devices of the processes {sorted(found)}, and"
          f" the job has {len(expected)}, which export together. Make variables"
          " with a mesh of all devices, jax.devices()."
      )


def of_specs(
    feature_specs: Any,
    tables: Sequence[str] | None,
    encoding: str | Mapping[str, str],
) -> dict[str, Table]:
  """The tables of features.

  Raises:
    TypeError: feature_specs, tables or encoding is of another kind.
    ValueError: two features, or two different tables, have one name; or tables
      and encodings do not fit them.
  """
  features = _features(feature_specs)
  _prepared.get_table_specs(features)  # raises if two features have one name
  specs = _planner.distinct_tables(features)
  encodings = _encodings_of(specs, tables, encoding)
  _check_not_rounded(
      name for name in encodings if specs[name].quantization_config is not None
  )
  return {
      name: Table(
          name=name,
          rows=specs[name].vocabulary_size,
          columns=specs[name].embedding_dim,
          combiner=specs[name].combiner,
          encoding=of_table,
      )
      for name, of_table in encodings.items()
  }


def _check_not_rounded(rounded: Iterable[str]) -> None:
  """Raises ValueError if there is a table whose rows lookups round."""
  names = sorted(rounded)
  if names:
    raise ValueError(
        f"Lookups in the tables {names} round the rows"
        " (quantization_config), and served lookups do not: activations would"
        " be others than those of training. Pass feature_specs without"
        " quantization_config to serve the rows as they are."
    )


def features_of(
    feature_specs: Any, tables: Mapping[str, Table]
) -> dict[str, _versions.Feature]:
  """The features of the tables that are exported, by name."""
  return {
      feature.name: _versions.Feature(
          table=feature.table_spec.name,
          columns=int(feature.output_shape[-1]),
      )
      for feature in _features(feature_specs)
      if feature.table_spec.name in tables
  }


def _features(feature_specs: Any) -> list[embedding_spec.FeatureSpec]:
  features = jax.tree.leaves(feature_specs)
  for feature in features:
    if not isinstance(feature, embedding_spec.FeatureSpec):
      raise TypeError(
          f"feature_specs has a {type(feature).__name__}, not FeatureSpecs"
          " alone."
      )
  return features


def _of_checkpoint(
    path: str,
    feature_specs: Any,
    tables: Sequence[str] | None,
    encoding: str | Mapping[str, str],
) -> Source:
  directory, saved = _tables_json.read(
      path if "://" in path else os.path.abspath(path)
  )
  if saved.step is not None:
    try:
      _tables_json.as_step(saved.step)
    except (TypeError, ValueError) as error:
      raise ValueError(
          f"The checkpoint {path} cannot be exported: {error} Restore it, and"
          " save it with another step."
      ) from error
  if feature_specs is None:
    described = {
        name: Table(
            name=name,
            rows=saved.tables[name].rows,
            columns=saved.tables[name].columns,
            combiner=saved.tables[name].combiner,
            encoding=of_table,
        )
        for name, of_table in _encodings_of(
            saved.tables, tables, encoding
        ).items()
    }
    unknown = [name for name, table in described.items() if not table.combiner]
    if unknown:
      raise ValueError(
          f"The checkpoint {path} does not say the combiners of {unknown}. Pass"
          " feature_specs."
      )
    _check_not_rounded(described.keys() & _rounded_tables(saved))
  else:
    described = of_specs(feature_specs, tables, encoding)
    _check_same_shapes(path, saved, described)
  rows_of = {}
  for name in described:
    variable = _row_blocks.Variable(table=name)
    rows_of[name] = directory.open_array(
        _tables_json.directory_of(variable),
        saved.array_format(variable),
        variable,
    )
  return Source(
      tables=described,
      rows_of=rows_of,
      features=(
          None
          if feature_specs is None
          else features_of(feature_specs, described)
      ),
      step=saved.step,
  )


def _rounded_tables(saved: _tables_json.SavedTables) -> set[str]:
  """The tables whose rows the writer's lookups rounded, as far as it said."""
  return {
      table["table_name"]
      for stack in saved.embedding_spec.get("stacked_table_specs", ())
      for table in stack["table_specs"]
      if "quantization" in table
  }


def _check_same_shapes(
    path: str, saved: _tables_json.SavedTables, tables: Mapping[str, Table]
) -> None:
  problems = []
  for name, table in tables.items():
    if name not in saved.tables:
      problems.append(
          f"Table {name!r}: the checkpoint has none of this name, only"
          f" {sorted(saved.tables)}."
      )
      continue
    found = saved.tables[name].rows, saved.tables[name].columns
    if found != (table.rows, table.columns):
      problems.append(
          f"Table {name!r}: the checkpoint has {found[0]} x {found[1]}, the"
          f" spec {table.rows} x {table.columns}. Pass the specs that it was"
          " saved with, or none."
      )
  if problems:
    raise ValueError(
        f"{path} does not fit feature_specs:\n  " + "\n  ".join(problems)
    )


def _encodings_of(
    known: Mapping[str, Any],
    tables: Sequence[str] | None,
    encoding: str | Mapping[str, str],
) -> dict[str, _encodings.Encoding]:
  """The encodings of the tables that are asked for."""
  if isinstance(tables, str) or not isinstance(tables, (Iterable, type(None))):
    raise TypeError(f"tables must be a sequence of names, got {tables!r}.")
  if not isinstance(encoding, (str, Mapping)):
    raise TypeError(
        "encoding must be a name, or the names by table, got"
        f" {encoding!r}. Names are {', '.join(_encodings.ENCODINGS)}."
    )
  chosen = list(known) if tables is None else list(tables)
  by_table = (
      dict.fromkeys(chosen, encoding) if isinstance(encoding, str) else encoding
  )
  problems = []
  for name in dict.fromkeys([*chosen, *by_table]):
    if name not in known:
      problems.append(
          f"Table {name!r} is not known; there are {sorted(known)}."
      )
    elif name not in chosen:
      problems.append(f"Table {name!r} has an encoding, but is not in tables.")
    elif name not in by_table:
      problems.append(f"Table {name!r} has no encoding: give one for each.")
    elif by_table[name] not in list(_encodings.ENCODINGS):
      problems.append(
          f"Table {name!r}: the encoding must be one of"
          f" {', '.join(_encodings.ENCODINGS)}, got {by_table[name]!r}."
      )
  if not chosen:
    problems.append("There are no tables to export.")
  if problems:
    raise ValueError("\n".join(problems))
  return {name: _encodings.ENCODINGS[by_table[name]] for name in chosen}
