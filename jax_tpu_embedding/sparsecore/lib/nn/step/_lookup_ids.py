# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup from ids: what only reads needs no buffers."""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids as primitive
from jax_tpu_embedding.sparsecore.lib.core.primitives import of_stacks
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _convert
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.step import _one_hot


@functools.partial(jax.named_call, name="lookup_ids")
def lookup_ids(
    features: Any,
    features_weights: Any | None,
    embedding_variables: Mapping[str, Any],
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    topology: layout.Topology,
    *,
    sharding_strategy: str = "MOD",
    feature_stacking_strategy: str = "SPLIT_THEN_STACK",
    keeps_errors: bool = False,
    num_minibatches: jax.Array | None = None,
    perform_unstacking: bool = True,
) -> _tables.Nested[jax.Array]:
  """Looks one device's samples up straight from their ids.

  The activations, bit by bit, of convert_ids and tpu_sparse_dense_matmul, in
  less time on CPUs, and the same program elsewhere. It has no gradient: an
  update needs buffers. Where it runs, and what is split, is as with
  tpu_sparse_dense_matmul. Nothing is mutated.

  Args:
    features: ids as convert_ids takes them, in batches of any size that the
      SparseCores can share.
    features_weights: their weights, or None.
    embedding_variables: stack name -> (table, slots); slots may be missing, and
      tables those of int8_variables.
    feature_specs: the prepared specs, any tree.
    topology: devices and SparseCores that the tables are split over.
    sharding_strategy: "MOD".
    feature_stacking_strategy: "SPLIT_THEN_STACK" or "STACK_THEN_SPLIT", in any
      letter case.
    keeps_errors: for layers. Whether ids that are wrong make the activations of
      their stack and device NaN, for raise_errors to raise, instead of failing
      the program.
    num_minibatches: for layers. i32[], 1, from a check of the tables that the
      lookup has to wait for.
    perform_unstacking: False returns the activations of whole stacks.

  Returns:
    The tree of `feature_specs` with activations f32[*output_shape], where the
    batch is this device's; or stack name -> f32[device_batch, D].

  Raises:
    ValueError, TypeError and jax.errors.JaxRuntimeError: as convert_ids does;
      and ValueError if the tables do not belong to the specs, or for another
      sharding strategy.
    NotImplementedError: over several devices outside of shard_map, or if
      several axes of the mesh may split the tables.
  """
  _conversion.sharding_strategy_to_enum(sharding_strategy)
  batch = _convert.read_ids(
      features,
      features_weights,
      feature_specs,
      topology,
      feature_stacking_strategy,
  )
  _device_batch.check_stack_names(
      batch.stacks, embedding_variables=embedding_variables
  )
  _device_batch.check_tables(feature_specs, embedding_variables, topology)
  if num_minibatches is None:
    num_minibatches = jnp.int32(1)
  activations, lookups = {}, []
  for name, stack in batch.stacks.items():
    table = embedding_variables[name][0]
    num_samples = stack.total_sample_count // topology.global_device_count
    if stack.is_replicated:
      samples = batch.samples_of(name, keeps_errors=keeps_errors)
      samples = samples.wait_for(num_minibatches)
      activations[name] = _one_hot.lookup(stack, samples, table, num_samples)
      continue
    quantization = stack.quantization_config
    params = {}
    if table.dtype == jnp.int32:
      params["int8_columns"] = stack.stack_embedding_dim
    params |= dict(
        **batch.conversion_of(name),
        **batch.settings.limits_of(name)._asdict(),
        keeps_errors=keeps_errors,
        device_batch_size=num_samples,
        quantization_config=quantization and quantization.as_tuple(),
    )
    lookups.append(
        of_stacks.OfStack(
            name,
            primitive.lookup_ids_p,
            (table, num_minibatches, *batch.operands[name]),
            params,
        )
    )
  looked_up = of_stacks.bind(
      of_stacks.lookup_ids_of_stacks_p,
      lookups,
      num_devices=topology.global_device_count,
  )
  for of_stack, (values,) in zip(lookups, looked_up, strict=True):
    activations[of_stack.stack] = values
  if not perform_unstacking:
    return activations
  return _lookup.unstack(
      activations,
      batch.feature_specs,
      topology.global_device_count,
      topology.num_sc_per_device,
      feature_stacking_strategy,
      _lookup.cut_of_lookup,
  )
