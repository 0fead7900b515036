# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update compiled for a mesh that need not be there.

SparseCores have little memory of their own, and how many distinct rows of a
partition fit depends on the chip, the width, the optimizer and the compiler. No
formula is known: asking is.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _conversion
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _shapes
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.step import _update
import numpy as np

# What the TPU compiler says of limits that do not fit.
_DOES_NOT_FIT = ("E3001", "No viable logical replica count")

# What tables have if nobody says otherwise. So many distinct rows are not asked
# for: it takes seconds for each stack.
_DEFAULT_UNIQUE = 256


def compile_check(
    feature_specs: Any,
    mesh: jax.sharding.Mesh,
    sharding_axis: str,
    *,
    enable_minibatching: bool = True,
) -> Callable[[str, _limits.StackLimits], bool]:
  """A function (stack name, limits) -> whether they compile.

  For AdaptiveLimits(ceiling=...). A call takes one to ten seconds; answers are
  kept.

  Args:
    feature_specs: prepared specs.
    mesh: of the devices, which may be those of a topology without hardware.
    sharding_axis: the axis that tables and batches are split over.
    enable_minibatching: the layout of the buffers.
  """
  num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  answers = {}

  def compiles(name: str, limits: _limits.StackLimits) -> bool:
    key = name, limits
    if key not in answers:
      answers[key] = ask(name, limits)
    return answers[key]

  def ask(name, limits):
    specs = _limits.Limits(((name, limits),), enable_minibatching).on_copies(
        features_of_stack(feature_specs, name), num_sc
    )
    lowered = lower_step(
        specs, mesh, sharding_axis, enable_minibatching=enable_minibatching
    )
    try:
      lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if does_not_fit(error):
        return False
      raise
    return True

  return compiles


def compile_check_on_these_devices(
    feature_specs: Any, conversion: _conversion.Conversion
) -> Callable[[str, _limits.StackLimits], bool]:
  """compile_check over JAX's first devices, which are asked for when called.

  Any limits can be had without SparseCores, and where programs are for other
  devices than those that are there.

  Args:
    feature_specs: prepared specs.
    conversion: of their batches.
  """

  @functools.cache
  def compiler():
    devices = jax.devices()[: conversion.global_device_count]
    if (
        len(devices) < conversion.global_device_count
        or hardware.emulates_sparsecores(devices[0])
        or hardware.num_sparsecores_per_device(devices[0])
        != conversion.num_sc_per_device
    ):
      return lambda name, limits: True
    return compile_check(
        feature_specs,
        jax.sharding.Mesh(devices, ("x",)),
        "x",
        enable_minibatching=conversion.enable_minibatching,
    )

  def compiles(name, limits):
    if limits.max_unique_ids_per_partition <= _DEFAULT_UNIQUE:
      return True
    return compiler()(name, limits)

  return compiles


def does_not_fit(error: Exception) -> bool:
  """Whether the compiler says so of limits that are too large."""
  return any(text in str(error) for text in _DOES_NOT_FIT)


def features_of_stack(
    feature_specs: Any, name: str
) -> dict[str, _tables.FeatureSpec]:
  """The prepared features of a stack, by name."""
  return {
      feature.name: feature
      for feature in jax.tree.leaves(feature_specs)
      if feature.table_spec.stacked_table_spec.stack_name == name
  }


def lower_step(
    feature_specs: Any,
    mesh: jax.sharding.Mesh,
    sharding_axis: str,
    *,
    enable_minibatching: bool = False,
) -> jax.stages.Lowered:
  """A step of all stacks, whose gradients are the activations of its lookup.

  Args:
    feature_specs: prepared specs.
    mesh: of the devices, which may be those of a topology without hardware.
    sharding_axis: the axis that tables and batches are split over.
    enable_minibatching: the layout of the buffers.
  """
  num_devices = mesh.shape[sharding_axis]
  by_device = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(sharding_axis)
  )
  of_rows = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(sharding_axis, None)
  )
  inputs = jax.tree.map(
      lambda x: x.update(sharding=by_device),
      _shapes.eval_preprocess_sparse_dense_matmul_input_shape(
          feature_specs,
          num_devices,
          num_devices,
          num_sc_per_device=hardware.num_sparsecores_per_device(
              mesh.devices.flat[0]
          ),
          enable_minibatching=enable_minibatching,
      ),
  )

  def split_array(shape, dtype):
    return jax.ShapeDtypeStruct(
        shape,
        dtype,
        sharding=table_layouts.embedding_table_format_with_sharding(
            of_rows, shape, dtype
        ),
    )

  def replicated_array(shape, dtype):
    return jax.ShapeDtypeStruct(
        shape,
        dtype,
        sharding=by_device.update(spec=jax.sharding.PartitionSpec()),
    )

  stacks = _prepared.get_stacked_table_specs(feature_specs)
  variables = {}
  for name, stack in stacks.items():
    array = replicated_array if stack.is_replicated else split_array
    rows, columns = stack.stack_vocab_size, stack.stack_embedding_dim
    slots = tuple(
        array((rows, 1 if is_of_rows else columns), np.float32)
        for is_of_rows in stack.optimizer.slot_variables_of_rows()
    )
    variables[name] = array((rows, columns), stack.dtype), slots

  def step(inputs, variables):
    activations = _lookup.tpu_sparse_dense_matmul(
        inputs, variables, feature_specs
    )
    return _update.tpu_sparse_dense_matmul_grad(
        activations, inputs, variables, feature_specs, step=0, rounding_seed=0
    )

  spec = jax.sharding.PartitionSpec(sharding_axis)
  of_tables = {
      name: jax.sharding.PartitionSpec() if stack.is_replicated else spec
      for name, stack in stacks.items()
  }
  jitted = jax.jit(
      jax.shard_map(
          step,
          mesh=mesh,
          in_specs=(spec, of_tables),
          out_specs=of_tables,
          check_vma=False,
      ),
      donate_argnums=1,
      out_shardings=jax.tree.map(
          lambda x: x.format if x.format.layout else x.sharding, variables
      ),
  )
  return jitted.lower(inputs, variables)
