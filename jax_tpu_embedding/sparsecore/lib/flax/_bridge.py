# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over a mesh, and lookups whose backward pass updates.

Shared by the layers of all libraries. Arrays are global ones, in and out; each
device works on its part under shard_map.

JAX has gradients shaped like the parameters, and that of a table would be a
table, mostly zeros. So the backward pass of a lookup does not return a
gradient. It runs the optimizer on the rows that the batch names, and there are
two forms of where the result goes:

* lookup_updating_refs: tables are mutable arrays (jax.Ref), and their rows are
  written in place. Nothing flows back that could be summed, clipped or fed to
  another optimizer by mistake.
* lookup_returning_tables: tables are ordinary values, and the "gradient" of a
  table is the new table, to be put in its place. A seal guards it, _seal.py.

Neither fails for what is wrong with a batch: see _checked_batch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import _checked_batch
from jax_tpu_embedding.sparsecore.lib.flax import _lookup_config
from jax_tpu_embedding.sparsecore.lib.flax import _raw_ids
from jax_tpu_embedding.sparsecore.lib.flax import _seal
from jax_tpu_embedding.sparsecore.lib.nn import embedding

P = jax.sharding.PartitionSpec

LookupConfig = _lookup_config.LookupConfig
num_devices_along = _lookup_config.num_devices_along
as_preprocessed = _raw_ids.as_preprocessed
convert = _raw_ids.convert


def init(
    config: LookupConfig, rng: jax.Array
) -> dict[str, embedding.EmbeddingVariables]:
  """Initial tables and slots on the devices of the config, by stack name."""
  return embedding.init_embedding_variables(
      rng,
      embedding.get_table_specs(config.feature_specs),
      jax.sharding.NamedSharding(config.mesh, config.table_partition),
      config.num_sc_per_device,
      # A mesh of the user may have some of the devices, in any order.
      bypass_mesh_check=True,
  )


def lookup(
    config: LookupConfig,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    *,
    seal: jax.Array | None = None,
) -> tuple[Any, jax.Array]:
  """The activations of every feature; nothing is mutated.

  Args:
    config: specs and devices.
    inputs: the buffers of all devices.
    variables: stack name -> (table, slots); slots may be missing.
    seal: checked if given; see _seal.check.

  Returns:
    The tree of feature specs with f32[*output_shape]; and bool[G], on which
    devices some are NaN because of what is wrong with the inputs.

  Raises:
    ValueError: if inputs, variables and specs do not belong together.
  """
  tables = {name: variables[name][0] for name in variables}

  def of_device(inputs, tables, seal):
    if seal is not None:
      inputs = _seal.check(seal, inputs)
    inputs, has_failed = _checked_batch.check(config, inputs, tables)
    activations = embedding.tpu_sparse_dense_matmul(
        inputs,
        {name: (table,) for name, table in tables.items()},
        config.feature_specs,
        perform_unstacking=False,
        **_options(config),
    )
    activations = embedding.unstack_embedding_activations(
        _checked_batch.nan_if_failed(activations, has_failed),
        config.feature_specs,
        config.num_shards,
        config.num_sc_per_device,
        feature_stacking_strategy=config.feature_stacking_strategy,
    )
    return activations, _checked_batch.any_stack(has_failed)

  return config.on_each_device(
      of_device,
      (config.partition_inputs(inputs), config.table_partition, P()),
      config.data_partition,
  )(inputs, tables, seal)


