# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup: from buffers and tables to the activations of every feature."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_activation_unstack
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_csr
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch
from jax_tpu_embedding.sparsecore.lib.nn.step import _one_hot


@functools.partial(jax.named_call, name="tpu_sparse_dense_matmul")
def tpu_sparse_dense_matmul(
    preprocessed_inputs: (
        _buffers.PreprocessedInput | _buffers.SparseDenseMatmulInput
    ),
    embedding_variables: Mapping[str, Any],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int | None = None,
    sharding_strategy: str = "MOD",
    num_sc_per_device: int | None = None,
    enable_minibatching: bool | None = None,
    perform_unstacking: bool = True,
    use_activation_unstack_primitive: bool = False,
    feature_stacking_strategy: str | None = None,
) -> _tables.Nested[jax.Array]:
  """Looks up one device's samples: `sum over ids of gain * table row`.

  Runs on one device's part of inputs and tables: call it under shard_map with
  inputs split on their first axis and tables on rows, or directly on a single
  device. Nothing is mutated.

  Inputs know what they were made for, their `settings`: arguments that repeat
  it can be left out, and must agree.

  Args:
    preprocessed_inputs: the buffers.
    embedding_variables: stack name -> (table f32[rows, D], slots); or those of
      int8_variables. Under shard_map, tables with placement "tensorcore" are
      not split: P() for these.
    feature_specs: the prepared specs, any tree.
    global_device_count: devices of the job; default: that of the inputs.
    sharding_strategy: "MOD".
    num_sc_per_device: SparseCores per device; default: that of the inputs.
    enable_minibatching: whether the inputs were preprocessed with it; default:
      what they say.
    perform_unstacking: False returns the activations of whole stacks.
    use_activation_unstack_primitive: see unstack_embedding_activations.
    feature_stacking_strategy: that of the preprocessing; default: what the
      inputs say.

  Returns:
    The tree of `feature_specs` with activations f32[*output_shape], where the
    batch is this device's; or stack name -> f32[device_batch, D].

  Raises:
    ValueError: if specs are not prepared, or inputs, tables and specs do not
      belong together.
    NotImplementedError: over several devices outside of shard_map, or if
      several axes of the mesh may split the tables.
  """
  strategy = _conversion.sharding_strategy_to_enum(sharding_strategy)
  settings, feature_specs, stacks, buffers = _device_batch.read(
      feature_specs,
      preprocessed_inputs,
      embedding_variables,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
      feature_stacking_strategy=feature_stacking_strategy,
  )
  activations, lookups = {}, []
  for name, stack in stacks.items():
    quantization = stack.quantization_config
    table = embedding_variables[name][0]
    num_samples = stack.total_sample_count // settings.global_device_count
    if stack.is_replicated:
      activations[name] = _one_hot.lookup(
          stack, buffers[name], table, num_samples
      )
      continue
    params = {}
    if table.dtype == jnp.int32:
      params["int8_columns"] = stack.stack_embedding_dim
    params |= dict(
        device_batch_size=num_samples,
        **settings.limits_of(name)._asdict(),
        sharding_strategy=int(strategy),
        quantization_config=quantization and quantization.as_tuple(),
        enable_minibatching=settings.enable_minibatching,
    )
    lookups.append(
        of_stacks.OfStack(
            name,
            sparse_dense_matmul_csr.tpu_sparse_dense_matmul_csr_primitive,
            (*buffers[name], table),
            params,
        )
    )
  looked_up = of_stacks.bind(
      of_stacks.lookup_of_stacks_p,
      lookups,
      num_devices=settings.global_device_count,
  )
  for of_stack, (values,) in zip(lookups, looked_up, strict=True):
    activations[of_stack.stack] = values
  if not perform_unstacking:
    return activations
  return unstack(
      activations,
      feature_specs,
      settings.global_device_count,
      settings.num_sc_per_device,
      settings.feature_stacking_strategy,
      _cut_with_primitive
      if use_activation_unstack_primitive
      else cut_of_lookup,
  )


def unstack_embedding_activations(
    activations: Mapping[str, jax.Array],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int,
    use_activation_unstack_primitive: bool = False,
    *,
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
) -> _tables.Nested[jax.Array]:
  """Cuts the activations of stacks into those of features.

  Args:
    activations: stack name -> f32[device_batch, D].
    feature_specs: the prepared specs, any tree.
    global_device_count: devices of the job.
    num_sc_per_device: SparseCores per device.
    use_activation_unstack_primitive: whether one primitive cuts each stack,
      which cannot be differentiated, instead of plain operations. The results
      are the same.
    feature_stacking_strategy: which samples each SparseCore has; the module
      _feature_stacking.py has the picture.

  Returns:
    The tree of `feature_specs` with f32[*output_shape], the batch divided by
    `global_device_count`.

  Raises:
    ValueError: if an output is wider than its table, or a batch cannot be split
      evenly over the SparseCores.
  """
  return unstack(
      activations,
      feature_specs,
      global_device_count,
      num_sc_per_device,
      feature_stacking_strategy,
      _cut_with_primitive if use_activation_unstack_primitive else _cut,
  )


