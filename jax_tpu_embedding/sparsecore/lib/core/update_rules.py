# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every optimizer: what it keeps per row, what it is told, and one step.

A row of UPDATE_RULES is all that an optimizer needs: its primitive, its
lowering for every platform and its tests follow from it. A fused kernel for one
platform is an optional extra (cc/kernels/update_rules.h), tested against `step`.

To add one: a step function, and its line in UPDATE_RULES.

Source: docs/reference/primitives.md, "Update rules". Formulas are evaluated
exactly in the written association.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

_COO_OPERANDS = (
    "row_pointers",
    "embedding_ids",
    "sample_ids",
    "gains",
    "num_minibatches",
)


class UpdateOperands(NamedTuple):
  """Operands of an update, grouped; values, avals or MLIR values alike."""

  coo: tuple[Any, ...]  # row pointers, embedding ids, sample ids, gains, count
  table: Any
  slots: tuple[Any, ...]
  gradient: Any
  hyperparameters: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRule:
  """One optimizer.

  `step(grad, row, slots, hyper, **static_params)` returns the new row and the
  new slots. `grad`, `row` and each member of the tuple `slots` are f32[n, D],
  one row per distinct row of the table; each member of the tuple `hyper` is
  f32[]. `grad` is the row's gradient, summed over the batch. Clipping is not
  part of a step.
  """

  name: str  # as in the computation name "sgd-<stack name>"
  primitive_name: str
  slots: tuple[str, ...] = ()  # in operand order
  hyperparameters: tuple[str, ...]  # in operand order
  static_params: tuple[str, ...] = ()  # required, beside those of every rule
  step: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]

  @property
  def operand_names(self) -> tuple[str, ...]:
    """The operands of the update primitive, in order."""
    return (
        *_COO_OPERANDS,
        "table",
        *self.slots,
        "activation_gradient",
        *self.hyperparameters,
    )

  def group_operands(self, operands: tuple[Any, ...]) -> UpdateOperands:
    """`operands`, ordered as operand_names."""
    table = len(_COO_OPERANDS)
    gradient = table + 1 + len(self.slots)
    return UpdateOperands(
        coo=tuple(operands[:table]),
        table=operands[table],
        slots=tuple(operands[table + 1 : gradient]),
        gradient=operands[gradient],
        hyperparameters=tuple(operands[gradient + 1 :]),
    )


def _sgd(grad, row, slots, hyper):
  (learning_rate,) = hyper
  return row - grad * learning_rate, slots


def _adagrad(grad, row, slots, hyper):
  (accumulator,) = slots
  (learning_rate,) = hyper
  accumulator = accumulator + grad * grad
  row = row - (learning_rate * grad) / jnp.sqrt(accumulator)
  return row, (accumulator,)


def _adam(grad, row, slots, hyper):
  """The bias correction is in alpha_t and epsilon_hat."""
  momentum, velocity = slots
  alpha_t, beta_1, beta_2, epsilon_hat = hyper
  momentum = momentum + (1 - beta_1) * (grad - momentum)
  velocity = velocity + (1 - beta_2) * (grad * grad - velocity)
  row = row - (alpha_t * momentum) / (jnp.sqrt(velocity) + epsilon_hat)
  return row, (momentum, velocity)


_RULES = (
    UpdateRule(
        name="sgd",
        primitive_name="sparse_dense_matmul_grad_with_sgd",
        hyperparameters=("learning_rate",),
        step=_sgd,
    ),
    UpdateRule(
        name="adagrad",
        primitive_name="sparse_dense_matmul_grad_with_adagrad_primitive",
        slots=("accumulator",),
        hyperparameters=("learning_rate",),
        step=_adagrad,
    ),
    UpdateRule(
        name="adam",
        primitive_name="sparse_dense_matmul_grad_with_adam_primitive",
        slots=("momentum", "velocity"),
        hyperparameters=("alpha_t", "beta_1", "beta_2", "epsilon_hat"),
        step=_adam,
    ),
)

UPDATE_RULES = {rule.name: rule for rule in _RULES}
