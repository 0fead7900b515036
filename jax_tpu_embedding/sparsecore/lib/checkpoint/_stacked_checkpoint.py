# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints of jax_tpu_embedding 0.1: stacked tables, and how they are so.

    <step>/model/             a tree of orbax: .. embedding_table [.. value]
                              .. <stack> .. table, slot .. <slot>
    <step>/embedding_spec/    an EmbeddingSpecProto as text
    <step>/..                 other items, such as the state of the optimizer

The rows of a table are in the order of the devices that wrote them, which the
message tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
from typing import Any

from google.protobuf import json_format
from google.protobuf import text_format
from jax_tpu_embedding.sparsecore.lib.checkpoint import _host_stacks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _orbax_tree
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb
import numpy as np
import tensorstore

CheckpointError = _row_blocks.CheckpointError
Variable = _row_blocks.Variable

# The key above the stacks, and what NNX has between.
TABLES_KEY = "embedding_table"
_VALUE_KEY = "value"
# Beside it: where the layers of this library keep what belongs to tables.
SEAL_KEY = "update_seal"
# In a stack, of layers with jax.Refs: the count of updates, and places.
STATE_KEY = "state"
# Its numbers before those of the places of tables; the last two count updates.
SEAL_NUMBERS = 7
# In what orbax keeps beside a tree: how the tables in it are laid out.
LAYOUT = "jax_tpu_embedding.layout"
UNSTACKED = "unstacked"


