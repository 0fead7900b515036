# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs an update in every way there is, and compares with its formula.

Programs are kept: tests of one rule in one setting differ in values only.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
import numpy as np

LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
BATCH_SIZE_PER_SC = 12

_ROWS_PER_SHARD = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """All that a program depends on beside its rule."""

  num_sc: int = 2
  num_minibatches: int | None = None  # None: the layout without them
  dim: int | None = 24  # None: one column, and arrays without that dimension
  dtype: str = "float32"  # of the table
  stochastic_rounding: bool = False
  row_options: tuple[str, ...] = ()
  min_value: float | None = None
  max_value: float | None = None

  def params(self) -> dict[str, Any]:
    """Static parameters of the update primitives."""
    return dict(
        LIMITS,
        enable_minibatching=self.num_minibatches is not None,
        row_options=self.row_options,
        stochastic_rounding=self.stochastic_rounding,
        min_value=self.min_value,
        max_value=self.max_value,
    )


class Update(NamedTuple):
  """The operands of an update, and its buffers as a matrix."""

  coo: random_coo.RandomCoo
  operands: update_rules.UpdateOperands


def random_update(
    case: update_cases.Case,
    setting: Setting,
    seed: int = 1,
    batch_size_per_sc: int = BATCH_SIZE_PER_SC,
) -> Update:
  """An update with random values."""
  rng = np.random.default_rng(seed)
  columns = () if setting.dim is None else (setting.dim,)
  shape = (setting.num_sc * _ROWS_PER_SHARD, *columns)
  with_numbers = row_options.with_numbers(setting.row_options)
  names = (*case.rule.hyperparameters, *with_numbers)
  options = [update_cases.ROW_OPTIONS[name] for name in with_numbers]
  coo = _random_coo(setting.num_sc, setting.num_minibatches, batch_size_per_sc)
  return Update(
      coo=coo,
      operands=update_rules.UpdateOperands(
          coo=coo.operands,
          table=jnp.asarray(rng.normal(size=shape), setting.dtype),
          slots=tuple(
              np.float32(rng.uniform(0.1, 1, case.rule.slot_shape(name, shape)))
              for name in case.rule.slots
          ),
          gradient=np.float32(
              rng.normal(size=(setting.num_sc * batch_size_per_sc, *columns))
          ),
          hyperparameters=tuple(
              np.bool_(value)
              if name in case.rule.bool_hyperparameters
              else np.float32(value)
              for name, value in zip(
                  names, (*case.hyperparameters, *options), strict=True
              )
          ),
          rounding_seed=(
              np.uint32(seed) if setting.stochastic_rounding else None
          ),
      ),
  )


def without_finite_gradients(given: Update) -> tuple[np.ndarray, Update]:
  """A gradient with two samples that are not finite, and what to expect of it.

  Args:
    given: an update, in which each sample names rows.

  Returns:
    The gradient, and the update that skip_non_finite_gradients makes of it:
    without the rows that these samples name.
  """
  nan_sample, infinite_sample = samples = [1, 5]
  finite = np.array(given.operands.gradient)
  finite[samples] = 0
  gradient = np.array(given.operands.gradient)
  _matrix(gradient)[nan_sample, 0] = np.nan
  _matrix(gradient)[infinite_sample, -1] = -np.inf
  is_left_out = np.any(given.coo.weights[samples] != 0, axis=0)
  touched = given.coo.touched & ~is_left_out
  if not is_left_out.any() or not touched.any():
    raise AssertionError("Rows must be left out, and others not.")
  coo = dataclasses.replace(given.coo, touched=touched)
  return gradient, Update(coo, given.operands._replace(gradient=finite))


@functools.cache
def _random_coo(num_sc, num_minibatches, batch_size_per_sc):
  return random_coo.random_coo(
      num_sc_per_device=num_sc,
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=batch_size_per_sc,
      ids_per_sample=2,
      num_minibatches=num_minibatches,
      seed=num_sc,
  )


def run(
    implementation: str,
    case: update_cases.Case,
    setting: Setting,
    operands: update_rules.UpdateOperands,
) -> tuple[np.ndarray, ...]:
  """Table and slots after the update."""
  program = _program(
      implementation,
      case.rule.name,
      tuple(case.static_params.items()),
      setting,
  )
  return tuple(map(np.asarray, program(operands)))


