# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Dense gradients whose bits do not depend on where the devices are.

A sum over samples that are divided among devices is added up by whoever
exchanges it: the devices of one process in another order than processes do
(Gloo). Here every device sends its own sum, and all add them in the order of
the devices. So a job has the bits of one process with as many devices.

The price is that each device receives one gradient of the dense layers per
device, instead of one or two.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp


def apply(
    function: Callable[..., jax.Array], parameters: Any, *samples: Any
) -> jax.Array:
  """`function(parameters, *samples)`, by each device on its own samples.

  Args:
    function: its results for a sample depend on no other sample.
    parameters: a tree of arrays, the same on all devices of jax.set_mesh.
    *samples: trees of arrays [B, ...], divided among these devices.
  """
  if _num_devices() == 1:
    return function(parameters, *samples)
  return jax.shard_map(
      lambda copy, *own: function(jax.tree.map(lambda x: x[0], copy), *own),
      in_specs=_divided(),
      out_specs=_divided(),
  )(_copies(parameters), *samples)


def mean(values: jax.Array) -> jax.Array:
  """The mean of `values` f32[B], which are divided among devices; f32[]."""
  return jnp.mean(values if _num_devices() == 1 else _everywhere(values))


@jax.custom_vjp
def _copies(parameters: Any) -> Any:
  """The arrays [...] as [devices, ...], of which each device has one."""
  return jax.tree.map(
      lambda x: jax.lax.with_sharding_constraint(
          jnp.broadcast_to(x, (_num_devices(), *x.shape)), _divided()
      ),
      parameters,
  )


def _sums(_, gradients: Any) -> tuple[Any]:
  return (
      jax.tree.map(
          lambda x: functools.reduce(operator.add, list(_everywhere(x))),
          gradients,
      ),
  )


_copies.defvjp(lambda parameters: (_copies(parameters), None), _sums)


def _num_devices() -> int:
  """Of the mesh of jax.set_mesh; 1 without."""
  return max(1, jax.sharding.get_abstract_mesh().size)


def _divided() -> jax.sharding.PartitionSpec:
  """By the first dimension, among all devices."""
  axes = jax.sharding.get_abstract_mesh().axis_names
  return jax.sharding.PartitionSpec(axes)


def _everywhere(x: jax.Array) -> jax.Array:
  return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec())
