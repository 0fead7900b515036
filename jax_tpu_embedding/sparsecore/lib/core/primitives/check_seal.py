# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether five numbers are (1, h, h * h, g, g * g), as a primitive.

Operands: seal f32[5], the number of minibatches of a batch i32, and the gains
f32[B] of any number of stacks. Results: the last two kinds. They are what they
were if the seal is intact. If not, the program raises `message`, on CPU, or the
gains are NaN, and so is what a lookup makes of them.

What the numbers stand for is the caller's affair: lib/flax/bridge/_seal.py.

Source: docs/reference/primitives.md, "Check of a seal".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils


def _abstract_eval(
    seal, num_minibatches, *gains, message: str
) -> list[jax.core.ShapedArray]:
  del message
  utils.ensure_dtype(seal, jnp.float32, "seal")
  if seal.shape != (5,):
    raise ValueError(f"seal must have shape (5,), got {seal.shape}.")
  return [
      jax.core.ShapedArray(x.shape, x.dtype) for x in (num_minibatches, *gains)
  ]


check_seal_p = define.primitive(
    "check_seal",
    _abstract_eval,
    operation="check_seal",
    multiple_results=True,
    differentiation_hint=(
        "it has no gradient. In a layer whose tables are parameters, the"
        ' "gradient" by these are new tables, which cannot be differentiated'
        " once more. Leave the layer's parameters out of the inner gradient, or"
        " pass tables='ref'."
    ),
    can_be_mapped=True,
)