@functools.cache
def _program(implementation, name, static_params, setting):
  rule = update_rules.UPDATE_RULES[name]
  return IMPLEMENTATIONS[implementation](rule, dict(static_params), setting)


def _reference(rule, static_params, setting) -> Callable[..., Any]:
  """The plain version."""
  with_options = update_rules.with_options(
      rule, setting.row_options, stochastic_rounding=setting.stochastic_rounding
  )

  @jax.jit
  def program(operands):
    return lookup_and_update.update(
        with_options,
        operands,
        num_sc_per_device=setting.num_sc,
        min_value=setting.min_value,
        max_value=setting.max_value,
        enable_minibatching=setting.num_minibatches is not None,
        **static_params,
    )

  return program


def _platform(rule, static_params, setting) -> Callable[..., Any]:
  """The primitive, as the platform runs it."""

  @jax.jit
  def program(operands):
    return jax.tree.leaves(
        update.UPDATE_PRIMITIVES[rule.name].bind(
            *in_order(operands),
            **static_params,
            **setting.params(),
        )
    )

  return program


def _custom(rule, static_params, setting) -> Callable[..., Any]:
  """The rule's step as if it were the user's, whose slots have all columns."""

  def computation(grad, row, *rest):
    num_slots = len(rule.slots)
    row, slots = rule.step(
        grad, row, rest[:num_slots], rest[num_slots:], **static_params
    )
    return row, *slots

  @jax.jit
  def program(operands):
    return custom_update.custom_update_p.bind(
        *operands.coo,
        operands.gradient,
        *(jnp.float32(x) for x in operands.hyperparameters),
        operands.table,
        *(jnp.broadcast_to(x, operands.table.shape) for x in operands.slots),
        *_seed(operands),
        num_hyperparameters=len(rule.hyperparameters),
        custom_computation_fn=computation,
        **setting.params(),
    )

  return program


def in_order(operands: update_rules.UpdateOperands) -> tuple[Any, ...]:
  """The operands as a primitive takes them."""
  return (
      *operands.coo,
      operands.table,
      *operands.slots,
      operands.gradient,
      *operands.hyperparameters,
      *_seed(operands),
  )


def _seed(operands):
  return () if operands.rounding_seed is None else (operands.rounding_seed,)


IMPLEMENTATIONS = {
    "reference": _reference,
    "cpu": _platform,
    "custom": _custom,
}


def assert_rows_are_stepped_once(
    case: update_cases.Case,
    setting: Setting,
    given: Update,
    actual: tuple[np.ndarray, ...],
) -> None:
  """Raises AssertionError unless `actual` is what the formula says.

  Rows that have no entry must be the same bits as before.
  """
  operands, touched = given.operands, given.coo.touched
  before = [np.asarray(x) for x in (operands.table, *operands.slots)]
  table, *slots = [_matrix(np.float64(x)) for x in before]
  gradients = given.coo.weights.T @ _matrix(np.float64(operands.gradient))
  row, slots = case.formula(table, gradients, slots, setting.row_options)
  if setting.min_value is not None:
    row = np.maximum(row, setting.min_value)
  if setting.max_value is not None:
    row = np.minimum(row, setting.max_value)
  for old, new, formula in zip(before, actual, (row, *slots), strict=True):
    if new.dtype != old.dtype:
      raise AssertionError(f"{old.dtype} became {new.dtype}.")
    if new.shape != old.shape:  # a slot of a row, in a custom update
      old = np.broadcast_to(old, new.shape)
    np.testing.assert_array_equal(new[~touched], old[~touched])
    # Rounding at random moves a number by less than one unit in its last place,
    # rounding to nearest by half of one.
    unit = 0 if new.dtype == np.float32 else float(jnp.finfo(new.dtype).eps)
    unit *= 1 if setting.stochastic_rounding else 0.5
    np.testing.assert_allclose(
        _matrix(np.float64(new))[touched],
        np.broadcast_to(formula, _matrix(new).shape)[touched],
        rtol=unit + 2e-5,
        atol=2e-5,
    )


def _matrix(values: np.ndarray) -> np.ndarray:
  return values[:, None] if values.ndim == 1 else values
