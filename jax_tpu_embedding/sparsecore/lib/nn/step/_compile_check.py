# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether the lookup and update of a stack compile with given limits.

SparseCores have little memory of their own, and how many distinct rows of a
partition fit depends on the chip, the width, the optimizer and the compiler. No
formula is known: asking is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _preprocess
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.step import _lookup
from jax_tpu_embedding.sparsecore.lib.nn.step import _update
import numpy as np

# What the TPU compiler says of limits that do not fit.
_DOES_NOT_FIT = ("E3001", "No viable logical replica count")


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
  num_devices = mesh.shape[sharding_axis]
  num_sc = hardware.num_sparsecores_per_device(mesh.devices.flat[0])
  spec = jax.sharding.PartitionSpec(sharding_axis)
  by_device = jax.sharding.NamedSharding(mesh, spec)
  table_format = table_layouts.embedding_table_format_with_sharding(
      jax.sharding.NamedSharding(
          mesh, jax.sharding.PartitionSpec(sharding_axis, None)
      )
  )
  answers = {}

  def compiles(name: str, limits: _limits.StackLimits) -> bool:
    key = name, limits
    if key not in answers:
      answers[key] = ask(name, limits)
    return answers[key]

  def ask(name, limits):
    features = {
        feature.name: feature
        for feature in jax.tree.leaves(feature_specs)
        if feature.table_spec.stacked_table_spec.stack_name == name
    }
    specs = _limits.Limits(((name, limits),), enable_minibatching).on_copies(
        features, num_sc
    )
    (stack,) = _plan.get_stacked_table_specs(specs).values()
    inputs = jax.tree.map(
        lambda x: x.update(sharding=by_device),
        _preprocess.eval_preprocess_sparse_dense_matmul_input_shape(
            specs,
            num_devices,
            num_devices,
            num_sc_per_device=num_sc,
            enable_minibatching=enable_minibatching,
        ),
    )
    table = jax.ShapeDtypeStruct(
        (stack.stack_vocab_size, stack.stack_embedding_dim),
        stack.dtype,
        sharding=table_format,
    )
    slots = tuple(
        jax.ShapeDtypeStruct(
            (stack.stack_vocab_size, 1 if of_rows else table.shape[1]),
            np.float32,
            sharding=table_format,
        )
        for of_rows in stack.optimizer.slot_variables_of_rows()
    )
    variables = {name: (table, slots)}

    def step(inputs, variables):
      activations = _lookup.tpu_sparse_dense_matmul(inputs, variables, specs)
      return _update.tpu_sparse_dense_matmul_grad(
          activations, inputs, variables, specs, step=0
      )

    jitted = jax.jit(
        jax.shard_map(
            step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        ),
        donate_argnums=1,
        out_shardings=jax.tree.map(lambda _: table_format, variables),
    )
    try:
      jitted.lower(inputs, variables).compile()
    except jax.errors.JaxRuntimeError as error:
      if any(text in str(error) for text in _DOES_NOT_FIT):
        return False
      raise
    return True

  return compiles
