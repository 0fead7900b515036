# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup with an update as its backward pass, shared by the Flax layers.

Tables live in mutable arrays (jax.Ref). The forward pass reads them; the
backward pass runs the optimizer on the rows that the batch names and writes
them back in place. So tables have no gradient that could be summed, clipped or
fed to another optimizer by mistake.

JAX runs a backward pass only for values that something differentiable flows
into, and ids are integers. A layer therefore owns one float parameter, the
anchor, that the lookup takes and ignores; its gradient is always zero.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupConfig:
  """What a lookup and its update need to know besides arrays."""

  feature_specs: Any  # prepared
  topology: layout.Topology

  def read(self, refs: Any) -> Any:
    """The values of all refs."""
    return jax.tree.map(lambda ref: ref[...], refs)

  def lookup(self, inputs: embedding.PreprocessedInput, refs: Any) -> Any:
    """The activations of every feature."""
    return embedding.tpu_sparse_dense_matmul(
        inputs,
        self.read(refs),
        self.feature_specs,
        global_device_count=self.topology.global_device_count,
    )

  def update(
      self,
      gradients: Any,
      inputs: embedding.PreprocessedInput,
      refs: Any,
      step: Any,
  ) -> None:
    """Writes new rows to tables and slots."""
    new = embedding.tpu_sparse_dense_matmul_grad(
        gradients,
        inputs,
        self.read(refs),
        self.feature_specs,
        global_device_count=self.topology.global_device_count,
        step=step,
    )

    def write(ref, value):
      ref[...] = value

    jax.tree.map(write, refs, new)


def lookup_with_update(
    config: LookupConfig,
    anchor: jax.Array,
    inputs: embedding.PreprocessedInput,
    refs: Mapping[str, embedding.EmbeddingVariables],
    step: jax.typing.ArrayLike | None,
) -> Any:
  """Activations whose backward pass updates `refs` in place.

  Args:
    config: specs and topology.
    anchor: f32[], a parameter that the loss is differentiated by.
    inputs: buffers of one device.
    refs: stack name -> variables whose leaves are jax.Ref.
    step: passed to optimizers and schedules.

  Returns:
    The tree of feature specs with f32[*output_shape].
  """

  @jax.custom_vjp
  def lookup(anchor, inputs, refs, step):
    del anchor, step
    return config.lookup(inputs, refs)

  def forward(anchor, inputs, refs, step):
    del anchor
    return config.lookup(inputs, refs), (inputs, refs, step)

  def backward(residuals, gradients):
    inputs, refs, step = residuals
    config.update(gradients, inputs, refs, step)
    return jnp.zeros(()), None, None, None

  lookup.defvjp(forward, backward)
  return lookup(anchor, inputs, refs, step)
