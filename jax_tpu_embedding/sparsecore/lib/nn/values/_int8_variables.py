# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of 8-bit codes for lookups: a third of the memory at 128 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.nn.values import _initialize


def int8_variables(
    embedding_variables: Mapping[str, Any],
) -> dict[str, _initialize.EmbeddingVariables]:
  """Variables that tpu_sparse_dense_matmul takes, and updates do not.

  Each row has a scale of its own, of which a number is off by half at most.
  Shardings are those of the tables. On TPU kernels of SparseCores look them up.

  Args:
    embedding_variables: stack name -> (table [rows, D], slots), not changed.

  Returns:
    Stack name -> (i32[rows, W], no slots), rows as in quantized_rows.py.

  Raises:
    ValueError: if a table has no columns, or is int8 already.
  """
  result = {}
  for name, (table, *_) in embedding_variables.items():
    if table.ndim != 2 or not jnp.issubdtype(table.dtype, jnp.floating):
      raise ValueError(
          f"Stack {name!r}: the table must be [rows, D] of floating point"
          f" numbers, got {table.dtype.name}{list(table.shape)}."
      )
    words = jax.eval_shape(quantized_rows.encode, table)
    encode = jax.jit(
        lambda x: quantized_rows.encode(x.astype(jnp.float32)),
        out_shardings=table_layouts.embedding_table_format_with_sharding(
            table.sharding, words.shape, words.dtype
        ),
    )
    result[name] = _initialize.EmbeddingVariables(encode(table), ())
  return result
