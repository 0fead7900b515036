# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Converts checkpoints, on a machine without accelerators.

    bazel run //jax_tpu_embedding/sparsecore/lib/checkpoint:convert -- \
        --from=/old/100 --to=/new/100
    bazel run //jax_tpu_embedding/sparsecore/lib/checkpoint:convert -- \
        --from=/new/100 --to=/for_2x4/100 --layout=stacked --devices=2 \
        --sparsecores=4

It reads checkpoints of jax_tpu_embedding 0.1, with stacked tables in the item
`model` and an EmbeddingSpecProto in `embedding_spec`, and those of this library.
It writes either: "logical", tables as their users declared them in the item
`tables`, from which checkpoint.restore takes them to any devices; or "stacked",
for given devices. All else in the checkpoint is copied as it is.

Memory is that of a chunk of the source, which is a device's part of a stack as
its writer cut it, and some blocks. A stack at a time is in a file of scratch.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import os
import shutil
import sys
from typing import Any

from google.protobuf import json_format
from google.protobuf import text_format
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _chunk_files
from jax_tpu_embedding.sparsecore.lib.checkpoint import _host_stacks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _orbax_tree
from jax_tpu_embedding.sparsecore.lib.checkpoint import _path_lock
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _save
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stacked_checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import _target_specs
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.checkpoint import orbax_handlers
from jax_tpu_embedding.sparsecore.lib.core import standard_output
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.plan import _places
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb
import numpy as np
from orbax.checkpoint import v1 as ocp

CheckpointError = _row_blocks.CheckpointError
Variable = _row_blocks.Variable

# The message and the tables of a message, planned for other devices.
plan_specs = _target_specs.plan
LAYOUTS = ("logical", "stacked", "unstacked")
# What orbax names the file of a message.
_MESSAGE_FILE = "proto.pbtxt"
# In what orbax keeps beside the tree of a logical checkpoint: where its tables
# were, and whether with states, for the way back.
_TABLES_AT = "jax_tpu_embedding.tables_at"
_HAS_STATES = "jax_tpu_embedding.has_states"


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    layout: str = "logical",
    num_devices: int | None = None,
    num_sc_per_device: int | None = None,
    batch_size: int | None = None,
    feature_specs: Any = None,
    model_key: str = "model",
    embedding_spec_key: str = "embedding_spec",
    scratch: str | None = None,
    shards_first: bool = False,
) -> None:
  """Writes a checkpoint in another layout.

  Args:
    source: the directory of one step, of either layout.
    target: a new directory.
    layout: "logical", "stacked"; or "unstacked", which is as stacked, but under
      the names of tables, [vocabulary_size, embedding_dim] each, and with the
      message of the source.
    num_devices: of a job that is to read a stacked one.
    num_sc_per_device: SparseCores of each.
    batch_size: of that job; None: as it was. How tables are stacked may depend
      on it.
    feature_specs: prepared for that job, with the types and slots of the
      source; None: tables are stacked as auto_stack_tables does, by the message
      of the source.
    model_key: the item with the tables of a stacked checkpoint.
    embedding_spec_key: the item with the message of a stacked checkpoint.
    scratch: a directory with room for some stacks; None: that of `target`.
    shards_first: whether stacks are [num_shards, rows, D], in place of
      [num_shards * rows, D].

  Raises:
    ValueError: the arguments contradict each other, items would have one name,
      or there is something at `target`, or about to be.
    CheckpointError: the source is damaged, or `target` cannot be written. There
      is no target then.
  """
  if layout not in LAYOUTS:
    raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}.")
  for name, flag, number in (
      ("num_devices", "--devices", num_devices),
      ("num_sc_per_device", "--sparsecores", num_sc_per_device),
      ("batch_size", "--batch", batch_size),
  ):
    if number is not None and number < 1:
      raise ValueError(f"{name} ({flag}) must be positive, got {number}.")
  source = _zarr_rows.absolute(source, "source")
  target = _zarr_rows.absolute(target, "target")
  if scratch is None and "://" not in target:
    scratch = os.path.dirname(target)
  _check_keys(model_key, embedding_spec_key)
  found = _open(source, model_key, embedding_spec_key, scratch)
  if model_key == _tables_json.ITEM and not (
      found.is_stacked and layout != "logical"
  ):
    raise ValueError(
        f"model_key is {model_key!r}, which is the item with the tables of a"
        " logical checkpoint. Give the item with the rest of the model another"
        " name."
    )
  if layout == "logical":
    items = _logical_items(found, model_key)
  else:
    message, placements = _plan_stacks(
        found, layout, num_devices, num_sc_per_device, batch_size, feature_specs
    )
    items = _stacked_items(
        found, message, placements, model_key, scratch, shards_first
    )
    items[embedding_spec_key] = _Item(
        functools.partial(
            _write_message, message=message, name=found.message_file
        )
    )
  converted = {
      model_key,
      embedding_spec_key if found.is_stacked else _tables_json.ITEM,
  }
  for name in _zarr_rows.Directory(source).directory_names():
    if name in converted:
      continue
    if name in items:
      raise ValueError(
          f"{source} has an item {name!r} beside its tables, and the target has"
          " an item of this name for them. Rename it before."
      )
    items[name] = _Item(functools.partial(_copy_item, f"{source}/{name}"))
  # To the logical layout is saving, which tells its own.
  with found.progress, _path_lock.locked(target):
    try:
      with ocp.Context(checkpointables_options=_of_any_name()):
        ocp.save_checkpointables(target, items)
    except OSError as error:  # of files and directories that orbax makes
      raise CheckpointError(f"Cannot write {target}: {error}") from error


