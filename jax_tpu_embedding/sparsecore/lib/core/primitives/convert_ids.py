# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Raw ids of one stack on one device to COO buffers, as a primitive.

The converter's work, inside a compiled program. Operands: for each feature of
the stack, ordered by row offset, ids i32[samples, valency] of this device;
then, with `has_weights`, as many weights f32[samples, valency].
Results: row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B],
gains f32[B], laid out as without minibatching. The shapes of the ids bound the
number of entries, so B is large enough for any ids and nothing is dropped.

`lowering/reference_convert_ids.py` defines it in jnp.

Source: docs/reference/buffer_format.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference_convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

COMBINERS = ("sum", "mean", "sqrtn")


def _abstract_eval(
    *operands,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    feature_names: tuple[str, ...],
    row_offsets: tuple[int, ...],
    col_offsets: tuple[int, ...],
    col_shifts: tuple[int, ...],
    vocabulary_sizes: tuple[int, ...],
    has_weights: bool,
) -> tuple[jax.core.ShapedArray, ...]:
  """Checks the operands; the shapes of the buffers."""
  if combiner not in COMBINERS:
    raise ValueError(
        f"combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}."
    )
  utils.ensure_positive(global_device_count, "global_device_count")
  utils.ensure_positive(num_sc_per_device, "num_sc_per_device")
  num_features = len(feature_names)
  utils.ensure_positive(num_features, "the number of features")
  for name, values in (
      ("row_offsets", row_offsets),
      ("col_offsets", col_offsets),
      ("col_shifts", col_shifts),
      ("vocabulary_sizes", vocabulary_sizes),
  ):
    if len(values) != num_features:
      raise ValueError(
          f"{name} must have one value for each of the {num_features}"
          f" features, got {len(values)}."
      )
  expected = num_features * (2 if has_weights else 1)
  if len(operands) != expected:
    raise ValueError(
        f"convert_ids takes {expected} operands for {num_features} features"
        f" with has_weights={has_weights}, got {len(operands)}."
    )
  for name, ids in zip(feature_names, operands):
    _check_ids(ids, num_sc_per_device, name)
  for name, ids, weights in zip(
      feature_names, operands, operands[num_features:]
  ):
    utils.ensure_dtype(weights, jnp.float32, f"Feature {name!r}: weights")
    utils.ensure_shape(weights, ids.shape, f"Feature {name!r}: weights")

  topology = layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  num_ids = sum(ids.size for ids in operands[:num_features])
  cells = num_sc_per_device * reference_convert_ids.cells_per_sc(
      num_ids // num_sc_per_device, topology.num_scs
  )
  return (
      jax.core.ShapedArray(
          (layout.row_pointers_per_device(topology),), jnp.int32
      ),
      jax.core.ShapedArray((cells,), jnp.int32),
      jax.core.ShapedArray((cells,), jnp.int32),
      jax.core.ShapedArray((cells,), jnp.float32),
  )


def _check_ids(ids, num_sc_per_device: int, feature_name: str) -> None:
  name = f"Feature {feature_name!r}: ids"
  utils.ensure_dtype(ids, jnp.int32, name)
  utils.ensure_dim(ids, 2, name)
  if ids.shape[0] % num_sc_per_device:
    raise ValueError(
        f"{name} must have a number of samples that the {num_sc_per_device}"
        f" SparseCores of a device can share equally, got {ids.shape[0]}."
    )


convert_ids_p = define.primitive(
    "convert_ids",
    _abstract_eval,
    operation="convert_ids",
    multiple_results=True,
    differentiation_hint=(
        "ids and weights have no gradients. Pass them through"
        " jax.lax.stop_gradient."
    ),
)
