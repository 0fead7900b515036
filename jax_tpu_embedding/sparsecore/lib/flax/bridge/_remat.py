# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Activations that jax.checkpoint and nn.remat save, whatever their policy.

To recompute a lookup in the backward pass is wrong where tables are mutable: by
then the backward pass of a later block may have updated them, and the gradients
would be those of other activations than the forward pass had. It is slow where
they are not: over devices, rows are sent once more. Activations are small
beside what is computed from them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import core
from jax.interpreters import batching
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import jax_private


def save(activations: Any) -> Any:
  """`activations`, a tree of arrays; they are not recomputed."""
  return jax.tree.map(save_p.bind, activations)


save_p = core.Primitive("save_activations")
save_p.def_impl(lambda activations: activations)
save_p.def_abstract_eval(lambda activations: activations)
batching.defvectorized(save_p)
mlir.register_lowering(save_p, lambda unused_ctx, activations: [activations])
jax_private.never_recompute(save_p)
