# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups of batches that may be wrong, in programs that must not fail.

JAX gives the arrays that a program mutates to the program, and does not give
them back if it fails. So with tables in mutable or donated arrays, one id out
of range would cost all tables.

check_batch stands before the lookup of a stack. Operands: row_pointers i32[R],
embedding_ids i32[B], sample_ids i32[B], gains f32[B], num_minibatches i32[],
and the number of the device i32[]. Results: the row pointers for the lookup
i32[R], which may be looked up whatever the operands are; and has_failed
bool[1], whether the batch cannot be looked up: buffers are corrupt, or say that
their conversion failed. On CPU what was wrong is recorded (core/batch_errors.py).

nan_if_failed stands after the lookup. Operands: activations f32[samples, D] or
f32[samples], and has_failed. Result: the activations, or NaN.

Source: docs/reference/primitives.md, "Check of a batch".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

_HINT = "it has no gradient; call it in a jax.custom_vjp."


def _check_batch_abstract_eval(
    row_pointers,
    embedding_ids,
    sample_ids,
    gains,
    num_minibatches,
    device,
    *,
    num_devices: int,
    num_sc_per_device: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> list[jax.core.ShapedArray]:
  """Checks the operands; the shapes of the results."""
  del enable_minibatching
  for x, name in (
      (row_pointers, "row_pointers"),
      (embedding_ids, "embedding_ids"),
      (sample_ids, "sample_ids"),
  ):
    utils.ensure_dtype(x, jnp.int32, name)
    utils.ensure_dim(x, 1, name)
  utils.ensure_dtype(gains, jnp.float32, "gains")
  for x, name in ((num_minibatches, "num_minibatches"), (device, "device")):
    utils.ensure_dtype(x, jnp.int32, name)
    utils.ensure_dim(x, 0, name)
  for count, name in (
      (num_devices, "num_devices"),
      (num_sc_per_device, "num_sc_per_device"),
      (rows_per_device, "rows_per_device"),
      (batch_size, "batch_size"),
  ):
    utils.ensure_positive(count, name)
  return [
      jax.core.ShapedArray(row_pointers.shape, jnp.int32),
      jax.core.ShapedArray((1,), jnp.bool_),
  ]


def _nan_if_failed_abstract_eval(
    activations, has_failed
) -> jax.core.ShapedArray:
  utils.ensure_dtype(activations, jnp.float32, "activations")
  utils.ensure_shape(has_failed, (1,), "has_failed")
  return jax.core.ShapedArray(activations.shape, jnp.float32)


check_batch_p = define.primitive(
    "check_batch",
    _check_batch_abstract_eval,
    operation="check_batch",
    multiple_results=True,
    differentiation_hint=_HINT,
    can_be_mapped=True,
)

nan_if_failed_p = define.primitive(
    "nan_if_failed",
    _nan_if_failed_abstract_eval,
    operation="nan_if_failed",
    multiple_results=False,
    differentiation_hint=_HINT,
    can_be_mapped=True,
)
