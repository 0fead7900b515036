# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of tables as values: the rows that a batch names, and theirs.

tpu_sparse_dense_matmul_grad steps the optimizer in one go. Its two halves are
here, for those who have something to do in between: add gradients of several
batches, limit their norm, or look at them.

  sparse_gradients         activation gradients -> rows and their gradients
  add_sparse_gradients     sums
  apply_sparse_gradients   one step of each table's optimizer
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import itertools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_axes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch
from jax_tpu_embedding.sparsecore.lib.nn.step import _one_hot
from jax_tpu_embedding.sparsecore.lib.nn.step import _rows_as_batch
from jax_tpu_embedding.sparsecore.lib.nn.step import _update


class SparseGradient(NamedTuple):
  """The gradient of one stack, of the rows that one device has.

  All other rows have gradient zero. Of a stack with placement "tensorcore",
  whose rows all devices have, each device has the gradients of an equal part.

  Attributes:
    rows: i32[n], distinct rows, ascending, then padding of 2^31 - 1. They are
      counted over the shards of all devices: those of [rows, D], the table as
      one array.
    values: f32[n, D], zero for padding.
  """

  rows: jax.Array
  values: jax.Array


@functools.partial(jax.named_call, name="sparse_gradients")
def sparse_gradients(
    activation_gradients: _tables.Nested[jax.Array],
    preprocessed_inputs: _buffers.PreprocessedInput,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int | None = None,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool | None = None,
    perform_stacking: bool = True,
    feature_stacking_strategy: str | None = None,
) -> dict[str, SparseGradient]:
  """The gradients of the rows that a batch names, each row once.

  The gradient of a row is the sum of gain * activation gradient over every id
  of the batch, on any device, that names the row. Runs on one device's part, as
  tpu_sparse_dense_matmul_grad does: under shard_map, or on a single device.
  Time, memory and messages are in proportion to ids, never to tables.

  n is as many rows as limits and buffers allow, so that any batch fits; of a
  stack with placement "tensorcore" its rows, divided by the devices.

  Args:
    activation_gradients: the tree of `feature_specs` with f32[*output_shape],
      the batch being this device's; or, with `perform_stacking=False`, stack
      name -> f32[device_batch, D].
    preprocessed_inputs: the buffers that the lookup read.
    feature_specs: the prepared specs, any tree.
    global_device_count: devices of the job; default: that of the inputs.
    num_sc_per_device: SparseCores per device; default: that of the inputs.
    enable_minibatching: whether the inputs were preprocessed with it; default:
      what they say.
    perform_stacking: False takes the gradients of whole stacks.
    feature_stacking_strategy: that of the preprocessing; default: what the
      inputs say.

  Returns:
    Stack name -> SparseGradient. If a device names more distinct rows of
    another than the limit allows, the gradients of all rows that it names are
    NaN, and those that do not fit are missing.

  Raises:
    ValueError: if the arguments do not belong together.
    NotImplementedError: over several devices outside of shard_map, or if
      several axes of the mesh may split the tables.
  """
  settings, feature_specs, stacks, buffers = _device_batch.read(
      feature_specs,
      preprocessed_inputs,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
      feature_stacking_strategy=feature_stacking_strategy,
  )
  if perform_stacking:
    activation_gradients = _update.stack_embedding_gradients(
        activation_gradients,
        feature_specs,
        settings.num_sc_per_device,
        settings.global_device_count,
        feature_stacking_strategy=settings.feature_stacking_strategy,
    )
  _device_batch.check_stack_names(
      stacks, activation_gradients=activation_gradients
  )
  gradients, of_replicated = [], {}
  for name, stack in stacks.items():
    gradient = jnp.asarray(activation_gradients[name])
    gradient = gradient.reshape(gradient.shape[0], -1)
    if stack.is_replicated:
      with jax.named_scope(f"sparse_gradients/{name}"):
        of_replicated[name] = SparseGradient(
            *_one_hot.named_rows_of_device(
                buffers[name],
                gradient,
                stack.stack_vocab_size,
                _batch_axes.axes_of_batch(
                    buffers[name], settings.global_device_count
                ),
            )
        )
      continue
    params = dict(
        global_device_count=settings.global_device_count,
        rows_per_device=(
            stack.stack_vocab_size // settings.global_device_count
        ),
        max_unique_ids_per_partition=(
            # One device sends nothing that a limit could size.
            settings.limits_of(name).max_unique_ids_per_partition
            if settings.global_device_count > 1
            else buffers[name].embedding_ids.size
        ),
        enable_minibatching=settings.enable_minibatching,
    )
    gradients.append(
        of_stacks.OfStack(
            name,
            row_gradients.row_gradients_p,
            (*buffers[name], gradient),
            params,
            num_results=2,
        )
    )
  results = of_stacks.bind(
      of_stacks.row_gradients_of_stacks_p,
      gradients,
      num_devices=settings.global_device_count,
  )
  return of_replicated | {
      of_stack.stack: SparseGradient(*result)
      for of_stack, result in zip(gradients, results, strict=True)
  }


