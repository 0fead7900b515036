# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The gradients of the rows that a batch names, as primitives.

row_gradients_p is an update without the step of the optimizer. Operands:
row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B], gains f32[B],
num_minibatches i32[], activation_gradient f32[samples, D]. Results: i32[n], the
distinct rows of this device that any device names, ascending; and f32[n, D],
the gradient of each. Rows are counted over the tables of all devices, one after
another; after the last row comes PADDING_VALUE, with gradient zero.

sum_rows_p adds such results. Operands: rows i32[m] and values f32[m, D], as
often as there are results to add, each with its own m. Results: i32[n] and
f32[n, D], the distinct rows and the sum for each; n is the sum of all m.

Source: docs/reference/primitives.md, "Gradients of rows".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

DIFFERENTIATION_HINT = (
    "it is part of the backward pass. Call it on values outside of jax.grad."
)


def _abstract_row_gradients(
    row_pointers,
    embedding_ids,
    sample_ids,
    gains,
    num_minibatches,
    activation_gradient,
    *,
    global_device_count: int,
    rows_per_device: int,
    max_unique_ids_per_partition: int,
    enable_minibatching: bool = False,
) -> tuple[jax.core.ShapedArray, jax.core.ShapedArray]:
  """Checks the operands; the shapes of rows and gradients."""
  utils.ensure_dtype(row_pointers, jnp.int32, "row_pointers")
  utils.ensure_dtype(sample_ids, jnp.int32, "sample_ids")
  utils.ensure_dtype(embedding_ids, jnp.int32, "embedding_ids")
  utils.ensure_dtype(gains, jnp.float32, "gains")
  utils.ensure_dtype(num_minibatches, jnp.int32, "num_minibatches")
  utils.ensure_dtype(activation_gradient, jnp.float32, "activation_gradient")
  utils.ensure_dim(row_pointers, 1, "row_pointers")
  utils.ensure_dim(num_minibatches, 0, "num_minibatches")
  utils.ensure_dim(sample_ids, 1, "sample_ids")
  utils.ensure_shape(embedding_ids, sample_ids.shape, "embedding_ids")
  utils.ensure_shape(gains, sample_ids.shape, "gains")
  utils.ensure_dim(activation_gradient, 2, "activation_gradient")
  _ensure_columns(activation_gradient, "activation_gradient")
  utils.ensure_positive(rows_per_device, "rows_per_device")
  utils.ensure_positive(
      max_unique_ids_per_partition, "max_unique_ids_per_partition"
  )
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=layout.num_sc_per_device_from_row_pointers(
          row_pointers.shape[0], global_device_count, enable_minibatching
      ),
  )
  most_from_one_device = messages.capacity(
      topology,
      num_cells=embedding_ids.shape[0],
      rows_per_device=rows_per_device,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      enable_minibatching=enable_minibatching,
  )
  num_rows = min(global_device_count * most_from_one_device, rows_per_device)
  num_columns = activation_gradient.shape[1]
  return (
      jax.core.ShapedArray((num_rows,), jnp.int32),
      jax.core.ShapedArray((num_rows, num_columns), jnp.float32),
  )


def _abstract_sum_rows(
    *rows_and_values,
) -> tuple[jax.core.ShapedArray, jax.core.ShapedArray]:
  """Checks the operands; the shapes of rows and sums."""
  if not rows_and_values or len(rows_and_values) % 2:
    raise ValueError(
        "sum_rows takes rows and values, as often as there are gradients to"
        f" add, got {len(rows_and_values)} operands."
    )
  num_rows = 0
  num_columns = rows_and_values[1].shape[1:]
  for rows, values in zip(
      rows_and_values[::2], rows_and_values[1::2], strict=True
  ):
    utils.ensure_dtype(rows, jnp.int32, "rows")
    utils.ensure_dtype(values, jnp.float32, "values")
    utils.ensure_dim(rows, 1, "rows")
    utils.ensure_dim(values, 2, "values")
    _ensure_columns(values, "values")
    utils.ensure_shape(values, (*rows.shape, *num_columns), "values")
    num_rows += rows.size
  return (
      jax.core.ShapedArray((num_rows,), jnp.int32),
      jax.core.ShapedArray((num_rows, *num_columns), jnp.float32),
  )


def _ensure_columns(x: utils.Shaped, name: str) -> None:
  if x.shape[1] == 0:
    raise ValueError(
        f"{name} must have one column or more, got shape {tuple(x.shape)}."
    )


row_gradients_p = define.primitive(
    "sparse_dense_matmul_row_gradients",
    _abstract_row_gradients,
    operation="row_gradients",
    multiple_results=True,
    differentiation_hint=DIFFERENTIATION_HINT,
)
sum_rows_p = define.primitive(
    "sparse_dense_matmul_sum_rows",
    _abstract_sum_rows,
    operation="sum_rows",
    multiple_results=True,
    differentiation_hint=DIFFERENTIATION_HINT,
)