def unstack(
    activations: Mapping[str, jax.Array],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int,
    feature_stacking_strategy: str,
    cut: Callable[[jax.Array, Sequence[_Part], int], Sequence[jax.Array]],
) -> _tables.Nested[jax.Array]:
  """unstack_embedding_activations, by one of the functions below."""
  num_runs = _feature_stacking.runs_per_device(
      _feature_stacking.feature_stacking_strategy_to_enum(
          feature_stacking_strategy
      ),
      num_sc_per_device,
  )
  features, tree = jax.tree.flatten(feature_specs)
  by_stack = collections.defaultdict(list)
  for position, feature in enumerate(features):
    _tables.check_width(feature)
    span = _feature_stacking.span_in_run(feature, global_device_count, num_runs)
    stack_name = feature.table_spec.setting_in_stack.stack_name
    stacked = activations[stack_name]
    if stacked.shape[0] % num_sc_per_device:
      raise ValueError(
          f"Feature {feature.name!r}: the stack has {stacked.shape[0]} samples"
          f" on a device, which {num_sc_per_device} SparseCores cannot share"
          " evenly."
      )
    width = feature.output_shape[-1]
    by_stack[stack_name].append(_Part(span.start, span.stop, width, position))

  results = [None] * len(features)
  for stack_name, parts in by_stack.items():
    parts.sort()
    _feature_stacking.check_spans(
        [
            (features[part.position], slice(part.begin, part.end))
            for part in parts
        ],
        activations[stack_name].shape[0] // num_runs,
    )
    samples = cut(activations[stack_name], parts, num_runs)
    for part, of_feature in zip(parts, samples, strict=True):
      shape = features[part.position].output_shape
      results[part.position] = of_feature.reshape(
          shape[0] // global_device_count, *shape[1:]
      )
  return jax.tree.unflatten(tree, results)


class _Part(NamedTuple):
  """What a feature has of each run of a stack."""

  begin: int  # of its samples
  end: int
  width: int
  position: int  # of the feature in the flattened tree


def _cut(
    stacked: jax.Array, parts: Sequence[_Part], num_runs: int
) -> list[jax.Array]:
  """The samples of each part, run after run."""
  # A table by itself has nothing to cut, and each operation costs a program of
  # 1,000 tables a tenth of a second.
  first = parts[0]
  if stacked.shape == (num_runs * (first.end - first.begin), first.width):
    return [stacked]
  runs = stacked.reshape(num_runs, -1, *stacked.shape[1:])
  if stacked.ndim == 1:  # one-dimensional tables have no columns to cut
    return [runs[:, part.begin : part.end] for part in parts]
  return [runs[:, part.begin : part.end, : part.width] for part in parts]


# Of a stack. With 128 features of 64 x 16 a step takes 0.7 of the time with the
# copy, with 64 it takes 1.5 times as long.
_MANY_FEATURES = 128


def cut_of_lookup(
    stacked: jax.Array, parts: Sequence[_Part], num_runs: int
) -> Sequence[jax.Array]:
  """The same, of what a lookup returned, which is not differentiated.

  XLA fuses a slice with what a model computes from it, and what begins at
  another row is another function to compile: 1,024 times a tanh, for example.
  On CPUs the primitive is one call, and what follows is compiled once.
  """
  if (
      len(parts) < _MANY_FEATURES
      or stacked.ndim != 2
      or stacked.dtype != jnp.float32
  ):
    return _cut(stacked, parts, num_runs)
  return _cut_with_primitive(stacked, parts, num_runs)


def _cut_with_primitive(
    stacked: jax.Array, parts: Sequence[_Part], num_runs: int
) -> list[jax.Array]:
  """The same by the primitive, for parts that are the whole stack."""
  num_samples = num_runs * sum(part.end - part.begin for part in parts)
  if stacked.shape[0] != num_samples:
    return _cut(stacked, parts, num_runs)
  primitive = (
      sparse_dense_matmul_activation_unstack.tpu_sparse_dense_matmul_activation_unstack_primitive
  )
  return primitive.bind(
      stacked,
      per_feature_batch_sizes=tuple(
          num_runs * (part.end - part.begin) for part in parts
      ),
      per_feature_dims=tuple(part.width for part in parts),
      num_sc_per_device=num_runs,
  )
