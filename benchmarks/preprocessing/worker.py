# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Converts batches with the `jax_tpu_embedding` of the interpreter it runs on.

In a process of its own (worker_process.py), so that two packages of one name
can be measured in turns. It uses the public interface alone, which both
packages have.

What a command does is in the docstring of the method of its name.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import sys
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

from benchmarks import turns

# The public entry takes the numbers of SparseCores that TPUs have. For others,
# the entry below it is measured.
_PUBLIC_SC_COUNTS = (2, 4)


def _make_specs(case: dict[str, Any]) -> dict[str, Any]:
  """Prepared specs, with the limits of `case`: stack -> three numbers."""
  global_batch = case["batch_size"] * case["global_device_count"]
  global_batch //= case["local_device_count"]
  num_sc_per_device = case["num_sc_per_device"]
  if num_sc_per_device not in _PUBLIC_SC_COUNTS:
    num_sc_per_device = _PUBLIC_SC_COUNTS[0]  # for the padding of tables only
  specs = {}
  for i, vocabulary in enumerate(case["vocabularies"]):
    table = embedding_spec.TableSpec(
        name=f"table_{i:03}",
        vocabulary_size=vocabulary,
        embedding_dim=8,
        initializer=jax.nn.initializers.zeros,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
        combiner=case["combiner"],
    )
    specs[f"feature_{i:03}"] = embedding_spec.FeatureSpec(
        name=f"feature_{i:03}",
        table_spec=table,
        input_shape=(global_batch, case["valencies"][i]),
        output_shape=(global_batch, 8),
    )
  sizes = (case["global_device_count"], num_sc_per_device)
  if case["stacked"]:
    names = [spec.table_spec.name for spec in specs.values()]
    table_stacking.stack_tables(specs, names, *sizes, stack_name="stack")
  embedding.prepare_feature_specs_for_training(
      specs, global_device_count=sizes[0], num_sc_per_device=sizes[1]
  )
  max_ids, max_unique_ids, required = {}, {}, {}
  for spec in specs.values():
    name = spec.table_spec.setting_in_stack.stack_name
    ids, unique_ids, cells_per_sc = case["limits"].get(
        name, case["limits"].get("*")
    )
    max_ids[name] = np.array([ids])
    max_unique_ids[name] = np.array([unique_ids])
    required[name] = np.array([cells_per_sc])
  embedding.update_preprocessing_parameters(
      specs,
      embedding.SparseDenseMatmulInputStats(
          max_ids_per_partition=max_ids,
          max_unique_ids_per_partition=max_unique_ids,
          required_buffer_size_per_sc=required,
      ),
      case["num_sc_per_device"],
  )
  return specs


def _read_inputs(case: dict[str, Any], directory: pathlib.Path):
  """Positional arguments for the data, each feature name -> array."""
  arguments = {"dense": 2, "ragged": 2, "sparse": 3}[case["form"]]
  inputs = tuple({} for _ in range(arguments))
  for i, valency in enumerate(case["valencies"]):
    name = f"feature_{i:03}"
    ids = np.load(directory / f"{i}.ids.npy")
    splits = np.load(directory / f"{i}.row_splits.npy")
    if case["form"] == "sparse":
      samples = np.repeat(np.arange(splits.size - 1), np.diff(splits))
      positions = np.arange(ids.size) - splits[samples]
      inputs[0][name] = np.stack([samples, positions], axis=1)
      inputs[1][name] = ids
      inputs[2][name] = np.array([splits.size - 1, np.diff(splits).max()])
      continue
    arrays = [ids]
    if case["has_weights"]:
      arrays.append(np.load(directory / f"{i}.weights.npy"))
    for argument, array in zip(inputs, arrays):
      if case["form"] == "dense":
        argument[name] = array.reshape(-1, valency)
      else:
        rows = np.empty(splits.size - 1, object)
        rows[:] = [array[b:e] for b, e in zip(splits, splits[1:])]
        argument[name] = rows
  if case["form"] != "sparse" and not case["has_weights"]:
    inputs = (inputs[0], None)
  return inputs