def update(
    config: LookupConfig,
    gradients: Any,
    inputs: embedding.PreprocessedInput,
    variables: Mapping[str, embedding.EmbeddingVariables],
    step: jax.typing.ArrayLike | None,
    has_failed: jax.Array | None = None,
) -> dict[str, embedding.EmbeddingVariables]:
  """The variables after the optimizer ran on every row that inputs name.

  They are the old ones if something is wrong with the inputs of any stack.

  Tables of bfloat16 and float16 are rounded at random, by numbers that depend
  on the batch and the step.

  Args:
    config: specs and devices.
    gradients: the tree of feature specs with gradients of the activations.
    inputs: the buffers that the lookup read.
    variables: stack name -> (table, slots).
    step: passed to optimizers and schedules, or None.
    has_failed: bool[G], of the lookup; None if there was none.

  Raises:
    ValueError: if the arguments do not belong together, or a schedule needs a
      step.
  """
  if has_failed is None:
    tables = {name: table for name, (table, *_) in variables.items()}
    has_failed = _checked_batch.failed_devices(config, inputs, tables)
  rounding_seed = None
  if any(v[0].dtype != jnp.float32 for v in variables.values()):
    rounding_seed = _seal.hash_of_batch(inputs)
    if step is not None:
      rounding_seed += jnp.asarray(step).astype(jnp.uint32)

  def of_device(gradients, inputs, variables, step, rounding_seed, failed):
    return embedding.tpu_sparse_dense_matmul_grad(
        gradients,
        _checked_batch.without_ids_if(failed, config, inputs),
        variables,
        config.feature_specs,
        step=step,
        rounding_seed=rounding_seed,
        **_options(config),
    )

  return config.on_each_device(
      of_device,
      (
          config.data_partition,
          config.partition_inputs(inputs),
          config.table_partition,
          P(),
          P(),
          P(),
      ),
      config.table_partition,
  )(
      jax.tree.map(lambda g: g.astype(jnp.float32), gradients),
      inputs,
      variables,
      step,
      rounding_seed,
      jnp.any(has_failed),
  )


def lookup_updating_refs(
    config: LookupConfig,
    anchor: jax.Array,
    inputs: embedding.PreprocessedInput,
    refs: Mapping[str, embedding.EmbeddingVariables],
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations whose backward pass updates `refs` in place.

  JAX runs a backward pass only for values that something differentiable flows
  into, and ids are integers. So a layer owns one float parameter, the anchor,
  that the lookup takes and ignores; its gradient is zero.

  Args:
    config: specs and devices.
    anchor: f32[], a parameter that the loss is differentiated by.
    inputs: the buffers of all devices.
    refs: stack name -> variables whose leaves are jax.Ref.
    step: passed to optimizers and schedules, or None.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  @jax.custom_vjp
  def differentiable(anchor, inputs, refs, step):
    del anchor, step
    return lookup(config, inputs, _read_tables(refs))[0]

  def forward(anchor, inputs, refs, step):
    del anchor
    activations, has_failed = lookup(config, inputs, _read_tables(refs))
    return activations, (inputs, refs, step, has_failed)

  def backward(residuals, gradients):
    inputs, refs, step, has_failed = residuals
    values = jax.tree.map(lambda ref: ref[...], refs)
    _write(refs, update(config, gradients, inputs, values, step, has_failed))
    return jnp.zeros(()), None, None, None

  differentiable.defvjp(forward, backward)
  return differentiable(anchor, inputs, dict(refs), step)


def lookup_returning_tables(
    config: LookupConfig,
    variables: Mapping[str, embedding.EmbeddingVariables],
    seal: jax.Array,
    inputs: embedding.PreprocessedInput,
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations with the new variables as the "gradient" of `variables`.

  Args:
    config: specs and devices.
    variables: stack name -> (table, slots).
    seal: f32[5], beside the tables; its "gradient" is the new seal. The lookup
      raises if another thing than such a gradient was put in its place.
    inputs: the buffers of all devices. They have no gradient.
    step: passed to optimizers and schedules, or None.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  @jax.custom_vjp
  def differentiable(variables, seal, inputs, step):
    del step
    return lookup(config, inputs, variables, seal=seal)[0]

  def forward(variables, seal, inputs, step):
    activations, has_failed = lookup(config, inputs, variables, seal=seal)
    return activations, (variables, inputs, step, has_failed)

  def backward(residuals, gradients):
    variables, inputs, step, has_failed = residuals
    new = update(config, gradients, inputs, variables, step, has_failed)
    return new, _seal.seal_of_batch(inputs), None, None

  differentiable.defvjp(forward, backward)
  return differentiable(variables, seal, inputs, step)


def _options(config: LookupConfig) -> dict[str, Any]:
  return dict(
      global_device_count=config.num_shards,
      num_sc_per_device=config.num_sc_per_device,
      sharding_strategy=config.table_sharding_strategy,
      enable_minibatching=config.enable_minibatching,
      feature_stacking_strategy=config.feature_stacking_strategy,
  )


def _read_tables(refs: Mapping[str, Any]) -> dict[str, Any]:
  return {name: (variables[0][...],) for name, variables in refs.items()}


def _write(refs: Any, values: Any) -> None:
  for ref, value in zip(jax.tree.leaves(refs), jax.tree.leaves(values)):
    ref[...] = value
