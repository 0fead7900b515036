# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Activations and gradients of features, cut out of a stack and put together.

Reshapes and slices, on every platform: the TPU compiler has custom calls for
both, and does not compile them (libtpu 0.0.51: "Custom emitter not found").
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools

from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware


def unstack_activations(
    ctx: mlir.LoweringRuleContext,
    activations,
    *,
    per_feature_batch_sizes: tuple[int, ...],
    per_feature_dims: tuple[int, ...],
    num_sc_per_device: int | None = None,
):
  """Rule of the cut: each SparseCore has a run of samples of each feature."""
  num_scs = _num_sc_per_device(ctx, num_sc_per_device)
  _check_shares("per_feature_batch_sizes", per_feature_batch_sizes, num_scs)
  spans = _spans([size // num_scs for size in per_feature_batch_sizes])

  def unstack(activations):
    runs = activations.reshape(num_scs, -1, activations.shape[1])
    return [
        runs[:, begin:end, :dim].reshape(-1, dim)
        for (begin, end), dim in zip(spans, per_feature_dims, strict=True)
    ]

  return mlir.lower_fun(unstack, multiple_results=True)(ctx, activations)


def stack_gradients(
    ctx: mlir.LoweringRuleContext,
    *gradients,
    stacked_batch_size: int,
    stacked_feature_dim: int,
    num_sc_per_device: int | None = None,
):
  """Rule of the inverse; columns that a feature does not have are zero."""
  del stacked_batch_size  # the sum of the features' batches
  num_scs = _num_sc_per_device(ctx, num_sc_per_device)
  _check_shares("gradients", [g.shape[0] for g in ctx.avals_in], num_scs)

  def stack(*gradients):
    runs = [
        jnp.pad(g, ((0, 0), (0, stacked_feature_dim - g.shape[1]))).reshape(
            num_scs, -1, stacked_feature_dim
        )
        for g in gradients
    ]
    return jnp.concatenate(runs, axis=1).reshape(-1, stacked_feature_dim)

  return mlir.lower_fun(stack, multiple_results=False)(ctx, *gradients)


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
  return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def _check_shares(name: str, sizes: Sequence[int], num_scs: int) -> None:
  """Raises ValueError unless SparseCores share each batch evenly."""
  for number, size in enumerate(sizes):
    if size % num_scs:
      raise ValueError(
          f"{name}: feature {number} has {size} samples on a device, which"
          f" {num_scs} SparseCores cannot share evenly. Make its batch a"
          f" multiple of {num_scs}, or pass num_sc_per_device."
      )


def _num_sc_per_device(
    ctx: mlir.LoweringRuleContext, num_sc_per_device: int | None
) -> int:
  """The number given, or that of the devices that are compiled for."""
  mesh = getattr(ctx.module_context.axis_context, "mesh", None)
  if num_sc_per_device is None and mesh is not None:
    # Not the process's own devices when a program is compiled for others.
    return hardware.num_sparsecores_per_device(
        mesh.abstract_mesh.abstract_device
    )
  return hardware.resolve_num_sc_per_device(num_sc_per_device)
