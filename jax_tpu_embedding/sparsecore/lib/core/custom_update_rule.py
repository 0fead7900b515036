# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An optimizer that the caller brings along, as an update rule.

Source: docs/reference/primitives.md, "Custom update".
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options as options
from jax_tpu_embedding.sparsecore.lib.core import stablehlo_program
from jax_tpu_embedding.sparsecore.lib.core import update_rules

CUSTOM_PRIMITIVE_NAME = "sparse_dense_matmul_optimizer_grad_primitive"

COO_AND_GRADIENT = (*update_rules.COO_OPERANDS, "activation_gradient")

# Of gradient, row, slots and hyperparameters, f32[1, D] each: the new row, or
# the new row and the new slots.
Computation = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomUpdateRule(update_rules.UpdateRule):
  """Its operands come in an order of their own: table and slots are last."""

  @property
  def operand_names(self) -> tuple[str, ...]:
    return (
        *COO_AND_GRADIENT,
        *self.hyperparameters,
        "table",
        *self.slots,
        *self.seed_names,
    )

  def group_operands(
      self, operands: tuple[Any, ...]
  ) -> update_rules.UpdateOperands:
    first_hyperparameter = len(COO_AND_GRADIENT)
    table = first_hyperparameter + len(self.hyperparameters)
    end = table + 1 + len(self.slots)
    *coo, gradient = operands[:first_hyperparameter]
    return update_rules.UpdateOperands(
        coo=tuple(coo),
        table=operands[table],
        slots=tuple(operands[table + 1 : end]),
        gradient=gradient,
        hyperparameters=tuple(operands[first_hyperparameter:table]),
        rounding_seed=operands[end] if self.takes_rounding_seed else None,
    )


def computation_of(
    custom_computation_fn: Computation | None, stablehlo: str | bytes | None
) -> Computation:
  """The computation that was given; a program wins over a function.

  Raises:
    ValueError: if there is neither.
  """
  if stablehlo is not None:
    return stablehlo_program.StablehloProgram(stablehlo)
  if custom_computation_fn is not None:
    return custom_computation_fn
  raise ValueError(
      "A custom optimizer needs custom_computation_fn or stablehlo; both are"
      " None."
  )


def custom_rule(
    computation: Computation,
    *,
    num_operands: int,
    num_hyperparameters: int,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
) -> CustomUpdateRule:
  """The rule whose step is `computation` for each row by itself.

  A computation that looks across the columns of its row, such as one that
  divides by the norm of the gradient, therefore sees no other row.

  Args:
    computation: the step of one row.
    num_operands: of the update. There are as many slots as make up the number.
    num_hyperparameters: scalars that the computation gets.
    row_options: what update_rules.with_options will add to the rule, which is
      one without options. Here those with numbers count as operands.
    stochastic_rounding: as row_options.

  Raises:
    ValueError: if there are not enough operands for a table.
  """
  names = (
      *COO_AND_GRADIENT,
      f"{num_hyperparameters} hyperparameters",
      *options.with_numbers(row_options),
      "a table and any number of slots",
      *(("rounding_seed",) if stochastic_rounding else ()),
  )
  num_others = num_hyperparameters + len(names) - 1
  if num_operands < num_others:
    raise ValueError(
        f"{CUSTOM_PRIMITIVE_NAME} takes {', '.join(names)}; got"
        f" {num_operands} operands."
    )
  return CustomUpdateRule(
      name="custom",
      primitive_name=CUSTOM_PRIMITIVE_NAME,
      slots=tuple(f"slot_{i}" for i in range(num_operands - num_others)),
      hyperparameters=tuple(
          f"hyperparameter_{i}" for i in range(num_hyperparameters)
      ),
      step=functools.partial(_step, computation),
  )


def _step(computation, grad, row, slots, hyper):
  tables = (row, *slots)
  one_row = (1, row.shape[1])
  # Hyperparameters of shape (1,) are scalars too.
  hyper = [jnp.broadcast_to(jnp.reshape(h, ()), one_row) for h in hyper]

  def step_row(grad, *tables):
    try:
      results = computation(
          grad[None], *(values[None] for values in tables), *hyper
      )
    except Exception as error:
      error.add_note(
          f"In the custom optimizer {computation!r}, which gets gradient, row,"
          f" {len(slots)} slots and {len(hyper)} hyperparameters,"
          f" float32{list(one_row)} each."
      )
      raise
    if not isinstance(results, (tuple, list)):
      results = (results,)
    _check_results(computation, results, len(tables), one_row)
    return tuple(values[0] for values in results)

  new_row, *new_slots = jax.vmap(step_row)(grad, *tables)
  return new_row, tuple(new_slots)


def _check_results(computation, results, num_tables, shape) -> None:
  """Raises ValueError unless each table has one new row."""
  if len(results) != num_tables:
    raise ValueError(
        f"The custom optimizer {computation!r} must return {num_tables} arrays,"
        f" the table and {num_tables - 1} slots; it returned {len(results)}."
    )
  for number, values in enumerate(results):
    found = jnp.shape(values), jnp.result_type(values)
    if found != (shape, jnp.float32):
      raise ValueError(
          f"The custom optimizer {computation!r} must return arrays float32"
          f"{list(shape)}; result {number} is {found[1].name}{list(found[0])}."
      )
