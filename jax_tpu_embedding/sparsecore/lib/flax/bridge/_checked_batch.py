# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches with wrong ids or corrupt buffers: NaN, no update, and no failure.

A program that fails takes the arrays with it that it was given to mutate, and
those are the tables. So what is wrong with a batch is found before the lookup:
the activations of the stack are NaN, on the device that has the samples, and
embedding.raise_errors raises it. The update of any stack, on any device, is
then one by a batch without ids. Else the gradients of a loss that is NaN would
reach the rows that other stacks and devices name.

A batch of features that the layer does not have is known to be one before its
program runs, and an update by it raises: check_features.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
import functools
import math
import operator

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch


def check(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
) -> tuple[embedding.PreprocessedInput, dict[str, jax.Array]]:
  """Buffers of one device that can be looked up, and which were wrong.

  Args:
    config: specs and devices.
    inputs: one device's part.
    tables: stack name -> the device's part.

  Returns:
    The buffers, with settings; and stack name -> bool[1], whether activations
    have to be NaN.

  Raises:
    ValueError: if stacks are missing, or inputs, tables and config do not
      belong together.
  """
  settings, _, stacks, buffers = _device_batch.read(
      config.feature_specs,
      inputs,
      {name: (table,) for name, table in tables.items()},
      global_device_count=config.num_shards,
      num_sc_per_device=config.num_sc_per_device,
      enable_minibatching=config.enable_minibatching,
      feature_stacking_strategy=config.feature_stacking_strategy,
  )
  inputs = inputs.replace(settings=settings)
  device = lax.axis_index(config.axes) if config.mesh.size > 1 else 0
  row_pointers, samples, has_failed = {}, {}, {}
  for name, stack in stacks.items():
    if stack.is_replicated:
      samples[name] = buffers[name]
      has_failed[name] = samples[name].has_failed
      continue
    row_pointers[name], has_failed[name] = check_batch.check_batch_p.bind(
        *buffers[name],
        jnp.int32(device),
        num_devices=config.num_shards,
        num_sc_per_device=config.num_sc_per_device,
        rows_per_device=tables[name].shape[0],
        batch_size=stack.total_sample_count // config.num_shards,
        enable_minibatching=config.enable_minibatching,
    )
  inputs = inputs.replace(samples=samples)
  return _with_row_pointers(config, inputs, row_pointers), has_failed


def failed_devices(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
) -> jax.Array:
  """bool[G], on which devices something is wrong, from global arrays."""
  return config.on_each_device(
      _has_failed_of_device,
      (config.partition_inputs(inputs), config.partition_tables(tables)),
      config.data_partition,
  )(inputs, tables)


def _has_failed_of_device(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
) -> jax.Array:
  return any_stack(check(config, inputs, tables)[1])


def any_stack(has_failed: Mapping[str, jax.Array]) -> jax.Array:
  """bool[1], whether something is wrong with a stack on a device."""
  return functools.reduce(operator.or_, has_failed.values())


def check_features(
    config: _lookup_config.LookupConfig, inputs: embedding.PreprocessedInput
) -> None:
  """Checks that an update by a batch steps the rows that it is to step.

  Those that only features of other layers name have gradient zero, for which
  most optimizers move a row: by its momentum, or as FTRL to where it began.

  Args:
    config: specs and devices.
    inputs: the batch. Where it does not say what it was made for, nothing is
      checked.

  Raises:
    ValueError: if it has other features in a stack with such an optimizer.
  """
  if inputs.settings is None:
    return
  features = _batch_sizes.of_settings(config.feature_specs, inputs.settings)
  found = {
      layout.stack_name: sum(size for *_, size in layout.features)
      for layout in inputs.settings.layouts
  }
  own = collections.defaultdict(dict)
  for feature in jax.tree.leaves(features):
    of_stack = own[feature.table_spec.setting_in_stack.stack_name]
    of_stack[feature.name] = math.prod(feature.output_shape[:-1])
  for name, stack in embedding.get_stacked_table_specs(features).items():
    num_found = found.get(name, stack.total_sample_count)
    if (
        num_found > sum(own[name].values())
        and not stack.optimizer.keeps_rows_without_gradient
    ):
      raise ValueError(
          f"Stack {name!r}: the inputs have {num_found} samples, and the"
          f" features of the layer are {own[name]}. Rows that the others name would"
          f" take a step of {type(stack.optimizer).__name__} with gradient"
          " zero. Preprocess with the specs of this layer, or look all of the"
          " features up in one."
      )


def nan_if_failed(
    activations: Mapping[str, jax.Array], has_failed: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """The activations of stacks on one device; NaN of those that failed."""
  return {
      name: check_batch.nan_if_failed_p.bind(x, has_failed[name])
      for name, x in activations.items()
  }


def without_ids_if(
    condition: jax.Array,
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
) -> embedding.PreprocessedInput:
  """The buffers; those of a batch without ids if the condition bool[] holds."""
  samples = {
      name: x.without_ids_if(condition) for name, x in inputs.samples.items()
  }
  return _with_row_pointers(
      config,
      inputs.replace(samples=samples),
      {
          name: jnp.where(condition, 0, x)
          for name, x in inputs.lhs_row_pointers.items()
      },
  )


def _with_row_pointers(
    config: _lookup_config.LookupConfig,
    inputs: embedding.PreprocessedInput,
    row_pointers: Mapping[str, jax.Array],
) -> embedding.PreprocessedInput:
  arrays = inputs.sparse_dense_matmul_input
  inputs = inputs.replace(
      sparse_dense_matmul_input=arrays._replace(lhs_row_pointers=row_pointers)
  )
  if not config.enable_minibatching:
    return inputs
  # In case that this is what is wrong.
  num_minibatches = jnp.clip(
      inputs.num_minibatches, 1, constants.MAX_MINIBATCHES
  )
  return inputs.replace(num_minibatches=num_minibatches)