def _check_keys(model_key: str, embedding_spec_key: str) -> None:
  if model_key == embedding_spec_key:
    raise ValueError(
        f"model_key and embedding_spec_key are both {model_key!r}, and one item"
        " cannot have the tables and the message."
    )
  for name in (model_key, embedding_spec_key):
    if name in ("", ".", "..") or "/" in name:
      raise ValueError(
          f"{name!r} cannot be the name of an item, which is a directory in"
          " that of the step."
      )


@dataclasses.dataclass(kw_only=True)
class _Source:
  """A checkpoint of either layout.

  Attributes:
    saved: the tables that it has.
    rows: of each variable; those of a stack follow each other.
    message: how its writer had stacked them.
    message_file: what that is called.
    tree: the item with what else the model has; None: there is none.
    table_keys: what of it are tables.
    prefix: where in it tables are, or were.
    has_states: whether stacks have what layers with jax.Refs keep beside them.
    is_stacked: of which layout it is.
    progress: of copying rows into stacks.
  """

  saved: _tables_json.SavedTables
  rows: Mapping[Variable, _row_blocks.RowSource]
  message: pb.EmbeddingSpecProto
  message_file: str
  tree: _orbax_tree.Tree | None
  table_keys: frozenset[_orbax_tree.Keys]
  prefix: _orbax_tree.Keys
  has_states: bool
  is_stacked: bool

  @functools.cached_property
  def progress(self) -> _progress.Progress:
    return _progress.Progress("converting", self.saved.num_bytes)


def _open(
    path: str, model_key: str, embedding_spec_key: str, scratch: str | None
) -> _Source:
  directory = _tables_json.find(path)
  if directory is None and _stacked_checkpoint.is_stacked_checkpoint(
      path, embedding_spec_key
  ):
    stacked = _stacked_checkpoint.StackedCheckpoint(
        path,
        model_key=model_key,
        embedding_spec_key=embedding_spec_key,
        scratch=scratch,
    )
    return _Source(
        saved=stacked.saved,
        rows=stacked.sources(),
        message=stacked.message,
        message_file=_stacked_checkpoint.message_file(path, embedding_spec_key),
        tree=stacked.tree,
        table_keys=frozenset(stacked.table_keys()),
        prefix=stacked.prefix,
        has_states=bool(stacked.states),
        is_stacked=True,
    )
  directory, saved = _tables_json.read(path)
  tree = _tree_beside_tables(path, model_key)
  beside = {} if tree is None else tree.custom_metadata
  prefix = beside.get(_TABLES_AT, [_stacked_checkpoint.TABLES_KEY])
  return _Source(
      saved=saved,
      rows={
          variable: directory.open_array(
              _tables_json.directory_of(variable),
              saved.array_format(variable),
              variable,
          )
          for variable in saved.variables()
      },
      message=json_format.ParseDict(
          saved.embedding_spec, pb.EmbeddingSpecProto()
      ),
      message_file=_MESSAGE_FILE,
      tree=tree,
      table_keys=frozenset(),
      prefix=tuple(prefix),
      has_states=beside.get(_HAS_STATES, False),
      is_stacked=False,
  )


