# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup in rows that the device itself has, as a primitive.

Operands: embedding_ids i32[n], sample_ids i32[n], gains f32[n], table f32[rows,
D]. Result: f32[device_batch_size, D], the sum of gain * row over the entries of
each sample. All n are entries; devices exchange nothing.

Source: docs/reference/primitives.md, "Local lookup".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils


def _abstract_eval(
    embedding_ids, sample_ids, gains, table, *, device_batch_size: int
) -> jax.core.ShapedArray:
  """Checks the operands; the shape of the activations."""
  utils.ensure_dtype(sample_ids, jnp.int32, "sample_ids")
  utils.ensure_dtype(embedding_ids, jnp.int32, "embedding_ids")
  utils.ensure_dtype(gains, jnp.float32, "gains")
  utils.ensure_dtype(table, jnp.float32, "table")
  utils.ensure_dim(sample_ids, 1, "sample_ids")
  utils.ensure_shape(embedding_ids, sample_ids.shape, "embedding_ids")
  utils.ensure_shape(gains, sample_ids.shape, "gains")
  utils.ensure_dim(table, 2, "table")
  utils.ensure_positive(device_batch_size, "device_batch_size")
  return jax.core.ShapedArray((device_batch_size, table.shape[1]), jnp.float32)


local_lookup_p = define.primitive(
    "local_sparse_dense_matmul",
    _abstract_eval,
    operation="local_lookup",
    multiple_results=False,
    differentiation_hint=lookup.DIFFERENTIATION_HINT,
    can_be_mapped=True,
)