class Worker:
  """The commands."""

  def load(self, directory: str) -> dict[str, Any]:
    """Reads a case. Ends the use of the one before."""
    path = pathlib.Path(directory)
    case = json.loads((path / "case.json").read_text())
    self._specs = _make_specs(case)
    self._native_specs = list(self._specs.values())
    if hasattr(converter, "FeatureSpecs"):  # which reads them once
      self._native_specs = converter.FeatureSpecs(self._native_specs)
    self._inputs = _read_inputs(case, path)
    self._topology = (case["local_device_count"], case["global_device_count"])
    is_sparse = case["form"] == "sparse"
    self._entry = "preprocess_sparse_dense_matmul_" + (
        "input_from_sparse_tensor" if is_sparse else "input"
    )
    self._native_entry = "preprocess_sparse_dense_matmul_" + (
        "sparse_coo_input" if is_sparse else "input"
    )
    self._is_public = case["num_sc_per_device"] in _PUBLIC_SC_COUNTS
    self._keywords = {
        "num_sc_per_device": case["num_sc_per_device"],
        "enable_minibatching": case["enable_minibatching"],
    }
    # Numbers the batches as training does: it decides how often the
    # reference logs.
    self._batch_number = 0
    return {}

  def _step(self, call, arguments, keywords) -> Any:
    self._batch_number += 1
    return call(
        *arguments,
        *self._topology,
        batch_number=self._batch_number,
        **keywords,
    )

  def _call(
      self, public: bool, new_memory: bool = False, one_pass: bool = False
  ):
    """What is measured: its function, arguments and keywords."""
    keywords = dict(self._keywords)
    if one_pass:
      keywords["enable_minibatching"] = False
    if new_memory:  # A pool that keeps nothing.
      keywords["output_pool"] = converter.OutputPool(max_bytes=0)
    if public:
      arguments = (*self._inputs, self._specs)
      return getattr(embedding, self._entry), arguments, keywords
    arguments = [
        None if tree is None else list(tree.values()) for tree in self._inputs
    ]
    return (
        getattr(converter, self._native_entry),
        (*arguments, self._native_specs),
        keywords,
    )

  def run(
      self,
      calls: int,
      core: bool = False,
      new_memory: bool = False,
      one_pass: bool = False,
  ) -> dict[str, Any]:
    """Times `calls` calls; seconds per call.

    A call ends when its result is released: that takes time too, and training
    does it in every step.

    Args:
      calls: how many.
      core: the native function, without the Python above it.
      new_memory: into memory that no call had before.
      one_pass: without minibatching, whatever the case says.
    """
    call, arguments, keywords = self._call(
        self._is_public and not core, new_memory, one_pass
    )
    return turns.time_calls(
        lambda: self._step(call, arguments, keywords), calls
    )

  def save(self, directory: str) -> dict[str, Any]:
    """Converts once; writes the buffers, answers with the rest.

    Files: <stack>.<array>.npy with array in row_pointers, embedding_ids,
    sample_ids, gains.
    """
    result = self._step(*self._call(self._is_public))
    if self._is_public:
      inputs, stats = result
      buffers = inputs.sparse_dense_matmul_input
      num_minibatches = int(np.max(inputs.num_minibatches))
      required = stats.required_buffer_size_per_sc
      dropped = stats.id_drop_counters
    else:
      *buffers, num_minibatches, stats = result
      required = stats.required_buffer_sizes
      dropped = stats.dropped_id_count
    names = ("row_pointers", "embedding_ids", "sample_ids", "gains")
    for name, arrays in zip(names, buffers):
      for stack, array in arrays.items():
        path = pathlib.Path(directory, f"{stack}.{name}.npy")
        np.save(path, np.asarray(array))

    def lists(arrays):
      return {k: np.asarray(v).tolist() for k, v in arrays.items()}

    return {
        "num_minibatches": num_minibatches,
        "max_ids": lists(stats.max_ids_per_partition),
        "max_unique_ids": lists(stats.max_unique_ids_per_partition),
        "required": lists(required),
        "dropped": lists(dropped),
    }

  def describe(self) -> dict[str, Any]:
    """Versions, CPUs, and whether there is an output pool."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "cpus": len(os.sched_getaffinity(0)),
        "has_pool": "output_pool"
        in inspect.signature(
            embedding.preprocess_sparse_dense_matmul_input
        ).parameters,
    }
