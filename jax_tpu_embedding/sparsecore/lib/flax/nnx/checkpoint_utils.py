# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checkpoints of NNX models with stacked tables, as jax_tpu_embedding 0.1 does.

    manager = create_checkpoint_manager(cp_path=path, cp_options=options)
    save_checkpoint(cp_manager=manager, step=100, model=model, ...)
    restore_checkpoint(cp_manager=manager, model=model, optimizer=optimizer)

For programs that have such checkpoints. lib/checkpoint has what needs no
message of specs, and no conversion. Both restore to any devices and stacks:
rows go by the message that is saved beside the tables, never by shapes.

Needs the extra `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import tarfile
import threading
from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _orbax_tree
from jax_tpu_embedding.sparsecore.lib.checkpoint import _path_lock
from jax_tpu_embedding.sparsecore.lib.checkpoint import _restore
from jax_tpu_embedding.sparsecore.lib.checkpoint import _stacked_checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import convert
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import orbax.checkpoint as ocp

_MODEL_KEY = "model"
_OPTIMIZER_KEY = "optimizer"
_EMBEDDING_SPEC_KEY = "embedding_spec"
# What layers keep beside dense parameters.
_OF_TABLES = (
    _stacked_checkpoint.TABLES_KEY,
    _stacked_checkpoint.SEAL_KEY,
    "update_anchor",
)
# Where what is built and tested may leave files.
_OUTPUTS = "TEST_UNDECLARED_OUTPUTS_DIR"

_recompute_target_specs = convert.plan_specs
_get_table_specs = embedding.get_table_specs


class TargetTopology(NamedTuple):
  """The devices of a job.

  Attributes:
    num_global_devices: of all processes.
    num_sc_per_device: SparseCores of each.
    device_kind: for information.
  """

  num_global_devices: int
  num_sc_per_device: int
  device_kind: str | None = None


def decompress_checkpoint(checkpoint_path: str) -> str:
  """Unpacks a .tgz; returns the directory.

  Raises:
    ValueError: the environment variable that says where files may be left,
      TEST_UNDECLARED_OUTPUTS_DIR, is not set.
  """
  outputs = os.environ.get(_OUTPUTS)
  if not outputs:
    raise ValueError(
        f"The environment variable {_OUTPUTS} is not set: it says where"
        f" {checkpoint_path} is to be unpacked."
    )
  name = pathlib.Path(checkpoint_path).name.removesuffix(".tgz")
  target = pathlib.Path(outputs, "decompressed_checkpoints", name)
  target.mkdir(parents=True, exist_ok=True)
  with tarfile.open(checkpoint_path) as archive:
    archive.extractall(target, filter="data")
  # An archive may have the directory, or what is in it.
  inner = target / name
  return str(inner if list(target.iterdir()) == [inner] else target)


def create_checkpoint_manager(
    *,
    cp_path: str | os.PathLike[str],
    cp_options: ocp.CheckpointManagerOptions | None,
    model_key: str = _MODEL_KEY,
    optimizer_key: str = _OPTIMIZER_KEY,
    embedding_spec_key: str = _EMBEDDING_SPEC_KEY,
) -> ocp.CheckpointManager:
  """A manager of orbax for the three items of such checkpoints."""
  registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
  for key in (model_key, optimizer_key):
    handler = ocp.StandardCheckpointHandler()
    registry.add(key, ocp.args.StandardSave, handler)
    registry.add(key, ocp.args.StandardRestore, handler)
  handler = ocp.ProtoCheckpointHandler()
  registry.add(embedding_spec_key, ocp.args.ProtoSave, handler)
  registry.add(embedding_spec_key, ocp.args.ProtoRestore, handler)
  return ocp.CheckpointManager(
      cp_path, options=cp_options, handler_registry=registry
  )


def save_checkpoint(
    *,
    cp_manager: ocp.CheckpointManager,
    step: int,
    model: nnx.Module,
    optimizer: nnx.Optimizer,
    feature_specs: embedding.Nested[embedding_spec.FeatureSpec],
    num_global_devices: int,
    num_sc_per_device: int,
    model_key: str = _MODEL_KEY,
    optimizer_key: str = _OPTIMIZER_KEY,
    embedding_spec_key: str = _EMBEDDING_SPEC_KEY,
) -> None:
  """Saves a model, its optimizer, and how its tables are stacked.

  Args:
    cp_manager: of create_checkpoint_manager. If it is asynchronous, wait for it.
    step: of the checkpoint.
    model: stays as it is. Tables in jax.Refs are copied.
    optimizer: stays as it is.
    feature_specs: of all layers with tables in the model.
    num_global_devices: for which the specs were prepared.
    num_sc_per_device: for which the specs were prepared.
    model_key: the item for the model.
    optimizer_key: the item for the optimizer.
    embedding_spec_key: the item for the message of the specs.

  Raises:
    ValueError: the specs were prepared for other devices, or another job saves
      this step to the same directory.
    CheckpointError: the directory cannot be written to.
  """
  message = embedding.create_proto_from_feature_specs(
      _table_variables.planned(
          feature_specs, num_global_devices * num_sc_per_device
      ),
      num_global_devices,
      num_sc_per_device,
  )
  agreement = _agreement.Agreement(
      "step", [ValueError, convert.CheckpointError]
  )
  with contextlib.ExitStack() as until_saved:
    with agreement.stage():
      if agreement.is_first:
        path = f"{os.fspath(cp_manager.directory)}/{step}"
        until_saved.enter_context(_path_lock.locked(path))
    cp_manager.save(
        step,
        args=ocp.args.Composite(
            **{
                model_key: ocp.args.StandardSave(
                    _without_refs(nnx.state(model))
                ),
                optimizer_key: ocp.args.StandardSave(
                    _without_refs(nnx.state(optimizer, nnx.OptState))
                ),
                embedding_spec_key: ocp.args.ProtoSave(message),
            }
        ),
    )
    threading.Thread(
        target=_release_when_saved, args=(cp_manager, until_saved.pop_all())
    ).start()


def _release_when_saved(
    manager: ocp.CheckpointManager, until_saved: contextlib.ExitStack
) -> None:
  # What went wrong is raised in the caller's thread, too.
  with until_saved, contextlib.suppress(Exception):
    manager.wait_until_finished()


def _without_refs(state: Any) -> Any:
  return jax.tree.map(
      lambda leaf: leaf[...] if isinstance(leaf, jax.Ref) else leaf, state
  )


def restore_checkpoint(
    *,
    cp_manager: ocp.CheckpointManager | None = None,
    input_checkpoint_path: str | os.PathLike[str] | None = None,
    step: int | None = None,
    model: nnx.Module,
    optimizer: nnx.Optimizer,
    model_key: str = _MODEL_KEY,
    optimizer_key: str = _OPTIMIZER_KEY,
    embedding_spec_key: str = _EMBEDDING_SPEC_KEY,
) -> None:
  """Sets a model and its optimizer to what a checkpoint has.

  Tables go to wherever the layers of the model have them: the checkpoint may be
  of other devices or stacks.

  Args:
    cp_manager: of the directory with the checkpoints; or
    input_checkpoint_path: that directory, with steps that are named by their
      numbers. Neither: nothing is done.
    step: default: the newest.
    model: mutated.
    optimizer: mutated.
    model_key: the item with the model.
    optimizer_key: the item with the state of the optimizer.
    embedding_spec_key: the item with the message of the specs.

  Raises:
    ValueError: there are no checkpoints, or no such step or item; or what they
      have does not fit the model. Nothing was changed.
    CheckpointError: the checkpoint is damaged. The message names tables that
      were overwritten.
  """
  if cp_manager is not None:
    path = _path_of_step(cp_manager, step)
  elif input_checkpoint_path is not None:
    path, _ = _stacked_checkpoint.step_directory(
        os.fspath(input_checkpoint_path), step
    )
  else:
    return
  _restore_model(
      path,
      model,
      optimizer,
      dict(_layers(model)),
      {},
      (model_key, optimizer_key, embedding_spec_key),
  )


def _path_of_step(manager: ocp.CheckpointManager, step: int | None) -> str:
  """The directory of a step, or of the newest one, by the manager's names."""
  manager.wait_until_finished()
  # Another process may have saved.
  manager.reload()
  if step is None:
    step = manager.latest_step()
  if step is None:
    raise ValueError(f"No checkpoints found in {manager.directory}.")
  if step not in manager.all_steps():
    raise ValueError(
        f"Step {step} not found in {manager.directory}, which has"
        f" {sorted(manager.all_steps())}."
    )
  # Nothing public in orbax 0.12 says it.
  names = manager._step_name_format  # pylint: disable=protected-access
  return os.fspath(names.find_step(manager.directory, step).path)


def restore_cross_topology_checkpoint(
    *,
    cross_topology_checkpoint_restore_path: str | os.PathLike[str] | None,
    model: nnx.Module,
    optimizer: nnx.Optimizer,
    target_feature_specs: embedding.Nested[embedding_spec.FeatureSpec],
    num_global_devices: int,
    num_sc_per_device: int,
    model_key: str = _MODEL_KEY,
    optimizer_key: str = _OPTIMIZER_KEY,
    embedding_spec_key: str = _EMBEDDING_SPEC_KEY,
    embedding_layer_name: str | None = None,
    restore_step: int | None = None,
) -> None:
  """restore_checkpoint, for one layer whose specs are given.

  Args:
    cross_topology_checkpoint_restore_path: the directory with the checkpoints;
      None: nothing is done.
    model: mutated.
    optimizer: mutated.
    target_feature_specs: those that the layer was made with.
    num_global_devices: of this job.
    num_sc_per_device: of this job.
    model_key: the item with the model.
    optimizer_key: the item with the state of the optimizer.
    embedding_spec_key: the item with the message of the specs.
    embedding_layer_name: the attribute of the model that is the layer; None:
      the one that is a SparseCoreEmbed.
    restore_step: default: the newest.

  Raises:
    ValueError: as restore_checkpoint; the model has no such layer; or the specs
      are not those of these devices.
    CheckpointError: as restore_checkpoint.
  """
  if cross_topology_checkpoint_restore_path is None:
    return
  name, layer = _layer_of(model, embedding_layer_name)
  embedding.create_proto_from_feature_specs(
      _table_variables.planned(
          target_feature_specs, num_global_devices * num_sc_per_device
      ),
      num_global_devices,
      num_sc_per_device,
  )
  path, _ = _stacked_checkpoint.step_directory(
      os.fspath(cross_topology_checkpoint_restore_path), restore_step
  )
  _restore_model(
      path,
      model,
      optimizer,
      {(name,): layer},
      {(name,): target_feature_specs},
      (model_key, optimizer_key, embedding_spec_key),
  )


def convert_cross_topology_checkpoint(
    *,
    input_checkpoint_path: str | os.PathLike[str] | None,
    output_checkpoint_path: str | os.PathLike[str] | None,
    target_topology: TargetTopology | None = None,
    target_batch_size: int | None = None,
    model_key: str = _MODEL_KEY,
    optimizer_key: str = _OPTIMIZER_KEY,
    embedding_spec_key: str = _EMBEDDING_SPEC_KEY,
    restore_step: int | None = None,
    save_step: int | None = None,
    target_feature_specs: (
        embedding.Nested[embedding_spec.FeatureSpec] | None
    ) = None,
) -> None:
  """Writes a checkpoint for other devices, on a machine without any.

  Stacks are [num_shards, rows, D] there; without a topology tables and slots are
  [vocabulary_size, embedding_dim], by the names of tables, and the message is
  that of the input. Padding is zero. All else is copied.

  Args:
    input_checkpoint_path: a directory with checkpoints; None: nothing is done.
    output_checkpoint_path: a directory for checkpoints; None: nothing is done.
    target_topology: of the job that is to read it; None: tables are not stacked.
    target_batch_size: of that job; default: as it was.
    model_key: the item with the model.
    optimizer_key: an item that is copied, as all others are.
    embedding_spec_key: the item with the message of the specs.
    restore_step: default: the newest.
    save_step: default: the same.
    target_feature_specs: prepared for that job; default: as auto_stack_tables
      does.

  Raises:
    ValueError: there are no checkpoints, or no such step or item, or no tables.
    CheckpointError: the input is damaged, or the output cannot be written.
  """
  del optimizer_key
  if input_checkpoint_path is None or output_checkpoint_path is None:
    return
  path, step = _stacked_checkpoint.step_directory(
      os.fspath(input_checkpoint_path), restore_step
  )
  options = {"layout": "unstacked"}
  if target_topology is not None:
    options = {
        "layout": "stacked",
        "num_devices": target_topology.num_global_devices,
        "num_sc_per_device": target_topology.num_sc_per_device,
        "batch_size": target_batch_size,
        "feature_specs": target_feature_specs,
        "shards_first": True,
    }
  output = os.fspath(output_checkpoint_path).rstrip("/")
  convert.convert(
      path,
      f"{output}/{step if save_step is None else save_step}",
      model_key=model_key,
      embedding_spec_key=embedding_spec_key,
      **options,
  )


def _layers(
    model: nnx.Module,
) -> Iterator[tuple[tuple[str, ...], embed.SparseCoreEmbed]]:
  for path, module in nnx.iter_modules(model):
    if isinstance(module, embed.SparseCoreEmbed):
      yield tuple(map(str, path)), module


def _layer_of(
    model: nnx.Module, name: str | None
) -> tuple[str, embed.SparseCoreEmbed]:
  """The attribute of a model that is its layer with tables."""
  layers = {
      attribute: value
      for attribute, value in vars(model).items()
      if isinstance(value, embed.SparseCoreEmbed)
  }
  if name is None and len(layers) == 1:
    return next(iter(layers.items()))
  if name is None:
    raise ValueError(
        f"{type(model).__name__} has {len(layers)} attributes that are a"
        f" SparseCoreEmbed, {sorted(layers)}, not one. Pass"
        " embedding_layer_name."
    )
  if not hasattr(model, name):
    raise ValueError(
        f"{type(model).__name__} has no attribute {name!r}; those that are a"
        f" SparseCoreEmbed are {sorted(layers)}."
    )
  if name not in layers:
    raise ValueError(
        f"{type(model).__name__}.{name} is a"
        f" {type(getattr(model, name)).__name__}, not a SparseCoreEmbed."
    )
  return name, layers[name]


def _restore_model(path, model, optimizer, layers, specs, keys) -> None:
  """Checks all that is to be restored, and then does it."""
  model_key, optimizer_key, embedding_spec_key = keys
  tables = {
      at: _LayerRestore(
          at, layer, specs.get(at, layer.feature_specs), path, model_key,
          embedding_spec_key,
      )
      for at, layer in layers.items()
  }  # fmt: skip
  # Of a model without tables, too.
  _stacked_checkpoint.read_message(path, embedding_spec_key)
  of_layers = tuple(layers)
  dense = _Leaves(
      nnx.state(model, lambda at, _: not _is_of_tables(at, of_layers)),
      _stacked_checkpoint.open_item(path, model_key),
      of_layers,
  )
  state = _Leaves(
      nnx.state(optimizer, nnx.OptState),
      _stacked_checkpoint.open_item(path, optimizer_key),
  )
  new_model, new_state = dense.read(), state.read()
  for restore in tables.values():
    restore.run()
  nnx.update(model, new_model)
  nnx.update(optimizer, new_state)


class _LayerRestore:
  """The tables of a layer, from a checkpoint."""

  def __init__(
      self, at, layer, feature_specs, path, model_key, embedding_spec_key
  ):
    self._layer = layer
    self._feature_specs = feature_specs
    self._checkpoint = _stacked_checkpoint.StackedCheckpoint(
        path,
        model_key=model_key,
        embedding_spec_key=embedding_spec_key,
        layer=at,
    )
    self._restores = _restore.plan(
        self._checkpoint.saved, _restore.specs_of(feature_specs)
    )

  def run(self) -> None:
    """Writes them into the layer; arrays of it are consumed."""
    saved = self._checkpoint.saved.tables
    rows = self._checkpoint.sources()
    variables = _restore.fill(
        self._layer.table_variables(),
        self._feature_specs,
        self._restores,
        {
            variable: source
            for variable, source in rows.items()
            if variable.slot is None
            or variable.slot in self._restores[variable.table].slots
        },
        updates={name: table.updates for name, table in saved.items()},
        num_sc_per_device=self._layer.num_sc_per_device,
    )
    self._layer.set_table_variables(variables)


class _Leaves:
  """Arrays of a state of NNX, and where a checkpoint has them.

  Args:
    state: of a model or an optimizer.
    tree: the item of the checkpoint.
    of_layers: paths of layers, whose tables in the item are left out.

  Raises:
    ValueError: what is there and what is needed differ.
  """

  def __init__(
      self,
      state: nnx.State,
      tree: _orbax_tree.Tree,
      of_layers: tuple[tuple[str, ...], ...] = (),
  ):
    self._tree = tree
    leaves, self._structure = jax.tree.flatten_with_path(state)
    self._leaves = {
        tuple(_key_name(key) for key in path): leaf for path, leaf in leaves
    }
    there = {
        keys
        for keys in tree.keys()
        if tree.is_array(keys) and not _is_of_tables(keys, of_layers)
    }
    self._found = {}
    for keys in self._leaves:
      # Versions of NNX and orbax differ in whether there is a last "value".
      for name in (keys, (*keys, "value"), keys[:-1]):
        if name in there:
          self._found[keys] = name
          break
    missing = set(self._leaves) - set(self._found)
    unused = there - set(self._found.values())
    problems = [f"it lacks {'.'.join(keys)}" for keys in sorted(missing)]
    problems += [
        f"it has {'.'.join(keys)}, which is not in this program"
        for keys in sorted(unused)
    ]
    for keys, name in self._found.items():
      expected = _raw(self._leaves[keys])
      store = tree.open(name)
      found = (tuple(store.shape), store.dtype.name)
      wanted = (tuple(np.shape(expected)), np.dtype(expected.dtype).name)
      if found != wanted:
        problems.append(
            f"{'.'.join(keys)} is {found[1]}{list(found[0])}, and"
            f" {wanted[1]}{list(wanted[0])} in this program"
        )
    if problems:
      raise ValueError(
          "The checkpoint is of another model: " + "; ".join(problems) + "."
      )

  def read(self) -> nnx.State:
    """The state with what the checkpoint has, on the devices where it was."""
    return jax.tree.unflatten(
        self._structure,
        [self._read(keys, leaf) for keys, leaf in self._leaves.items()],
    )

  def _read(self, keys: _orbax_tree.Keys, leaf: Any) -> Any:
    value = self._tree.read(self._found[keys])
    if isinstance(leaf, np.ndarray):
      return value
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    # What is committed to no device moves to where it is used.
    return jax.device_put(value, leaf.sharding if leaf.committed else None)


def _key_name(key: Any) -> str:
  for attribute in ("key", "name", "idx"):
    if hasattr(key, attribute):
      return str(getattr(key, attribute))
  return str(key)


def _raw(leaf: Any) -> Any:
  """A random key as the numbers that it is saved as."""
  if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(leaf)
  return leaf


def _is_of_tables(
    path: tuple[Any, ...], layers: tuple[tuple[str, ...], ...]
) -> bool:
  """Whether a leaf is what a layer keeps of its tables."""
  return any(
      tuple(map(str, path[: len(layer)])) == layer
      and str(path[len(layer)]) in _OF_TABLES
      for layer in layers
      if len(path) > len(layer)
  )
