# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update of replicated tables, by products with one-hot matrices.

A sample with ids and gains is a row of the matrix counts f32[B, V]: the gain of
each row of the table. Activations are counts @ table, the gradient of the table
is counts^T @ gradient of the activations, summed over devices, and the rule of
the optimizer then steps the rows that the batch names. There is no sort, no
scatter and no exchange of ids, and every device computes the same new table.

A product reads all rows, and 0 * NaN is NaN: what is not finite is taken out of
the product, and becomes NaN only where a sample names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import step_rows
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _sample_ids
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

# Of the matrix of counts, 64 MiB at a time.
_MAX_COUNTS = 2**24

_RULES = {
    rule.primitive_name: rule for rule in update_rules.UPDATE_RULES.values()
}


def lookup(
    stack: _tables.StackedTableSpec,
    samples: _sample_ids.SampleIds,
    table: jax.Array,
) -> jax.Array:
  """Sums gain * table row over the ids of each sample.

  Args:
    stack: its spec.
    samples: B of one device.
    table: [V, D] of the type of the stack; or i32[V, W], rows of
      quantized_rows.py.

  Returns:
    f32[B, D]. A sample without ids is zero; one with an id that is no row of
    the table, which no conversion writes, is NaN. All are, if `samples` say
    that they have failed.
  """
  if table.dtype == jnp.int32:
    rows = quantized_rows.decode(table, stack.stack_embedding_dim)
  else:
    rows = table.astype(jnp.float32)
  if stack.quantization_config is not None:
    rows = lookup_and_update.quantize(
        rows, *stack.quantization_config.as_tuple()
    )
  num_samples, num_rows = samples.ids.shape[0], table.shape[0]

  def of_chunk(ids, gains):
    is_wrong = (ids != _sample_ids.NO_ID) & ((ids < 0) | (ids >= num_rows))
    sums = _multiply(ids, gains, num_rows, rows, axis=1)
    return jnp.where(is_wrong.any(axis=1, keepdims=True), jnp.nan, sums)

  with jax.named_scope(f"lookup/{stack.stack_name}"):
    chunks = _chunks(samples, num_rows)
    if len(chunks[0]) == 1:
      sums = of_chunk(*(array[0] for array in chunks))
    else:
      sums = jax.lax.map(lambda chunk: of_chunk(*chunk), tuple(chunks))
      sums = sums.reshape(-1, rows.shape[1])[:num_samples]
    return jnp.where(samples.has_failed[0], jnp.nan, sums)


def row_gradients(
    samples: _sample_ids.SampleIds,
    gradient: jax.Array,
    num_rows: int,
    axes: Sequence[str],
) -> tuple[jax.Array, jax.Array]:
  """The gradient of each row f32[V, D], and which rows have an id, bool[V].

  Args:
    samples: B of one device.
    gradient: f32[B, D], of the activations.
    num_rows: V.
    axes: of the mesh, over which both are summed.
  """

  def of_chunk(ids, gains, gradient):
    sums = _multiply(ids, gains, num_rows, gradient, axis=0)
    return sums, _one_hot(ids, num_rows).any(axis=(0, 1))

  ids, gains, gradients = _chunks(samples, num_rows, gradient)
  sums, is_named = of_chunk(ids[0], gains[0], gradients[0])
  if len(ids) > 1:

    def add(total, chunk):
      sums, is_named = of_chunk(*chunk)
      return (total[0] + sums, total[1] | is_named), None

    (sums, is_named), _ = jax.lax.scan(
        add, (sums, is_named), (ids[1:], gains[1:], gradients[1:])
    )
  if axes:
    sums, counts = jax.lax.psum((sums, is_named.astype(jnp.int32)), axes)
    is_named = counts > 0
  return sums, is_named


def update(
    optimizer_primitive: Any,
    operands: tuple[Any, ...],
    samples: _sample_ids.SampleIds,
    axes: Sequence[str],
    *,
    stack: _tables.StackedTableSpec,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    min_value: float | None = None,
    max_value: float | None = None,
    **static_params: Any,
) -> tuple[jax.Array, ...]:
  """Steps the optimizer once for each row that has an id, on any device.

  Args:
    optimizer_primitive: that sharded tables are updated with.
    operands: its operands; those of the buffers are not looked at.
    samples: of one device.
    axes: of the mesh, that split the batch.
    stack: the stack.
    row_options: as of the primitive, like all that follows.
    stochastic_rounding: whether there is a seed. It is the same everywhere.
    min_value: lower bound of new rows.
    max_value: upper bound.
    **static_params: those of the rule.

  Returns:
    Table and slots. Rows without an id keep all bits.

  Raises:
    NotImplementedError: for an optimizer with a primitive of its own.
  """
  rule, static_params = _rule_of(
      optimizer_primitive,
      len(operands),
      stack,
      row_options,
      stochastic_rounding,
      static_params,
  )
  rule = update_rules.with_options(
      rule, row_options, stochastic_rounding=stochastic_rounding
  )
  named = rule.group_operands(operands)
  num_rows = named.table.shape[0]
  grads, is_named = row_gradients(samples, named.gradient, num_rows, axes)
  variables = (named.table, *named.slots)
  new = step_rows.new_rows(
      rule,
      named,
      variables,
      grads,
      row_ids=jnp.arange(num_rows, dtype=jnp.uint32),
      min_value=min_value,
      max_value=max_value,
      **static_params,
  )
  is_written = (is_named & ~step_rows.is_skipped(rule, grads))[:, None]
  return tuple(
      jnp.where(is_written, after, before)
      for before, after in zip(variables, new)
  )


