# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every optimizer: what it keeps per row, what it is told, and one step.

A row of UPDATE_RULES is all that an optimizer needs to run: its primitive, and
its lowering for every platform, follow from it. A fused kernel for one
platform is an optional extra (cc/kernels/update/update_rules.h), tested against `step`.

To add one: a step function, and its row in _RULES. CONTRIBUTING.md has what
else goes with it: a spec, a case for the tests, a line of the documents.

Source: docs/reference/primitives.md, "Update rules". Formulas are evaluated
exactly in the written association.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options as options

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
  hyperparameters: tuple[Any, ...]  # the numbers of row options at their end
  rounding_seed: Any = None  # u32[], if the rule takes one


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRule:
  """One optimizer.

  `step(grad, row, slots, hyper, **static_params)` returns the new row and the
  new slots. `grad`, `row` and each member of the tuple `slots` are f32[n, D],
  one row per distinct row of the table, or f32[n, 1] if the slot is one of
  `row_slots`; each member of the tuple `hyper` is f32[], or bool[] if it is one
  of `bool_hyperparameters`. `grad` is the row's gradient, summed over the
  batch. Clipping to limits, and rounding to the table's type, are not part of a
  step.
  """

  name: str  # as in the computation name "sgd-<stack name>"
  primitive_name: str
  slots: tuple[str, ...] = ()  # in operand order
  row_slots: tuple[str, ...] = ()  # those with one number per row, [rows, 1]
  hyperparameters: tuple[str, ...]  # in operand order
  bool_hyperparameters: tuple[str, ...] = ()  # those that are not float32
  static_params: tuple[str, ...] = ()  # required, beside those of every rule
  takes_rounding_seed: bool = False  # as its last operand
  # Whether rows whose gradient is not finite keep their bits. `step` computes
  # something for them, which is not used.
  skips_non_finite_gradients: bool = False
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
        *self.seed_names,
    )

  @property
  def seed_names(self) -> tuple[str, ...]:
    """The operand after all others, if there is one."""
    return ("rounding_seed",) if self.takes_rounding_seed else ()

  def slot_shape(
      self, slot: str, table_shape: tuple[int, ...]
  ) -> tuple[int, ...]:
    """The shape of a slot beside a table [rows, D] or [rows]."""
    is_row_slot = slot in self.row_slots and len(table_shape) == 2
    return (table_shape[0], 1) if is_row_slot else tuple(table_shape)

  def group_operands(self, operands: tuple[Any, ...]) -> UpdateOperands:
    """`operands`, ordered as operand_names."""
    table = len(COO_OPERANDS)
    gradient = table + 1 + len(self.slots)
    end = gradient + 1 + len(self.hyperparameters)
    return UpdateOperands(
        coo=tuple(operands[:table]),
        table=operands[table],
        slots=tuple(operands[table + 1 : gradient]),
        gradient=operands[gradient],
        hyperparameters=tuple(operands[gradient + 1 : end]),
        rounding_seed=operands[end] if self.takes_rounding_seed else None,
    )


def with_options(
    rule: UpdateRule,
    row_options: tuple[str, ...] = (),
    *,
    stochastic_rounding: bool = False,
) -> UpdateRule:
  """`rule` with what an update may be told beside it.

  Args:
    rule: one without options.
    row_options: some of row_options.ROW_OPTIONS, in that order. Each that has
      a number adds a hyperparameter of its name, after those of the rule.
    stochastic_rounding: whether there is an operand rounding_seed, u32[], after
      all others.

  Raises:
    ValueError: if there is no such option, or the order is another.
  """
  if not row_options and not stochastic_rounding:
    return rule
  options.check(row_options)
  rule = dataclasses.replace(
      rule,
      takes_rounding_seed=stochastic_rounding,
      skips_non_finite_gradients="skip_non_finite_gradients" in row_options,
  )
  with_numbers = options.with_numbers(row_options)
  if not with_numbers:
    return rule
  return dataclasses.replace(
      rule,
      hyperparameters=(*rule.hyperparameters, *with_numbers),
      step=functools.partial(options.step, rule.step, with_numbers),
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


def _rowwise_adagrad(grad, row, slots, hyper, *, embedding_dim):
  """Adagrad with one accumulator for the whole row.

  The mean is over the columns of the table. Those that a stack adds to them do
  not count, or a row would take larger steps for sharing a stack.
  """
  (accumulator,) = slots
  learning_rate, epsilon = hyper
  squares = jnp.sum(grad * grad, axis=-1, keepdims=True)
  accumulator = accumulator + squares / embedding_dim
  row = row - (learning_rate * grad) / (jnp.sqrt(accumulator) + epsilon)
  return row, (accumulator,)


def _momentum(grad, row, slots, hyper):
  (momentum,) = slots
  learning_rate, decay, use_nesterov = hyper
  momentum = decay * momentum + grad
  ahead = grad + decay * momentum
  row = row - learning_rate * jnp.where(use_nesterov, ahead, momentum)
  return row, (momentum,)


def _lion(grad, row, slots, hyper):
  """Every step has the same length: only the sign of the average counts."""
  (momentum,) = slots
  learning_rate, beta_1, beta_2 = hyper
  direction = jnp.sign(beta_1 * momentum + (1 - beta_1) * grad)
  momentum = beta_2 * momentum + (1 - beta_2) * grad
  return row - learning_rate * direction, (momentum,)


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
    UpdateRule(
        name="rowwise_adagrad",
        primitive_name="sparse_dense_matmul_grad_with_rowwise_adagrad",
        slots=("accumulator",),
        row_slots=("accumulator",),
        hyperparameters=("learning_rate", "epsilon"),
        static_params=("embedding_dim",),
        step=_rowwise_adagrad,
    ),
    UpdateRule(
        name="momentum",
        primitive_name="sparse_dense_matmul_grad_with_momentum",
        slots=("momentum",),
        hyperparameters=("learning_rate", "momentum_param", "use_nesterov"),
        bool_hyperparameters=("use_nesterov",),
        step=_momentum,
    ),
    UpdateRule(
        name="lion",
        primitive_name="sparse_dense_matmul_grad_with_lion",
        slots=("momentum",),
        hyperparameters=("learning_rate", "beta_1", "beta_2"),
        step=_lion,
    ),
)

UPDATE_RULES = {rule.name: rule for rule in _RULES}
