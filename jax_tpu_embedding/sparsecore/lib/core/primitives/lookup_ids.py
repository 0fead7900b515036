# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup of one stack on one device straight from ids, as a primitive.

What convert_ids and lookup do together, and its bits, without the buffers: for
programs that only read, in evaluation and serving. Operands: the table
f32[rows, D] or f32[rows], bfloat16 or float16 as well, or with int8_columns=D
i32[rows, W], as in lookup.py; num_minibatches i32[], which is 1; and the ids of
each feature, as in convert_ids.py. Result: f32[device_batch_size, D], the sum of
gain * row over the ids of each sample; f32[device_batch_size] if the table has
no columns. Samples of the stack that no feature has are zero.

What is wrong with ids is what it is to convert_ids. With keeps_errors it makes
the activations of the device NaN, and on CPUs is recorded, as check_batch does;
else the program fails, on all devices if there are several.

Where there is no kernel, it is conversion, check and lookup.

Source: docs/reference/primitives.md, "Lookup from ids".
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering import table as lowerings
from jax_tpu_embedding.sparsecore.lib.core.primitives import check_batch
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup

DIFFERENTIATION_HINT = (
    "it is for programs that only read. Convert the ids, and see the hint of the"
    " lookup: " + lookup.DIFFERENTIATION_HINT
)
# Parameters that are not those of the conversion.
_OF_LOOKUP = (
    "device_batch_size",
    "max_ids_per_partition",
    "max_unique_ids_per_partition",
    "quantization_config",
    "int8_columns",
)


def _abstract_eval(
    table,
    num_minibatches,
    *ids,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    features: tuple[raw_ids.Feature, ...],
    feature_stacking_strategy: str,
    keeps_errors: bool,
    device_batch_size: int,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    quantization_config: tuple[float, float, int] | None = None,
    int8_columns: int | None = None,
) -> jax.core.ShapedArray:
  """Checks the operands as the parts do; the shape of the activations."""
  buffers = convert_ids.convert_ids_p.abstract_eval(
      *ids,
      combiner=combiner,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      features=features,
      feature_stacking_strategy=feature_stacking_strategy,
      keeps_errors=keeps_errors,
  )[0]
  return lookup.lookup_p.abstract_eval(
      *buffers,
      num_minibatches,
      table,
      device_batch_size=device_batch_size,
      max_ids_per_partition=max_ids_per_partition,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      quantization_config=quantization_config,
      int8_columns=int8_columns,
  )[0]


def _parts(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """The same by the primitives that read and write buffers."""
  axis = devices.axis_of(operands[0])
  converted = convert(operands, params, axis)
  with rows_are_split(axis):
    activations = lookup.lookup_p.bind(*converted.operands, **converted.params)
  return [nan_if_failed(activations, converted)]


class Converted(NamedTuple):
  """A lookup, once ids are in buffers."""

  operands: Sequence[jax.Array]  # of lookup_p
  params: dict[str, Any]
  has_failed: jax.Array | None  # bool[], with keeps_errors


def convert(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis | None,
) -> Converted:
  """The lookup that a lookup from ids is, over the devices along `axis`."""
  table, num_minibatches, *ids = operands
  of_conversion = {k: v for k, v in params.items() if k not in _OF_LOOKUP}
  buffers = convert_ids.convert_ids_p.bind(*ids, **of_conversion)
  has_failed = None
  if params["keeps_errors"]:
    device = jnp.int32(0)
    if axis is not None:
      device = lax.axis_index(axis.name)
    row_pointers, has_failed = check_batch.check_batch_p.bind(
        *buffers,
        num_minibatches,
        device,
        num_devices=params["global_device_count"],
        num_sc_per_device=params["num_sc_per_device"],
        rows_per_device=table.shape[0],
        batch_size=params["device_batch_size"],
        enable_minibatching=False,
    )
    buffers = row_pointers, *buffers[1:]
  return Converted(
      (*buffers, num_minibatches, table),
      {name: params[name] for name in _OF_LOOKUP if name in params},
      has_failed,
  )


def rows_are_split(
    axis: mesh_axis.MeshAxis | None,
) -> contextlib.AbstractContextManager[Any]:
  """For a lookup: the axis is known here, and has to be known there."""
  if axis is None:
    return contextlib.nullcontext()
  return mesh_axis.rows_are_split_over(axis.name)


def nan_if_failed(activations: jax.Array, converted: Converted) -> jax.Array:
  """The activations, or NaN if the errors that it keeps are any."""
  if converted.has_failed is None:
    return activations
  return check_batch.nan_if_failed_p.bind(activations, converted.has_failed)


lookup_ids_p = define.primitive(
    "lookup_ids",
    _abstract_eval,
    operation="lookup_ids",
    multiple_results=False,
    differentiation_hint=DIFFERENTIATION_HINT,
    parts=lowerings.lowering_rule(_parts),
)
