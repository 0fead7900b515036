# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An optimizer for models some of whose variables update themselves."""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _seal
from jax_tpu_embedding.sparsecore.lib.flax.nnx import _embedding_variables
import optax


class PartitionedOptimizer(nnx.Optimizer):
  """Optimizes dense parameters with optax, and takes the new tables.

  Tables have no state here, and no learning rate: their specs say which
  optimizer the backward pass of a lookup runs.
  """

  def __init__(
      self, model: Any, dense_optimizer: optax.GradientTransformation
  ) -> None:
    """Initializes the state of `dense_optimizer` for the dense parameters."""
    super().__init__(
        model,
        # Some transformations want keywords, such as value=loss, and the others
        # must not fail for them.
        optax.with_extra_args_support(dense_optimizer),
        # Variables that are not Params, such as the state of a dropout, have no
        # gradients.
        wrt=nnx.All(nnx.Param, _embedding_variables.is_non_embedding_variables),
    )

  def update(self, model: Any, grads: Any, /, **kwargs: Any) -> optax.Updates:
    """Replaces tables by new ones and updates dense parameters.

    Args:
      model: mutated.
      grads: what nnx.grad or nnx.value_and_grad returned for `model`. Tables
        that are not in it stay as they are, and so do those of a layer that
        the loss does not use, whose gradient is zero.
      **kwargs: for the dense optimizer, which may ignore them.

    Returns:
      What was added to the dense parameters.

    Raises:
      ValueError: if the new tables are not the result of one update. Inside
        jit, where they cannot be looked at, the next lookup raises.
    """
    is_tables = _embedding_variables.is_embedding_variables
    old = dict(nnx.to_flat_state(nnx.state(model, is_tables)))
    new = dict(nnx.to_flat_state(nnx.state(grads, is_tables)))
    replaced = []
    for path, variable in new.items():
      seal = new.get((*path[:-1], _seal.NAME))
      if seal is not None:
        variable = variable.replace(
            _seal.replace(
                old[path].get_value(), variable.get_value(), seal.get_value()
            )
        )
      replaced.append((path, variable))
    nnx.update(model, nnx.from_flat_state(replaced))
    return super().update(model, grads, **kwargs)