def _rule_of(
    primitive: Any,
    num_operands: int,
    stack: _tables.StackedTableSpec,
    row_options: tuple[str, ...],
    stochastic_rounding: bool,
    static_params: dict[str, Any],
) -> tuple[update_rules.UpdateRule, dict[str, Any]]:
  """The rule of a primitive, without options, and parameters of its step."""
  if primitive.name == custom_update_rule.CUSTOM_PRIMITIVE_NAME:
    rule = custom_update_rule.custom_rule(
        custom_update_rule.computation_of(
            static_params["custom_computation_fn"], static_params["stablehlo"]
        ),
        num_operands=num_operands,
        num_hyperparameters=static_params["num_hyperparameters"],
        row_options=row_options,
        stochastic_rounding=stochastic_rounding,
    )
    return rule, {}
  if primitive.name in _RULES:
    rule = _RULES[primitive.name]
    return rule, {name: static_params[name] for name in rule.static_params}
  raise NotImplementedError(
      f"Table {stack.stack_name!r} has placement 'tensorcore', and its optimizer"
      f" {type(stack.optimizer).__name__} a primitive {primitive.name!r} of its"
      " own, of which no step on rows is known. Use CustomOptimizerSpec, or"
      " placement 'sparsecore'."
  )


def _one_hot(ids: jax.Array, num_rows: int) -> jax.Array:
  """bool[B, K, V], of which XLA makes no array."""
  rows = jax.lax.broadcasted_iota(jnp.int32, (1, 1, num_rows), 2)
  return ids[:, :, None] == rows


def _counts(ids: jax.Array, gains: jax.Array, num_rows: int) -> jax.Array:
  """f32[B, V], the gains of a sample by row: each sample is one row of it."""
  terms = jnp.where(_one_hot(ids, num_rows), gains[:, :, None], 0)
  return terms.sum(axis=1)


def _multiply(
    ids: jax.Array,
    gains: jax.Array,
    num_rows: int,
    values: jax.Array,
    axis: int,
) -> jax.Array:
  """The product of the counts of some samples with rows or gradients.

  Args:
    ids: i32[B, K].
    gains: f32[B, K].
    num_rows: V.
    values: f32[V, D], or f32[B, D].
    axis: of the counts [B, V], which is that of the values.
  """

  def product(counts, values):
    return jax.lax.dot_general(
        counts,
        values,
        (((axis,), (0,)), ((), ())),
        # The default of TPUs is bfloat16.
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )

  def of_finite():
    return product(_counts(ids, gains, num_rows), values)

  def of_any():
    is_finite = jnp.isfinite(values)
    sums = product(
        _counts(ids, gains, num_rows), jnp.where(is_finite, values, 0)
    )
    is_named = _one_hot(ids, num_rows).any(axis=1).astype(jnp.float32)
    num_bad = product(is_named, 1 - is_finite.astype(jnp.float32))
    return jnp.where(num_bad > 0, jnp.nan, sums)

  return jax.lax.cond(jnp.isfinite(values).all(), of_finite, of_any)


def _chunks(
    samples: _sample_ids.SampleIds, num_rows: int, *others: jax.Array
) -> list[jax.Array]:
  """Ids, gains and other arrays [B, ...], each as [n, B / n, ...].

  n is such that the counts of a chunk take little memory. Samples without ids
  make up the last chunk.
  """
  num_samples = samples.ids.shape[0]
  size = max(_MAX_COUNTS // num_rows, 1)
  num_chunks = max(-(-num_samples // size), 1)
  size = -(-num_samples // num_chunks)
  padding = num_chunks * size - num_samples

  def cut(array, value):
    widths = ((0, padding), *[(0, 0)] * (array.ndim - 1))
    padded = jnp.pad(array, widths, constant_values=value)
    return padded.reshape(num_chunks, size, *array.shape[1:])

  return [
      cut(samples.ids, _sample_ids.NO_ID),
      cut(samples.gains, 0),
      *(cut(array, 0) for array in others),
  ]