def add_sparse_gradients(
    *gradients: Mapping[str, SparseGradient],
) -> dict[str, SparseGradient]:
  """The sum of gradients of one device, such as those of several batches.

  Args:
    *gradients: stack name -> SparseGradient, all with the same stacks. Leading
      axes, as jax.lax.scan gives its results, are summed over.

  Returns:
    Stack name -> SparseGradient, each row once. n is the sum of all n: rows
    that coincide leave padding.

  Raises:
    ValueError: if there is nothing to add, or stacks or shapes differ.
  """
  if not gradients:
    raise ValueError(
        "add_sparse_gradients needs at least one dict of gradients, got none."
    )
  for others in gradients[1:]:
    _device_batch.check_stack_names(gradients[0], gradients=others)
  results = {}
  for name in gradients[0]:
    terms = [_flatten(name, each[name]) for each in gradients]
    widths = sorted({term.values.shape[1] for term in terms})
    if len(widths) > 1:
      raise ValueError(
          f"Stack {name!r}: gradients have {widths} columns. Add gradients of"
          " the same stack."
      )
    results[name] = SparseGradient(
        *row_gradients.sum_rows_p.bind(*itertools.chain(*terms))
    )
  return results


@functools.partial(jax.named_call, name="apply_sparse_gradients")
def apply_sparse_gradients(
    gradients: Mapping[str, SparseGradient],
    embedding_variables: Mapping[str, Any],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    step: jax.typing.ArrayLike | None = None,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
    label: str = "",
    embedding_var_limits: (
        Mapping[str, tuple[float | None, float | None]] | None
    ) = None,
    rounding_seed: jax.typing.ArrayLike | None = None,
) -> dict[str, Any]:
  """Steps each table's optimizer once for every row that has a gradient.

  A row with gradient zero counts, padding does not; all other rows stay as they
  are, slots too. Runs on one device's part. When the variables are donated, it
  happens in place. With what sparse_gradients returns, the result has the bits
  that tpu_sparse_dense_matmul_grad gives.

  Args:
    gradients: stack name -> SparseGradient. Rows may come in any order; those
      that come twice are summed first, and those of other devices sent there.
    embedding_variables: stack name -> (table, slots) of this device.
    feature_specs: the prepared specs, any tree.
    step: passed to learning rates that are schedules, and to optimizers whose
      rule depends on it; counts from 0.
    num_sc_per_device: SparseCores per device; default: what the specs were
      prepared for.
    enable_minibatching: whether to take the step in 64 minibatches, each with
      a range of the rows of every shard, which has the same result. A TPU has
      no memory for many rows at once; see docs/how_to/sparse_gradients.md.
    label: appended to the name of the update in the compiled program.
    embedding_var_limits: as in tpu_sparse_dense_matmul_grad.
    rounding_seed: as there.

  Returns:
    Stack name -> updated (table, slots), in the tree of the input variables.

  Raises:
    ValueError: if the arguments do not belong together, or a schedule needs
      `step`.
    TypeError: for a gradient that is no SparseGradient.
    KeyError: if `embedding_var_limits` lacks a stack.
    NotImplementedError: over several devices outside of shard_map, or if
      several axes of the mesh may split the tables.
  """
  stacks = _prepared.get_stacked_table_specs(feature_specs)
  _device_batch.check_stack_names(
      stacks, gradients=gradients, embedding_variables=embedding_variables
  )
  terms = {name: _flatten(name, gradients[name]) for name in stacks}
  topology = _topology_of_tables(
      feature_specs, stacks, embedding_variables, num_sc_per_device
  )
  buffers, gradients, limits = {}, {}, {}
  for name, stack in stacks.items():
    values = terms[name].values
    if stack.is_replicated:
      buffers[name] = _buffers.SampleIds.of_rows(terms[name].rows)
      gradients[name] = values
      continue
    buffers[name] = _rows_as_batch.rows_as_batch(
        terms[name].rows,
        stack.stack_vocab_size // topology.num_scs,
        topology,
        enable_minibatching,
    )
    num_samples = _rows_as_batch.samples_per_sc(values.shape[0], topology)
    padding = num_samples * topology.num_sc_per_device - values.shape[0]
    gradients[name] = jnp.pad(values, ((0, padding), (0, 0)))
    limits[name] = layout.PartitionLimits(
        max_ids_per_partition=num_samples,
        max_unique_ids_per_partition=min(
            num_samples,
            _rows_as_batch.rows_per_minibatch(
                stack.stack_vocab_size // topology.num_scs,
                enable_minibatching,
            ),
        ),
    )
  return _update.step_stacks(
      stacks,
      feature_specs,
      buffers,
      gradients,
      embedding_variables,
      strategy=utils.MOD_SHARDING,
      label=label,
      step=step,
      partition_limits=limits,
      global_device_count=topology.global_device_count,
      enable_minibatching=enable_minibatching,
      embedding_var_limits=embedding_var_limits,
      rounding_seed=rounding_seed,
  )


