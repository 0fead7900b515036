# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""tables.json: what a checkpoint has, and its checks.

    <checkpoint>/tables/               an item of orbax
      tables.json                      this
      _METADATA                        the same for orbax, which then reads it
      items.table/zarr.json, c.0.0 ..  [vocabulary_size, embedding_dim]
      items.slot.accumulator/..        float32 [vocabulary_size, columns]

Nothing in it depends on devices, stacks or hosts, but for `embedding_spec`,
which tells how the writer had stacked its tables and is not read to restore.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import importlib.metadata
import json
import operator
from typing import Any
import zlib

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.core import readable_text
import numpy as np

CheckpointError = _row_blocks.CheckpointError
Variable = _row_blocks.Variable

FILE = "tables.json"
# Of the item in a checkpoint of orbax.
ITEM = "tables"
_FORMAT = "jax_tpu_embedding.tables"
_VERSION = 1
_DTYPES = ("float32", "bfloat16", "float16")
# The largest number that every reader of served tables takes.
_MAX_STEP = 2**60


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedTable:
  """A table in a checkpoint.

  Attributes:
    rows: vocabulary_size.
    columns: embedding_dim.
    dtype: its name.
    chunk_rows: rows of a file, of the table and of each slot.
    slots: slot name -> its columns, in the optimizer's order.
    updates: how often the table was updated; None if that was not known.
    optimizer: an OptimizerSpecProto as JSON, for information.
    combiner: for information.
  """

  rows: int
  columns: int
  dtype: str
  chunk_rows: int
  slots: Mapping[str, int]
  updates: int | None = None
  optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  combiner: str = ""

  @property
  def num_bytes(self) -> int:
    per_row = self.columns * np.dtype(_numpy_name(self.dtype)).itemsize
    return self.rows * (per_row + 4 * sum(self.slots.values()))


