# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup of one stack on one device, as a primitive.

Operands: row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B],
gains f32[B], num_minibatches i32[], table f32[rows, D] or f32[rows]; or with
int8_columns=D i32[rows, W], the rows of quantized_rows.py.
Result: f32[device_batch_size, D], the sum of gain * row over the entries of
each sample; f32[device_batch_size] if the table has no columns.
`lowering/reference/lookup_and_update.py` defines it in jnp.

Source: docs/reference/primitives.md, "Lookup".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils
import numpy as np

DIFFERENTIATION_HINT = (
    "its backward pass is the update, which steps the optimizer. Use the"
    " SparseCoreEmbed layer, or pass the gradient of the activations to"
    " tpu_sparse_dense_matmul_grad."
)


def _abstract_eval(
    row_pointers,
    embedding_ids,
    sample_ids,
    gains,
    num_minibatches,
    table,
    *,
    device_batch_size: int,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    sharding_strategy: int = utils.MOD_SHARDING,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    int8_columns: int | None = None,
) -> jax.core.ShapedArray:
  """Checks the operands; the shape of the activations."""
  del enable_minibatching  # Both layouts have the same operands.
  if int8_columns is not None:
    table = _decoded(table, int8_columns)
  utils.validate_abstract_eval_params(
      row_pointers,
      embedding_ids,
      sample_ids,
      gains,
      num_minibatches,
      table,
      None,
      max_ids_per_partition=max_ids_per_partition,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      computation_name="lookup",
      sharding_strategy=sharding_strategy,
  )
  utils.ensure_positive(device_batch_size, "device_batch_size")
  if quantization_config is not None:
    _check_quantization(*quantization_config)
  return jax.core.ShapedArray(
      (device_batch_size, *table.shape[1:]), jnp.float32
  )


def _decoded(words, num_columns: int) -> jax.core.ShapedArray:
  """The shape of the table whose rows are codes in `words`."""
  utils.ensure_positive(num_columns, "int8_columns")
  utils.ensure_dtype(words, jnp.int32, "table")
  utils.ensure_dim(words, 2, "table")
  utils.ensure_shape(
      words,
      (words.shape[0], quantized_rows.words_per_row(num_columns)),
      f"table of {num_columns} int8 columns",
  )
  return jax.core.ShapedArray((words.shape[0], num_columns), jnp.float32)


def _check_quantization(
    min_value: float, max_value: float, num_buckets: int
) -> None:
  utils.ensure_integer(num_buckets, "quantization_config: num_buckets")
  if num_buckets < 2:
    raise ValueError(
        "quantization_config: num_buckets must be at least 2, got"
        f" {num_buckets}."
    )
  if min_value >= max_value:
    raise ValueError(
        "quantization_config: min_value must be less than max_value, got"
        f" {min_value} >= {max_value}."
    )
  # A lookup has these numbers, and this quotient, in float32.
  with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
    difference = np.float32(float(max_value) - float(min_value))
    used = np.float32([min_value, max_value, difference])
    quotient = np.float32(num_buckets - 1) / difference
  if not np.isfinite([*used, quotient]).all():
    raise ValueError(
        "quantization_config: min_value, max_value, their difference, and"
        " num_buckets - 1 divided by that must be finite in float32, got"
        f" {min_value}, {max_value}, {difference} and {quotient}. Use values"
        " that table rows have."
    )


lookup_p = define.primitive(
    "sparse_dense_matmul_csr",
    _abstract_eval,
    operation="lookup",
    multiple_results=False,
    differentiation_hint=DIFFERENTIATION_HINT,
    can_be_mapped=True,
)