def _flatten(stack_name: str, gradient: SparseGradient) -> SparseGradient:
  """`gradient` without leading axes.

  Raises:
    TypeError: if it is something else.
    ValueError: if rows and values do not belong together.
  """
  if not isinstance(gradient, SparseGradient):
    raise TypeError(
        f"Stack {stack_name!r}: its gradient must be a SparseGradient, got"
        f" {type(gradient).__name__}. Pass SparseGradient(rows, values)."
    )
  rows, values = jnp.asarray(gradient.rows), jnp.asarray(gradient.values)
  if rows.shape != values.shape[:-1] or rows.ndim == 0 or rows.size == 0:
    raise ValueError(
        f"Stack {stack_name!r}: rows must have shape [n] and values [n, D],"
        f" both with the same leading axes if any, got {rows.shape} and"
        f" {values.shape}."
    )
  return SparseGradient(rows.reshape(-1), values.reshape(-1, values.shape[-1]))


def _topology_of_tables(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    stacks: Mapping[str, _tables.StackedTableSpec],
    embedding_variables: Mapping[str, Any],
    num_sc_per_device: int | None,
) -> layout.Topology:
  """What the first table that is split says, and all agree with.

  If none is, the devices are those of the surrounding shard_map.
  """
  split = [name for name in stacks if not stacks[name].is_replicated]
  if split:
    global_device_count = _device_batch.num_devices_of_table(
        stacks[split[0]], embedding_variables[split[0]][0]
    )
  else:
    global_device_count = _batch_axes.num_devices_of_batch()
    num_sc_per_device = num_sc_per_device or 1
  if num_sc_per_device is None:
    num_scs = _device_batch.planned_num_scs(feature_specs, "num_sc_per_device")
    num_sc_per_device = max(num_scs // global_device_count, 1)
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  _device_batch.check_tables(feature_specs, embedding_variables, topology)
  return topology
