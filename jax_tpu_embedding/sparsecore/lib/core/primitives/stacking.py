# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Activations and gradients of features, in a stack and apart, as primitives.

With S SparseCores, each has one run of a stack's samples, and in it, feature
after feature, an equal run of that feature's:

    stacked     SparseCore 0      SparseCore 1
                a0 a1 b0          a2 a3 b1
    feature a   a0 a1             a2 a3
    feature b         b0                b1

S is `num_sc_per_device`; None: that of the device that is compiled for.

Source: docs/reference/primitives.md, "Stacking".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

_DIFFERENTIATION_HINT = (
    "use unstack_embedding_activations and stack_embedding_gradients, which are"
    " made of operations that can be."
)


def _unstack_abstract_eval(
    activations,
    *,
    per_feature_batch_sizes: tuple[int, ...],
    per_feature_dims: tuple[int, ...],
    num_sc_per_device: int | None = None,
) -> list[jax.core.ShapedArray]:
  """Checks that the features are in the stack; their shapes."""
  utils.ensure_dtype(activations, jnp.float32, "activations")
  utils.ensure_dim(activations, 2, "activations")
  if num_sc_per_device is not None:
    utils.ensure_positive(num_sc_per_device, "num_sc_per_device")
  if len(per_feature_batch_sizes) != len(per_feature_dims):
    raise ValueError(
        "per_feature_batch_sizes and per_feature_dims must have one number for"
        f" each feature, got {len(per_feature_batch_sizes)} and"
        f" {len(per_feature_dims)}."
    )
  for number, size in enumerate(per_feature_batch_sizes):
    if size < 0:
      raise ValueError(
          f"per_feature_batch_sizes: feature {number} has {size} samples, which"
          " must not be negative."
      )
  _check_rows("activations", activations.shape[0], per_feature_batch_sizes)
  for number, dim in enumerate(per_feature_dims):
    _check_width(number, dim, activations.shape[1])
  return [
      jax.core.ShapedArray(shape, jnp.float32)
      for shape in zip(per_feature_batch_sizes, per_feature_dims, strict=True)
  ]


def _stack_abstract_eval(
    *gradients,
    stacked_batch_size: int,
    stacked_feature_dim: int,
    num_sc_per_device: int | None = None,
) -> jax.core.ShapedArray:
  """Checks that the stack has room for the gradients; its shape."""
  if not gradients:
    raise ValueError("There must be at least one gradient, got none.")
  if num_sc_per_device is not None:
    utils.ensure_positive(num_sc_per_device, "num_sc_per_device")
  for number, gradient in enumerate(gradients):
    utils.ensure_dtype(gradient, jnp.float32, f"gradient {number}")
    utils.ensure_dim(gradient, 2, f"gradient {number}")
    _check_width(number, gradient.shape[1], stacked_feature_dim)
  _check_rows(
      "stacked_batch_size", stacked_batch_size, [g.shape[0] for g in gradients]
  )
  return jax.core.ShapedArray(
      (stacked_batch_size, stacked_feature_dim), jnp.float32
  )


def _check_rows(name: str, num_rows: int, batch_sizes) -> None:
  if sum(batch_sizes) != num_rows:
    raise ValueError(
        f"{name}: the stack has {num_rows} samples, and its features"
        f" {' + '.join(map(str, batch_sizes))} = {sum(batch_sizes)}. They must"
        " be as many."
    )


def _check_width(number: int, dim: int, stacked_dim: int) -> None:
  if not 0 < dim <= stacked_dim:
    raise ValueError(
        f"Feature {number} has {dim} columns, which must be 1 to {stacked_dim},"
        " the columns of the stack."
    )


unstack_activations_p = define.primitive(
    "sparse_dense_matmul_activation_unstack",
    _unstack_abstract_eval,
    operation="unstack_activations",
    multiple_results=True,
    differentiation_hint=_DIFFERENTIATION_HINT,
    can_be_mapped=True,
)
stack_gradients_p = define.primitive(
    "sparse_dense_matmul_gradient_stack",
    _stack_abstract_eval,
    operation="stack_gradients",
    multiple_results=False,
    differentiation_hint=_DIFFERENTIATION_HINT,
    can_be_mapped=True,
)
