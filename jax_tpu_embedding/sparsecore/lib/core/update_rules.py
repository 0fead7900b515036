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

COO_OPERANDS = (
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
  f32[], or bool[] if it is one of `bool_hyperparameters`. `grad` is the row's
  gradient, summed over the batch. Clipping is not part of a step.
  """

  name: str  # as in the computation name "sgd-<stack name>"
  primitive_name: str
  slots: tuple[str, ...] = ()  # in operand order
  hyperparameters: tuple[str, ...]  # in operand order
  bool_hyperparameters: tuple[str, ...] = ()  # those that are not float32
  static_params: tuple[str, ...] = ()  # required, beside those of every rule
  step: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]

  @property
  def operand_names(self) -> tuple[str, ...]:
    """The operands of the update primitive, in order."""
    return (
        *COO_OPERANDS,
        "table",
        *self.slots,
        "activation_gradient",
        *self.hyperparameters,
    )

  def group_operands(self, operands: tuple[Any, ...]) -> UpdateOperands:
    """`operands`, ordered as operand_names."""
    table = len(COO_OPERANDS)
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


def _adagrad_momentum(grad, row, slots, hyper):
  """Adagrad whose scaled gradients are averaged."""
  accumulator, momentum = slots
  learning_rate, decay, beta2, epsilon, exponent, use_nesterov = hyper
  square = grad * grad
  accumulator = jnp.where(
      beta2 == 1,
      accumulator + square,
      beta2 * accumulator + (1 - beta2) * square,
  )
  scaled = (accumulator + epsilon) ** (-1 / exponent) * grad
  momentum = decay * momentum + scaled
  ahead = decay * momentum + scaled
  row = row - learning_rate * jnp.where(use_nesterov, ahead, momentum)
  return row, (accumulator, momentum)


def _ftrl(grad, row, slots, hyper, *, multiply_linear_by_learning_rate):
  """The old row matters only for the new `linear`."""
  accumulator, linear = slots
  learning_rate, learning_rate_power, l1, l2, beta = hyper
  old_power = accumulator**-learning_rate_power
  accumulator = accumulator + grad * grad
  power = accumulator**-learning_rate_power
  change = power - old_power
  if multiply_linear_by_learning_rate:
    linear = (linear + learning_rate * grad) - change * row
    threshold = l1 * learning_rate
    denominator = (power + 2 * (learning_rate * l2)) + beta
  else:
    linear = (linear + grad) - (change / learning_rate) * row
    threshold = l1
    denominator = (power + beta) / learning_rate + 2 * l2
  shrunk = jax.lax.clamp(-threshold, linear, threshold) - linear
  row = jnp.where(l1 == 0, -linear, shrunk) / denominator
  return row, (accumulator, linear)


def _laprop(grad, row, slots, hyper):
  """Unlike in Adam, gradients are scaled before they are averaged."""
  mu, nu = slots
  learning_rate, b1, decay_rate, eps = hyper
  nu = nu * decay_rate + (1 - decay_rate) * (grad * grad + eps)
  mu = b1 * mu + ((1 - b1**2) ** 0.5) * (grad / jnp.sqrt(nu))
  return row - learning_rate * mu, (mu, nu)


def _f2a(grad, row, slots, hyper):
  """Adagrad with larger steps for rows that occur in few batches."""
  accumulator, local_step = slots
  learning_rate, rho, l1, l2, max_lr_multiplier, global_step = hyper
  local_step = local_step + 1
  rarity = (jnp.maximum(global_step, 1) / local_step) ** rho
  multiplier = jnp.minimum(rarity, max_lr_multiplier)
  accumulator = accumulator + grad * grad
  decay = l1 * jnp.sign(row) + l2 * row
  row = row - learning_rate * (
      (grad * multiplier) / jnp.sqrt(accumulator) + decay
  )
  return row, (accumulator, local_step)


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
    UpdateRule(
        name="adagrad_momentum",
        primitive_name="sparse_dense_matmul_grad_with_adagrad_momentum",
        slots=("accumulator", "momentum"),
        hyperparameters=(
            "learning_rate",
            "momentum_param",
            "beta2",
            "epsilon",
            "exponent",
            "use_nesterov",
        ),
        bool_hyperparameters=("use_nesterov",),
        step=_adagrad_momentum,
    ),
    UpdateRule(
        name="ftrl",
        primitive_name="sparse_dense_matmul_grad_with_ftrl",
        slots=("accumulator", "linear"),
        hyperparameters=(
            "learning_rate",
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
        ),
        static_params=("multiply_linear_by_learning_rate",),
        step=_ftrl,
    ),
    UpdateRule(
        name="laprop",
        primitive_name="sparse_dense_matmul_grad_with_laprop_primitive",
        slots=("mu", "nu"),
        hyperparameters=("learning_rate", "b1", "decay_rate", "eps"),
        step=_laprop,
    ),
    UpdateRule(
        name="f2a",
        primitive_name="tpu_sparse_dense_matmul_grad_with_f2a",
        slots=("accumulator", "local_step"),
        hyperparameters=(
            "learning_rate",
            "rho",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "max_lr_multiplier",
            "global_step",
        ),
        step=_f2a,
    ),
)

UPDATE_RULES = {rule.name: rule for rule in _RULES}