def _tree_beside_tables(path: str, model_key: str) -> _orbax_tree.Tree | None:
  """What else the model of a logical checkpoint has; None: nothing.

  Raises:
    CheckpointError: there is an item of this name that is no tree. It would not
      be in the target.
  """
  item = _zarr_rows.Directory(path) / model_key
  if not item.all_file_names():
    return None
  try:
    return _orbax_tree.Tree(item)
  except CheckpointError as error:
    raise CheckpointError(
        f"{error} If {model_key!r} is not the item with the rest of the model,"
        " pass model_key (--model), the name of that item."
    ) from error


def _logical_items(found: _Source, model_key: str) -> dict[str, Any]:
  if not found.is_stacked:
    raise ValueError(
        "The checkpoint is logical: checkpoint.restore takes it to any devices."
        " To stack its tables, pass layout='stacked'."
    )
  items = {
      _tables_json.ITEM: orbax_handlers.Tables.from_rows(
          _save.Save(saved=found.saved, source_of=found.rows)
      )
  }
  others = set(found.tree.keys()) - found.table_keys
  if others or found.has_states or len(found.prefix) > 1:
    tree = _orbax_tree.NewTree(
        copied=found.tree,
        without=found.table_keys,
        custom_metadata={
            **found.tree.custom_metadata,
            _TABLES_AT: list(found.prefix),
            _HAS_STATES: found.has_states,
        },
    )
    items[model_key] = _Item(tree.write)
  return items


def _plan_stacks(
    found: _Source,
    layout: str,
    num_devices: int | None,
    num_sc_per_device: int | None,
    batch_size: int | None,
    feature_specs: Any,
) -> tuple[pb.EmbeddingSpecProto, list[_placement.StackPlacement] | None]:
  """The message to be written, and its stacks; None: there are none."""
  if layout == "unstacked":
    return found.message, None
  if not num_devices or not num_sc_per_device:
    raise ValueError(
        "A stacked checkpoint is for one number of devices: pass num_devices"
        " and num_sc_per_device (--devices, --sparsecores)."
    )
  if feature_specs is not None:
    message = embedding.create_proto_from_feature_specs(
        _table_variables.planned(
            feature_specs, num_devices * num_sc_per_device
        ),
        num_devices,
        num_sc_per_device,
    )
  else:
    if not found.message.stacked_table_specs:
      raise ValueError(
          "The checkpoint does not say how its tables were stacked, so there is"
          " nothing to plan by. Pass feature_specs, prepared for the job."
      )
    message, _ = plan_specs(
        found.message, num_devices, num_sc_per_device, batch_size
    )
  placements = [
      _placement.from_proto(stack) for stack in message.stacked_table_specs
  ]
  _target_specs.check_same_tables(found.saved, placements)
  if feature_specs is not None:
    _target_specs.check_same_kinds(
        found.saved, embedding.get_table_specs(feature_specs)
    )
  return message, placements


def _stacked_items(
    found: _Source,
    message: pb.EmbeddingSpecProto,
    placements: Sequence[_placement.StackPlacement] | None,
    model_key: str,
    scratch: str | None,
    shards_first: bool,
) -> dict[str, Any]:
  """The tree with tables in their places in it."""
  arrays, empty = {}, []
  counted = {
      variable: found.progress.of(rows) for variable, rows in found.rows.items()
  }
  if placements is None:
    for variable, rows in counted.items():
      keys = (*found.prefix, *variable.keys)
      arrays[keys] = functools.partial(_whole_table, rows, scratch)
    for name, table in found.saved.tables.items():
      if not table.slots:
        empty.append((*found.prefix, name, "slot"))
  else:
    for placement in placements:
      widest = max(
          (found.saved.tables[table.name] for table in placement.tables),
          key=lambda table: table.columns,
      )
      if not widest.slots:
        empty.append((*found.prefix, placement.name, "slot"))
      for slot in (None, *widest.slots):
        keys = (
            *found.prefix,
            *Variable(table=placement.name, slot=slot).keys,
        )
        # Tables of one column do not tell: their slots are taken for the common
        # kind, which is as wide as the stack.
        is_narrow = (
            slot is not None and widest.slots[slot] == 1 < widest.columns
        )
        arrays[keys] = functools.partial(
            _stack,
            counted,
            placement.one_column() if is_narrow else placement,
            slot,
            scratch,
            shards_first,
        )
    if found.has_states:
      arrays |= _states(found, message, placements)
  without = set(found.table_keys)
  seal = _seal_keys(found)
  if seal is not None:
    without.add(seal)
    if placements is not None:
      arrays[seal] = functools.partial(_seal, found.tree, seal, message)
  custom_metadata = {}
  if found.tree is not None:
    custom_metadata = dict(found.tree.custom_metadata)
    for name in (_TABLES_AT, _HAS_STATES):
      custom_metadata.pop(name, None)
  if placements is None:
    custom_metadata[_stacked_checkpoint.LAYOUT] = _stacked_checkpoint.UNSTACKED
  tree = _orbax_tree.NewTree(
      copied=found.tree,
      without=frozenset(without),
      arrays=arrays,
      empty=empty,
      custom_metadata=custom_metadata,
  )
  return {model_key: _Item(tree.write)}


