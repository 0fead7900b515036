# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of 8-bit codes for lookups: a third of the memory at 128 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
import numpy as np


class EmbeddingVariables(NamedTuple):
  """The table of a stack and the optimizer's slots.

  Attributes:
    table: [rows, D].
    slot: f32[rows, D] each, or f32[rows, 1] where a row has one number.
  """

  table: Any
  slot: tuple[Any, ...]


def int8_variables(
    embedding_variables: Mapping[str, Any],
) -> dict[str, EmbeddingVariables]:
  """Variables that tpu_sparse_dense_matmul and lookup_ids take; updates do not.

  Each row has a scale of its own, of which a number is off by half at most.
  Shardings are those of the tables. On CPUs native calls look them up, on TPU
  kernels of SparseCores.

  Args:
    embedding_variables: stack name -> (table [rows, D], slots), not changed.

  Returns:
    Stack name -> (i32[rows, W], no slots), rows as in quantized_rows.py.

  Raises:
    ValueError: if a table has no columns, or is int8 already; or a row has a
      number that is not finite, or two that are further apart than 2^127.
  """
  result = {}
  for name, (table, *_) in embedding_variables.items():
    if table.ndim != 2 or not jnp.issubdtype(table.dtype, jnp.floating):
      raise ValueError(
          f"Stack {name!r}: the table must be [rows, D] of floating point"
          f" numbers, got {table.dtype.name}{list(table.shape)}."
      )
    num_rows, first = np.asarray(_rows_without_codes(table))
    if num_rows:
      raise ValueError(
          f"Stack {name!r}: {num_rows} rows cannot be int8 codes. The first is"
          f" row {first} of the stack: its numbers must be finite, and no"
          " further apart than 2^127."
      )
    words = jax.eval_shape(quantized_rows.encode, table)
    encode = jax.jit(
        lambda x: quantized_rows.encode(x.astype(jnp.float32)),
        out_shardings=table_layouts.embedding_table_format_with_sharding(
            table.sharding, words.shape, words.dtype
        ),
    )
    result[name] = EmbeddingVariables(encode(table), ())
  return result


@jax.jit
def _rows_without_codes(table: jax.Array) -> jax.Array:
  """i32[2]: how many rows cannot be encoded, and the first of them."""
  rows = table.astype(jnp.float32)
  has_codes = jnp.max(rows, axis=1) - jnp.min(rows, axis=1) <= 2.0**127
  counts = jnp.stack([jnp.sum(~has_codes), jnp.argmin(has_codes)])
  return counts.astype(jnp.int32)
