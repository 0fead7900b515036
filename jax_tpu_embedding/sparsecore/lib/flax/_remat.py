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
from jax.interpreters import mlir
from jax.interpreters import partial_eval


def save(activations: Any) -> Any:
  """`activations`, a tree of arrays; they are not recomputed."""
  return jax.tree.map(_save_p.bind, activations)


def _partial_eval(
    unused_saveable: Any, is_unknown: list[bool], is_here: list[bool], eqn: Any
) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
  """Which of the two passes has the equation: the forward pass alone.

  There the result is known, and it is not made anew in the backward pass. So if
  that needs it, JAX saves it.
  """
  if any(is_unknown):
    operands = [x for x, here in zip(eqn.invars, is_here) if not here]
    return None, eqn, [True], [True], operands
  return eqn, None, [False], [False], []


_save_p = core.Primitive("save_activations")
_save_p.def_impl(lambda activations: activations)
_save_p.def_abstract_eval(lambda activations: activations)
mlir.register_lowering(_save_p, lambda unused_ctx, activations: [activations])
partial_eval.partial_eval_jaxpr_custom_rules[_save_p] = _partial_eval