def _stack(
    rows: Mapping[Variable, _row_blocks.RowSource],
    placement: _placement.StackPlacement,
    slot: str | None,
    scratch: str | None,
    shards_first: bool,
) -> np.ndarray:
  """The array of a stack; padding is zero."""
  sources = {
      table.name: rows[Variable(table=table.name, slot=slot)]
      for table in placement.tables
  }
  array = _host_stacks.scratch_array(
      (placement.num_rows, placement.embedding_dim),
      next(iter(sources.values())).dtype,
      scratch,
  )
  for table in placement.tables:
    source = sources[table.name]
    sink = _host_stacks.HostStackRows(array, placement, table)
    _copy_all(source, sink)
  if shards_first:
    return array.reshape(
        placement.num_shards, placement.rows_in_shard, placement.embedding_dim
    )
  return array


def _whole_table(
    source: _row_blocks.RowSource, scratch: str | None
) -> np.ndarray:
  array = _host_stacks.scratch_array(
      (source.rows, source.columns), source.dtype, scratch
  )
  _copy_all(source, _row_blocks.ArrayRows("table", array))
  return array


def _copy_all(source: _row_blocks.RowSource, sink: _row_blocks.RowSink) -> None:
  window = _row_blocks.Window(_save.HOST_BUFFER_BYTES)
  ranges = _row_blocks.ranges_of(source.rows, source.block_rows)
  _row_blocks.copy(source, sink, ranges, window)
  window.wait()


def _seal_keys(found: _Source) -> _orbax_tree.Keys | None:
  """The leaf with the seal of the tables, if there is one."""
  if found.tree is None:
    return None
  return _stacked_checkpoint.seal_keys(found.tree, found.prefix)


def _seal(
    tree: _orbax_tree.Tree,
    keys: _orbax_tree.Keys,
    message: pb.EmbeddingSpecProto,
) -> np.ndarray:
  """The seal of the same updates, of tables in other places."""
  seal = _stacked_checkpoint.read_seal(tree, keys)
  if len(seal) < _stacked_checkpoint.SEAL_NUMBERS:
    return seal
  places = _places_of(message).values()
  return np.concatenate(
      [
          seal[: _stacked_checkpoint.SEAL_NUMBERS],
          [number for of_tables in places for number in of_tables.values()],
      ]
  ).astype(seal.dtype)


def _states(
    found: _Source,
    message: pb.EmbeddingSpecProto,
    placements: Sequence[_placement.StackPlacement],
) -> dict[_orbax_tree.Keys, Any]:
  """The states of stacks whose tables are in other places.

  Raises:
    ValueError: tables of one stack were updated a different number of times.
  """
  arrays = {}
  for placement in placements:
    counts = {
        table.name: found.saved.tables[table.name].updates or 0
        for table in placement.tables
    }
    if len(set(counts.values())) > 1:
      raise ValueError(
          f"Stack {placement.name!r}: its tables were updated a different number"
          f" of times, {counts}, and one stack has one count. Pass"
          " feature_specs with these tables in stacks of their own."
      )
    count = next(iter(counts.values()))
    places = _places_of(message)[placement.name]
    state = np.array([count, *places.values()], np.int32)
    keys = (*found.prefix, placement.name, _stacked_checkpoint.STATE_KEY)
    arrays[keys] = functools.partial(np.asarray, state)
  return arrays


