# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches with wrong ids or corrupt buffers: NaN, no update, and no failure.

A program that fails takes the arrays with it that it was given to mutate, and
those are the tables. So what is wrong with a batch is found before the lookup:
the activations of the stack are NaN, on the device that has the samples, and
embedding.raise_errors raises it. The update of any stack, on any device, is
then one by a batch without ids. Else the gradients of a loss that is NaN would
reach the rows that other stacks and devices name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.flax import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import _inputs
from jax_tpu_embedding.sparsecore.lib.nn import embedding

P = jax.sharding.PartitionSpec
LookupConfig = _lookup_config.LookupConfig

# Stack name -> bool[1] of a device, or bool[G] of all.
HasFailed = Mapping[str, jax.Array]


def check(
    config: LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
) -> tuple[embedding.PreprocessedInput, HasFailed]:
  """Buffers of one device that can be looked up, and whether it can use them.

  Args:
    config: specs and devices.
    inputs: one device's part.
    tables: stack name -> the device's part.

  Raises:
    ValueError: if stacks are missing.
  """
  stacks = embedding.get_stacked_table_specs(config.feature_specs)
  buffers = _inputs.device_buffers(inputs)
  _inputs.check_stack_names(
      stacks, preprocessed_inputs=buffers, embedding_variables=tables
  )
  device = lax.axis_index(config.axes) if config.mesh.size > 1 else 0
  row_pointers, has_failed = {}, {}
  for name, stack in stacks.items():
    row_pointers[name], has_failed[name] = check_batch.check_batch_p.bind(
        *buffers[name],
        jnp.int32(device),
        num_devices=config.num_shards,
        num_sc_per_device=config.num_sc_per_device,
        rows_per_device=tables[name].shape[0],
        batch_size=stack.total_sample_count // config.num_shards,
        enable_minibatching=config.enable_minibatching,
    )
  return _with_row_pointers(inputs, row_pointers), has_failed


def check_global(
    config: LookupConfig,
    inputs: embedding.PreprocessedInput,
    tables: Mapping[str, jax.Array],
) -> HasFailed:
  """The same for all devices: on which of them a stack cannot be looked up."""
  return config.on_each_device(
      lambda *args: check(config, *args)[1],
      (config.partition_inputs(inputs), config.table_partition),
      config.data_partition,
  )(inputs, tables)


def nan_if_failed(
    activations: Mapping[str, jax.Array], has_failed: HasFailed
) -> dict[str, jax.Array]:
  """The activations of stacks on one device; NaN of those that failed."""
  return {
      name: check_batch.nan_if_failed_p.bind(x, has_failed[name])
      for name, x in activations.items()
  }


def any_failed(has_failed: HasFailed) -> jax.Array:
  """bool[]: whether a stack cannot be looked up on some device."""
  return jnp.any(jnp.stack([jnp.any(x) for x in has_failed.values()]))


def without_ids_if(
    condition: jax.Array, inputs: embedding.PreprocessedInput
) -> embedding.PreprocessedInput:
  """The buffers; those of a batch without ids if the condition holds."""
  return _with_row_pointers(
      inputs,
      {
          name: jnp.where(condition, 0, x)
          for name, x in inputs.lhs_row_pointers.items()
      },
  )


def _with_row_pointers(
    inputs: embedding.PreprocessedInput, row_pointers: Mapping[str, Any]
) -> embedding.PreprocessedInput:
  """With these and, in case that is what is wrong, a possible minibatch count."""
  arrays = inputs.sparse_dense_matmul_input
  return inputs.replace(
      sparse_dense_matmul_input=arrays._replace(lhs_row_pointers=row_pointers),
      num_minibatches=jnp.clip(
          inputs.num_minibatches, 1, constants.MAX_MINIBATCHES
      ),
  )