class StackedCheckpoint:
  """What a checkpoint of stacked tables has; nothing of it is read yet.

  Args:
    path: of one step.
    model_key: the item with the tables.
    embedding_spec_key: the item with the message.
    layer: the path of the layer with the tables; None: there is one layer. The
      message may have those of others, too.
    scratch: a directory for one stack at a time; None: that of temporary files.

  Attributes:
    tree: the item with the tables.
    message: how they are stacked.
    prefix: where in the tree stacks are.
    saved: the tables and slots.

  Raises:
    CheckpointError: it is damaged, or tree and message contradict each other.
    ValueError: it has no such item, no tables, or several layers with tables.
  """

  def __init__(
      self,
      path: str,
      *,
      model_key: str = "model",
      embedding_spec_key: str = "embedding_spec",
      layer: _orbax_tree.Keys | None = None,
      scratch: str | None = None,
  ):
    self._scratch = scratch
    self.message = read_message(path, embedding_spec_key)
    self.tree = open_item(path, model_key)
    self._where = f"{path}/{model_key}"
    if self.tree.custom_metadata.get(LAYOUT) == UNSTACKED:
      raise ValueError(
          f"{self._where} has tables that were unstacked: they can be read with"
          " orbax, or loaded with load_tables, and are not stacked any more."
      )
    self._placements = {}
    for stack in self.message.stacked_table_specs:
      try:
        self._placements[stack.stack_name] = _placement.from_proto(stack)
      except ValueError as error:
        raise CheckpointError(
            f"{path}/{embedding_spec_key}: {error}"
        ) from error
    self.prefix = self._find_prefix(layer)
    if layer is not None:
      of_layer = {keys[len(self.prefix)] for keys in self.table_keys()}
      self._placements = {
          stack: placement
          for stack, placement in self._placements.items()
          if stack in of_layer
      }
    # Stack name -> the state that layers with jax.Refs keep beside its tables.
    self.states = {}
    self._stores = self._open_stacks()
    self.saved = self._describe()
    self._current = None

  def table_keys(self) -> list[_orbax_tree.Keys]:
    """The leaves of the tree that are tables, slots, or between."""
    return [k for k in self.tree.keys() if k[: len(self.prefix)] == self.prefix]

  def sources(self) -> dict[Variable, _row_blocks.RowSource]:
    """The rows of all variables; those of a stack follow each other.

    Reading one lays down its stack in a file of scratch, which takes the place
    of the one before.
    """
    result = {}
    for (stack, slot), store in self._stores.items():
      placement = self._of_slot(stack, store)
      for table in placement.tables:
        result[Variable(table=table.name, slot=slot)] = _LaidDownRows(
            self, stack, slot, placement, table, store
        )
    return result

  def lay_down(self, stack: str, slot: str | None) -> np.ndarray:
    """A stacked array in a file; the one before is gone.

    Raises:
      CheckpointError: it is damaged.
    """
    if self._current is None or self._current[0] != (stack, slot):
      self._current = None
      store = self._stores[stack, slot]
      array = _host_stacks.scratch_array(
          store.shape, store.dtype.numpy_dtype, self._scratch
      )
      for region in _orbax_tree.regions(store):
        try:
          # Into the file, with no copy of a chunk between.
          source = store[region].translate_to[(0,) * store.ndim]
          tensorstore.array(array[region]).write(source).result()
        except (OSError, ValueError) as error:
          raise CheckpointError(
              f"Stack {stack!r}, {slot or 'table'}: {self._where} is damaged:"
              f" {error}"
          ) from error
      self._current = ((stack, slot), array)
    return self._current[1]

  def _find_prefix(self, layer: _orbax_tree.Keys | None) -> _orbax_tree.Keys:
    found = {}
    for keys in self.tree.keys():
      if TABLES_KEY not in keys:
        continue
      end = keys.index(TABLES_KEY) + 1
      if layer is not None and layer != keys[: end - 1]:
        continue
      # A stack may be called "value", too.
      if (
          keys[end : end + 1] == (_VALUE_KEY,)
          and keys[end + 1 : end + 2] != ("table",)
          and keys[end + 1 : end + 2] != ("slot",)
      ):
        end += 1
      found.setdefault(keys[:end])
    if not found:
      of_layer = ""
      if layer is not None:
        of_layer = f" of a layer {'.'.join(layer)!r}"
      raise ValueError(
          f"{self._where} has no {TABLES_KEY!r}{of_layer}: it is no checkpoint"
          f" of a model with tables. It has {_names(self.tree.keys())}."
      )
    if len(found) > 1:
      raise ValueError(
          f"{self._where} has tables of several layers, {_names(found)}, and"
          " one layer can be converted. Restore it with restore_checkpoint of"
          " lib/flax/nnx/checkpoint_utils.py, on any devices, and save each"
          " layer with checkpoint.save(path, layer.table_variables(),"
          " layer.feature_specs)."
      )
    return next(iter(found))

  def _open_stacks(self) -> dict[tuple[str, str | None], Any]:
    """(stack, slot) -> its array, checked against the message."""
    stores = {}
    problems = []
    for stack in self._placements:
      own = {
          keys[len(self.prefix) + 1 :]: keys
          for keys in self.table_keys()
          if keys[len(self.prefix)] == stack and self.tree.is_array(keys)
      }
      if ("table",) not in own:
        found = sorted({keys[len(self.prefix)] for keys in self.table_keys()})
        problems.append(
            f"it has no table of stack {stack!r}, which its embedding_spec"
            f" names, only of {found}."
        )
        continue
      for rest, keys in own.items():
        if rest == ("table",):
          slot = None
        elif rest[0] == "slot":
          slot = rest[1]
        else:
          if rest[0] == STATE_KEY:
            self.states[stack] = self.tree.read(keys)
          continue
        store = self.tree.open(keys)
        placement = self._of_slot(stack, store)
        shape = (placement.num_rows, placement.embedding_dim)
        if (math.prod(store.shape[:-1]), *store.shape[-1:]) != shape:
          problems.append(
              f"stack {stack!r}, {slot or 'table'}: has shape"
              f" {tuple(store.shape)}, and its embedding_spec says {shape}."
          )
        stores[stack, slot] = store
    unknown = sorted(
        {keys[len(self.prefix)] for keys in self.table_keys()}
        - set(self._placements)
    )
    if unknown:
      problems.append(
          f"it has stacks {unknown}, which its embedding_spec does not name."
      )
    if problems:
      raise CheckpointError(
          "\n".join(f"{self._where}: {problem}" for problem in problems)
      )
    return stores

  def _of_slot(
      self, stack: str, store: tensorstore.TensorStore
  ) -> _placement.StackPlacement:
    """The placement, of one number per row if the array has one."""
    placement = self._placements[stack]
    is_narrow = store.shape[-1:] == (1,) and placement.embedding_dim > 1
    return placement.one_column() if is_narrow else placement

  def _describe(self) -> _tables_json.SavedTables:
    tables = {}
    messages = {
        table.table_name: table
        for stack in self.message.stacked_table_specs
        for table in stack.table_specs
    }
    for stack, placement in self._placements.items():
      slots = {
          slot: store
          for (of, slot), store in self._stores.items()
          if of == stack
      }
      store = slots.pop(None)
      for table in placement.tables:
        message = messages[table.name]
        tables[table.name] = _tables_json.saved_table(
            rows=table.vocabulary_size,
            columns=table.embedding_dim,
            dtype=store.dtype.name,
            slots={
                slot: 1
                if self._of_slot(stack, of_slot).embedding_dim == 1
                else table.embedding_dim
                for slot, of_slot in slots.items()
            },
            updates=self._updates(stack),
            optimizer=_as_json(message.optimizer),
            combiner=message.combiner,
        )
    return _tables_json.SavedTables(
        tables=tables, embedding_spec=_as_json(self.message)
    )

  def _updates(self, stack: str) -> int | None:
    """How often its tables were updated, if state or seal count it."""
    if stack in self.states:
      return int(self.states[stack][0])
    keys = seal_keys(self.tree, self.prefix)
    seal = () if keys is None else read_seal(self.tree, keys)
    if len(seal) < SEAL_NUMBERS:
      return None
    low, high = seal[SEAL_NUMBERS - 2 : SEAL_NUMBERS]
    return int(low) + int(high) * 2**16