def _places_of(message: pb.EmbeddingSpecProto) -> dict[str, dict[str, int]]:
  """As layers check where tables are: stack name -> table name -> number."""
  # A replicated table is one shard, whatever the job is.
  num_scs = max(s.num_sparsecores for s in message.stacked_table_specs)
  return _places.places_by_stack(
      embedding_proto_utils.feature_specs_from_proto(message), num_scs
  )


class _Item:
  """An item that writes itself."""

  def __init__(self, write: Callable[[_zarr_rows.Directory], None]):
    self.write = write


class _ItemHandler(ocp.handlers.CheckpointableHandler):
  """Writes an item for orbax, which makes the directory and commits it."""

  async def save(
      self, directory: Any, checkpointable: _Item
  ) -> Awaitable[None]:
    path = await directory.await_creation()

    async def finish():
      checkpointable.write(_zarr_rows.Directory(str(path)))

    return finish()

  async def load(self, directory: Any, abstract_checkpointable: Any = None):
    raise NotImplementedError("Only written.")

  async def metadata(self, directory: Any) -> None:
    return None

  def is_handleable(self, checkpointable: Any) -> bool:
    return isinstance(checkpointable, _Item)

  def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
    return False


def _of_any_name() -> ocp.options.CheckpointablesOptions:
  """The handlers of items here, also where orbax has one for their name."""
  # In its own registry, "state" is a tree.
  registry = ocp.handlers.local_registry(include_global_registry=False)
  for handler in (_ItemHandler, orbax_handlers.TablesHandler):
    registry.add(handler)
  return ocp.options.CheckpointablesOptions(registry=registry)


def _write_message(
    directory: _zarr_rows.Directory, message: pb.EmbeddingSpecProto, name: str
) -> None:
  directory.write_file(name, text_format.MessageToString(message).encode())


def _copy_item(source: str, directory: _zarr_rows.Directory) -> None:
  """Copies the files of an item, and of directories in it, to the disk."""
  if "://" not in f"{source} {directory.path}":
    try:
      shutil.copytree(
          source, directory.path, dirs_exist_ok=True, copy_function=_copy_file
      )
      _chunk_files.sync(name for name, _, _ in os.walk(directory.path))
    except OSError as error:
      raise CheckpointError(
          f"Cannot copy {source} to {directory.path}: {error}"
      ) from error
    return
  files = _zarr_rows.Directory(source)
  for name in files.all_file_names():
    directory.write_file(name, files.read_file(name))


def _copy_file(source: str, target: str) -> None:
  shutil.copy2(source, target)
  with open(target, "rb") as file:
    os.fsync(file.fileno())


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the program; returns the exit status."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.checkpoint.convert",
      description="Converts checkpoints, on a machine without accelerators.",
  )
  add = parser.add_argument
  add("--from", dest="source", required=True, help="a directory of one step")
  add("--to", dest="target", required=True, help="a new directory")
  add("--layout", choices=LAYOUTS[:2], default="logical")
  add("--devices", type=int, help="of the job that reads a stacked one")
  add("--sparsecores", type=int, help="of each of these devices")
  add("--batch", type=int, help="of that job; default: as it was")
  add("--model", default="model", help="the item with stacked tables")
  add("--embedding_spec", default="embedding_spec", help="the item that says"
      " how they are stacked")  # fmt: skip
  add("--scratch", help="where a stack is laid down; default: beside --to")
  arguments = parser.parse_args(argv)
  # A job on this machine may have the accelerators.
  jax.config.update("jax_platforms", "cpu")
  try:
    convert(
        arguments.source,
        arguments.target,
        layout=arguments.layout,
        num_devices=arguments.devices,
        num_sc_per_device=arguments.sparsecores,
        batch_size=arguments.batch,
        model_key=arguments.model,
        embedding_spec_key=arguments.embedding_spec,
        scratch=arguments.scratch,
    )
  except (CheckpointError, ValueError) as error:
    print(f"convert: {error}", file=sys.stderr)
    return 1
  print(f"Converted to {arguments.target}, layout {arguments.layout}.")
  return 0


if __name__ == "__main__":
  standard_output.run(main)