def saved_table(
    *,
    rows: int,
    columns: int,
    dtype: str,
    slots: Mapping[str, int],
    block_bytes: int = _row_blocks.BLOCK_BYTES,
    **fields: Any,
) -> SavedTable:
  """A table that is cut into chunks of about `block_bytes`."""
  row_bytes = max(
      columns * np.dtype(_numpy_name(dtype)).itemsize,
      *(4 * size for size in slots.values()),
      0,
  )
  return SavedTable(
      rows=rows,
      columns=columns,
      dtype=dtype,
      chunk_rows=_row_blocks.rows_per_block(rows, row_bytes, block_bytes),
      slots=slots,
      **fields,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedTables:
  """What a checkpoint has.

  Attributes:
    tables: by name, in the writer's order.
    step: that the writer gave; None if it did not.
    compression: of the files.
    embedding_spec: the writer's EmbeddingSpecProto as JSON, for information.
    writer: name and version of the library that wrote it.
  """

  tables: Mapping[str, SavedTable]
  step: int | None = None
  compression: str | None = None
  embedding_spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  writer: str = ""

  @property
  def num_bytes(self) -> int:
    return sum(table.num_bytes for table in self.tables.values())

  def variables(self) -> list[Variable]:
    return [
        Variable(table=name, slot=slot)
        for name, table in self.tables.items()
        for slot in (None, *table.slots)
    ]

  def array_format(self, variable: Variable) -> _zarr_rows.ArrayFormat:
    table = self.tables[variable.table]
    is_table = variable.slot is None
    return _zarr_rows.ArrayFormat(
        rows=table.rows,
        columns=table.columns if is_table else table.slots[variable.slot],
        dtype=table.dtype if is_table else "float32",
        chunk_rows=table.chunk_rows,
        compression=self.compression,
    )

  def __str__(self) -> str:
    step = "no step" if self.step is None else f"step {self.step}"
    rows = [("table", "rows x columns", "dtype", "slots", "size")]
    for name, table in self.tables.items():
      rows.append(
          (
              name,
              f"{table.rows:,} x {table.columns}",
              table.dtype,
              ", ".join(table.slots) or "none",
              readable_text.format_bytes(table.num_bytes),
          )
      )
    noun = "table" if len(self.tables) == 1 else "tables"
    head = f"{len(self.tables)} {noun}, {readable_text.format_bytes(self.num_bytes)}, {step}"
    if self.writer:
      head += f", written by {self.writer}"
    lines = readable_text.align(rows, left=range(len(rows[0])))
    return "\n".join([head, *lines])


def directory_of(variable: Variable) -> str:
  """Where its array is; orbax expects it there."""
  return ".".join(variable.keys)


def as_step(step: Any) -> int:
  """A training step as an int, for JSON.

  Raises:
    TypeError: it is not an integer.
    ValueError: it is negative, or larger than readers take.
  """
  expected = f"step must be an integer from 0 to 2^60, got {step!r}."
  if isinstance(step, bool):
    raise TypeError(expected)
  try:
    number = operator.index(step)
  except TypeError as error:
    raise TypeError(expected) from error
  if not 0 <= number <= _MAX_STEP:
    raise ValueError(expected)
  return number


def check_names(saved: SavedTables) -> None:
  """Raises ValueError if tables could not be told apart, or found, as files."""
  problems = []
  owner = {}
  for variable in saved.variables():
    name = directory_of(variable)
    if not all(variable.keys) or not name.isprintable():
      problems.append(
          f"{variable}: the name is empty or has a character that is not"
          " printable."
      )
    elif "\\" in name:
      problems.append(
          f"{variable}: the name has a backslash, which file systems and"
          " tensorstore do not read alike."
      )
    elif any(
        part in ("", ".", "..")
        for key in variable.keys
        for part in key.split("/")
    ):
      problems.append(
          f"{variable}: the name has an empty part, '.' or '..' between"
          " slashes, which stand for directories."
      )
    elif name in owner:
      problems.append(
          f"{variable}: would have the same directory as {owner[name]},"
          f" {name!r}. Rename one of them."
      )
    owner.setdefault(name, variable)
  for name, variable in owner.items():
    parts = name.split("/")
    for i in range(1, len(parts)):
      outer = owner.get("/".join(parts[:i]))
      if outer is not None:
        problems.append(
            f"{variable}: its directory {name!r} would be inside of that of"
            f" {outer}. Rename one of them."
        )
  if problems:
    raise ValueError("Cannot save these tables:\n  " + "\n  ".join(problems))


def write(directory: _zarr_rows.Directory, saved: SavedTables) -> None:
  """Writes tables.json, and what orbax reads in its place."""
  directory.write_file("_METADATA", _canonical(_orbax_metadata(saved)))
  content = {
      "format": _FORMAT,
      "version": _VERSION,
      "writer": f"jax_tpu_embedding {_library_version()}",
      "step": saved.step,
      "compression": saved.compression,
      # Pairs where order counts: JSON has none.
      "tables": [
          {"name": name}
          | dataclasses.asdict(table)
          | {"slots": [list(slot) for slot in table.slots.items()]}
          for name, table in saved.tables.items()
      ],
      "embedding_spec": dict(saved.embedding_spec),
  }
  content["crc32"] = checksum_of(content)
  directory.write_file(FILE, _canonical(content))


def find(path: str) -> _zarr_rows.Directory | None:
  """The directory with tables.json: of a checkpoint, or of its item."""
  for directory in (
      _zarr_rows.Directory(path),
      _zarr_rows.Directory(path) / ITEM,
  ):
    if directory.read_file(FILE) is not None:
      return directory
  return None


def read(path: str) -> tuple[_zarr_rows.Directory, SavedTables]:
  """Where the arrays of a checkpoint are, and what they are.

  Raises:
    CheckpointError: there is no checkpoint of this format, or it is damaged.
  """
  if ".orbax-checkpoint-tmp" in path:
    raise CheckpointError(
        f"{path} was not finished: its writer ended while saving. Use an"
        " earlier checkpoint, and remove this one."
    )
  directory = find(path)
  if directory is None:
    raise CheckpointError(_no_checkpoint(path))
  where = f"{directory.path}/{FILE}"
  try:
    content = json.loads(directory.read_file(FILE))
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
      raise ValueError(f"its format is not {_FORMAT!r}.")
    checksum = content.pop("crc32", None)
    is_intact = checksum == checksum_of(content)
    if is_intact and content["version"] != _VERSION:
      raise CheckpointError(
          f"{where} has version {content['version']} of the format, this"
          f" library reads {_VERSION}. {content.get('writer')} wrote it, and"
          " that reads it."
      )
    if not is_intact:
      raise ValueError("its checksum is not that of its contents.")
    saved = _from_json(content)
  except (KeyError, TypeError, ValueError) as error:
    raise CheckpointError(f"{where} is damaged: {error}") from error
  return directory, saved


def _from_json(content: dict[str, Any]) -> SavedTables:
  tables = {}
  for fields in content["tables"]:
    fields = dict(fields)
    name = fields.pop("name")
    fields["slots"] = dict(fields["slots"])
    if fields["dtype"] not in _DTYPES:
      raise ValueError(
          f"table {name!r} has dtype {fields['dtype']!r}, not one of {_DTYPES}."
      )
    tables[name] = SavedTable(**fields)
  saved = SavedTables(
      tables=tables,
      step=content["step"],
      compression=content["compression"],
      embedding_spec=content["embedding_spec"],
      writer=content["writer"],
  )
  check_names(saved)
  return saved


def _no_checkpoint(path: str) -> str:
  directory = _zarr_rows.Directory(path)
  files = ("_CHECKPOINT_METADATA", "orbax.checkpoint", "_METADATA")
  if any(directory.read_file(name) is not None for name in files):
    return (
        f"{path} is a checkpoint of orbax, but not one of tables: it has no"
        f" {FILE} or {ITEM}/{FILE}. If it has stacked tables with an"
        " embedding_spec, convert it: see"
        " jax_tpu_embedding.sparsecore.lib.checkpoint.convert."
    )
  return (
      f"There is no checkpoint in {path}: neither {FILE} nor {ITEM}/{FILE}."
      " Give the directory of one step."
  )


def _orbax_metadata(saved: SavedTables) -> dict[str, Any]:
  """Such that plain orbax restores {table: {"table": .., "slot": {..}}}."""
  tree = {}

  def add(keys, kind, skip):
    tree[str(keys)] = {
        "key_metadata": [{"key": key, "key_type": 2} for key in keys],
        "value_metadata": {"value_type": kind, "skip_deserialize": skip},
    }

  for variable in saved.variables():
    add(variable.keys, "np.ndarray", False)
  for name, table in saved.tables.items():
    if not table.slots:
      add((name, "slot"), "Dict", True)
  return {
      "tree_metadata": tree,
      "use_ocdbt": False,
      "use_zarr3": True,
      "store_array_data_equal_to_fill_value": True,
      "custom_metadata": None,
  }


def checksum_of(content: Any) -> int:
  """CRC-32 of JSON, however it is written; it is not in it."""
  return zlib.crc32(_canonical(content))


def _canonical(content: Any) -> bytes:
  return json.dumps(
      content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
  ).encode()


def _library_version() -> str:
  try:
    return importlib.metadata.version("jax_tpu_embedding")
  except importlib.metadata.PackageNotFoundError:
    return "(not installed)"


def _numpy_name(dtype: str) -> str:
  # NumPy knows no bfloat16 by itself; what counts here is its size.
  return "float16" if dtype == "bfloat16" else dtype