class _LaidDownRows:
  """The rows of a table, of a stack that is laid down when they are read."""

  def __init__(self, checkpoint, stack, slot, placement, table, store):
    self._checkpoint = checkpoint
    self._key = (stack, slot)
    self._placement = placement
    self._table = table
    self.rows = table.vocabulary_size
    self.columns = table.embedding_dim
    self.dtype = np.dtype(store.dtype.numpy_dtype)
    self.block_rows = _row_blocks.rows_per_block(
        self.rows, self.columns * self.dtype.itemsize, _row_blocks.BLOCK_BYTES
    )

  def blocks(self, ranges: Sequence[_row_blocks.Range]):
    array = self._checkpoint.lay_down(*self._key)
    rows = _host_stacks.HostStackRows(array, self._placement, self._table)
    yield from rows.blocks(ranges)


def seal_keys(
    tree: _orbax_tree.Tree, prefix: _orbax_tree.Keys
) -> _orbax_tree.Keys | None:
  """The leaf with the seal of the tables at `prefix`, if there is one."""
  parent = prefix[: prefix.index(TABLES_KEY)] + (SEAL_KEY,)
  for keys in (parent, (*parent, _VALUE_KEY)):
    if keys in tree.keys() and tree.is_array(keys):
      return keys
  return None


def read_seal(tree: _orbax_tree.Tree, keys: _orbax_tree.Keys) -> np.ndarray:
  return tree.read(keys)


def is_stacked_checkpoint(path: str, embedding_spec_key: str) -> bool:
  """Whether there is a message of stacks in the directory of a step."""
  return bool(_files(path, embedding_spec_key))


def read_message(path: str, key: str) -> pb.EmbeddingSpecProto:
  """The message of an item.

  Raises:
    CheckpointError: it is not there, or cannot be read.
  """
  files = _files(path, key)
  for name in files:
    text = (_zarr_rows.Directory(path) / key).read_file(name)
    try:
      return text_format.Parse(text.decode(), pb.EmbeddingSpecProto())
    except (UnicodeDecodeError, text_format.ParseError) as error:
      raise CheckpointError(
          f"{path}/{key}/{name} is not an EmbeddingSpecProto as text: {error}"
      ) from error
  raise ValueError(f'No "{key}" found in {path}.')


def message_file(path: str, key: str) -> str | None:
  """The name of the file with the message; writers choose it."""
  return next(iter(_files(path, key)), None)


def _files(path: str, key: str) -> list[str]:
  names = (_zarr_rows.Directory(path) / key).file_names()
  return [name for name in names if name != "commit_success.txt"]


def open_item(path: str, key: str) -> _orbax_tree.Tree:
  """An item that is a tree.

  Raises:
    ValueError: there is none.
    CheckpointError: it is damaged.
  """
  directory = _zarr_rows.Directory(path) / key
  if directory.read_file(_orbax_tree.METADATA) is None:
    raise ValueError(f'No "{key}" found in {path}.')
  return _orbax_tree.Tree(directory)


def step_directory(path: str, step: int | None = None) -> tuple[str, int]:
  """The directory of a step, and the step, of what a manager of orbax wrote.

  Args:
    path: of the manager.
    step: None: the newest.

  Raises:
    ValueError: there is none.
  """
  names = [name for name in _listed(path) if name.isdecimal()]
  if not names:
    raise ValueError(f"No checkpoints found in {path}.")
  by_step = {int(name): name for name in names}
  if step is None:
    step = max(by_step)
  if step not in by_step:
    raise ValueError(
        f"Step {step} not found in {path}, which has {sorted(by_step)}."
    )
  return f"{path.rstrip('/')}/{by_step[step]}", step


def _listed(path: str) -> Sequence[str]:
  if "://" not in path:
    return os.listdir(path) if os.path.isdir(path) else ()
  return _zarr_rows.Directory(path).directory_names()


def _names(keys: Mapping[Any, Any] | Sequence[Any]) -> str:
  return ", ".join(repr(".".join(k)) for k in keys) or "nothing"


def _as_json(message: Any) -> dict[str, Any]:
  return json_format.MessageToDict(message, preserving_proto_field_name=True)
