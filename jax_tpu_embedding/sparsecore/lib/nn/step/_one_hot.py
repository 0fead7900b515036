# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update of replicated tables, by products with one-hot matrices.

A sample with ids and gains is a row of the matrix counts f32[B, V]: the gain of
each row of the table. Activations are counts @ table, the gradient of the table
is counts^T @ gradient of the activations, summed over devices, and the rule of
the optimizer then steps the rows that the batch names. There is no sort and no
exchange of ids, nor a scatter unless ids are ragged, and every device computes
the same new table.

A product reads all rows, and 0 * inf is NaN: what is not finite is taken out of
the product, and added where a sample names it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import sorted_sums
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import step_rows
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

# Of the matrix of counts, 64 MiB at a time.
_MAX_COUNTS = 2**24

_RULES = {
    rule.primitive_name: rule for rule in update_rules.UPDATE_RULES.values()
}


def lookup(
    stack: _tables.StackedTableSpec,
    samples: _buffers.SampleIds,
    table: jax.Array,
    num_samples: int,
) -> jax.Array:
  """Sums gain * table row over the ids of each sample.

  Args:
    stack: its spec.
    samples: of one device.
    table: [V, D] of the type of the stack; or i32[V, W], rows of
      quantized_rows.py.
    num_samples: B, of that device.

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

  def of_part(part):
    sums = _multiply(part, rows, axis=1)
    return jnp.where(part.is_wrong()[:, None], jnp.nan, sums)

  with jax.named_scope(f"lookup/{stack.stack_name}"):
    parts = _parts(samples, num_samples, table.shape[0])
    if len(parts.first) == 1:
      sums = of_part(parts.at(0))
    else:
      sums = jax.lax.map(of_part, parts)
      sums = sums.reshape(-1, rows.shape[1])[:num_samples]
    return jnp.where(samples.has_failed[0], jnp.nan, sums)


def row_gradients(
    samples: _buffers.SampleIds,
    gradient: jax.Array,
    num_rows: int,
    axes: tuple[str, ...],
) -> tuple[jax.Array, jax.Array]:
  """The gradient of each row f32[V, D], and which rows have an id, bool[V].

  Args:
    samples: of one device.
    gradient: f32[B, D], of the activations.
    num_rows: V.
    axes: of the mesh, over which both are summed.
  """

  def of_part(part, gradient):
    return _multiply(part, gradient, axis=0), part.is_named().any(axis=0)

  parts = _parts(samples, gradient.shape[0], num_rows)
  gradients = _cut(gradient, len(parts.first), 0)
  sums, is_named = of_part(parts.at(0), gradients[0])
  if len(gradients) > 1:

    def add(total, part):
      sums, is_named = of_part(*part)
      return (total[0] + sums, total[1] | is_named), None

    (sums, is_named), _ = jax.lax.scan(
        add,
        (sums, is_named),
        jax.tree.map(lambda x: x[1:], (parts, gradients)),
    )
  if axes:
    sums = _sum_over_devices(sums, axes)
    is_named = jax.lax.psum(is_named.astype(jnp.int32), axes) > 0
  return sums, is_named


def named_rows_of_device(
    samples: _buffers.SampleIds,
    gradient: jax.Array,
    num_rows: int,
    axes: tuple[str, ...],
) -> tuple[jax.Array, jax.Array]:
  """Of the rows that have an id, on any device, an equal part for each device.

  Args:
    samples: as of row_gradients, like all that follows.
    gradient: of the activations.
    num_rows: V.
    axes: of the mesh, that split the batch.

  Returns:
    Rows i32[V / devices], ascending, then padding of 2^31 - 1; and the gradient
    of each, zero for padding.
  """
  sums, is_named = row_gradients(samples, gradient, num_rows, axes)
  num_devices = _num_devices(axes)
  size = -(-num_rows // num_devices)
  first = size * jax.lax.axis_index(axes) if axes else 0
  sums, is_named = (
      jax.lax.dynamic_slice_in_dim(
          _cut(x, num_devices, 0).reshape(-1, *x.shape[1:]), first, size
      )
      for x in (sums, is_named)
  )
  (place,) = jnp.nonzero(is_named, size=size, fill_value=size)
  rows = jnp.where(place < size, first + place, _buffers.NO_ID)
  values = sums.at[place].get(mode="fill", fill_value=0)
  return rows.astype(jnp.int32), values


def _num_devices(axes: tuple[str, ...]) -> int:
  return math.prod(jax.lax.axis_size(name) for name in axes)


def _sum_over_devices(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  """The sum of f32[V, D] over devices, the same on all of them.

  On CPUs, with the same bits however many processes have the devices, whose
  all-reduces add in other orders than that within a process: each device
  adds the others' terms of some rows, in the order of the devices, and tells.
  """
  num_devices = _num_devices(axes)

  def in_order(x):
    parts = _cut(x, num_devices, 0)
    terms = jax.lax.all_to_all(parts, axes, 0, 0, tiled=True)
    total = functools.reduce(operator.add, list(terms))
    # Others add zeros to it, which changes no bits.
    own = jnp.zeros_like(parts).at[jax.lax.axis_index(axes)].set(total)
    everywhere = jax.lax.psum(own, axes)
    return everywhere.reshape(-1, x.shape[1])[: x.shape[0]]

  return jax.lax.platform_dependent(
      x, cpu=in_order, default=lambda x: jax.lax.psum(x, axes)
  )


def update(
    optimizer_primitive: Any,
    operands: tuple[Any, ...],
    samples: _buffers.SampleIds,
    axes: tuple[str, ...],
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
  """Some of the samples of a device, B of them, or leading axes of such parts.

  Attributes:
    first: i32[], the number of the first sample.
    ids: i32[B, K], or of entries i32[N], of all samples.
    gains: f32, of that shape.
    sample: i32[N], the number of the sample of each entry; or None.
    size: B.
    num_rows: V.
  """

  first: jax.Array
  ids: jax.Array
  gains: jax.Array
  sample: jax.Array | None
  size: int = dataclasses.field(metadata=dict(static=True))
  num_rows: int = dataclasses.field(metadata=dict(static=True))

  def at(self, index: int) -> _Part:
    """A part, of a leading axis of them."""
    return jax.tree.map(lambda x: x[index], self)

  def counts(self) -> jax.Array:
    """f32[B, V], the gains of a sample by row: each sample is one row of it."""
    if self.sample is not None:
      on_gpu = self._sums_of_sorted_gains
      return jax.lax.platform_dependent(
          cuda=on_gpu, rocm=on_gpu, default=self._sums_of_gains
      )
    terms = jnp.where(self._one_hot(), self.gains[:, :, None], 0)
    return terms.sum(axis=1)

  def _sums_of_gains(self) -> jax.Array:
    """f32[B, V], of entries."""
    zeros = jnp.zeros((self.size, self.num_rows), jnp.float32)
    return zeros.at[self._place()].add(self.gains, mode="drop")

  def _sums_of_sorted_gains(self) -> jax.Array:
    """The same; a GPU adds the terms of a scatter in any order."""
    sample, row = self._place()
    num_counts = self.size * self.num_rows
    is_of_part = (sample < self.size) & (row < self.num_rows)
    place = jnp.where(is_of_part, sample * self.num_rows + row, num_counts)
    order = jnp.argsort(place, stable=True)
    place = place[order]
    segment = jnp.cumsum(place != jnp.roll(place, 1).at[:1].set(-1)) - 1
    sums = sorted_sums.segment_sum(
        self.gains[order][:, None],
        segment.astype(jnp.int32),
        num_segments=place.size,
        indices_are_sorted=True,
    )
    # Those of one place write the same number.
    counts = jnp.zeros(num_counts, jnp.float32)
    counts = counts.at[place].set(sums[segment, 0], mode="drop")
    return counts.reshape(self.size, self.num_rows)

  def is_named(self) -> jax.Array:
    """bool[B, V], whether a sample has an id, of any gain, of a row."""
    if self.sample is not None:
      nothing = jnp.zeros((self.size, self.num_rows), bool)
      return nothing.at[self._place()].set(True, mode="drop")
    return self._one_hot().any(axis=1)

  def is_wrong(self) -> jax.Array:
    """bool[B], whether a sample has an id that is no row."""
    is_wrong = (self.ids != _buffers.NO_ID) & (
        (self.ids < 0) | (self.ids >= self.num_rows)
    )
    if self.sample is None:
      return is_wrong.any(axis=1)
    sample = jnp.where(is_wrong, self._place()[0], self.size)
    return jnp.zeros(self.size, bool).at[sample].set(True, mode="drop")

  def _one_hot(self) -> jax.Array:
    """bool[B, K, V], of which XLA makes no array."""
    rows = jax.lax.broadcasted_iota(jnp.int32, (1, 1, self.num_rows), 2)
    return self.ids[:, :, None] == rows

  def _place(self) -> tuple[jax.Array, jax.Array]:
    """i32[N] twice, of each entry; out of bounds if it is of another part."""
    sample, row = self.sample - self.first, self.ids
    # A negative index counts from the end.
    return (
        jnp.where(sample < 0, self.size, sample),
        jnp.where(row < 0, self.num_rows, row),
    )


def _multiply(part: _Part, values: jax.Array, axis: int) -> jax.Array:
  """The product of the counts of some samples with rows or gradients.

  Args:
    part: the samples.
    values: f32[V, D], or f32[B, D].
    axis: of the counts [B, V], which is that of the values.
  """

  def product(counts, values):
    return jax.lax.dot_general(
        counts.astype(jnp.float32),
        values.astype(jnp.float32),
        (((axis,), (0,)), ((), ())),
        # The default of TPUs is bfloat16.
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )

  def of_finite():
    return product(part.counts(), values)

  def of_any():
    counts, is_named = part.counts(), part.is_named()
    is_finite = jnp.isfinite(values)
    above, below = values == jnp.inf, values == -jnp.inf
    up, down = counts > 0, counts < 0
    # How many terms are infinite, and NaN.
    num_above = product(up, above) + product(down, below)
    num_below = product(up, below) + product(down, above)
    num_nan = product(is_named, jnp.isnan(values)) + product(
        is_named & (counts == 0), above | below
    )
    sums = product(counts, jnp.where(is_finite, values, 0))
    sums += jnp.where(num_above > 0, jnp.inf, 0)
    sums += jnp.where(num_below > 0, -jnp.inf, 0)
    return jnp.where(num_nan > 0, jnp.nan, sums)

  return jax.lax.cond(jnp.isfinite(values).all(), of_finite, of_any)


def _parts(
    samples: _buffers.SampleIds, num_samples: int, num_rows: int
) -> _Part:
  """The samples as n parts, whose arrays are [n, ...].

  n is such that the counts of a part take little memory. Samples without ids
  make up the last part. Each part has all entries, if there are entries.
  """
  size = max(_MAX_COUNTS // num_rows, 1)
  num_parts = max(-(-num_samples // size), 1)
  size = -(-num_samples // num_parts)
  first = size * jnp.arange(num_parts, dtype=jnp.int32)
  if samples.sample is None:
    return _Part(
        first=first,
        ids=_cut(samples.ids, num_parts, _buffers.NO_ID),
        gains=_cut(samples.gains, num_parts, 0),
        sample=None,
        size=size,
        num_rows=num_rows,
    )
  everywhere = lambda x: jnp.broadcast_to(
      x.reshape(-1), (num_parts, x.shape[0])
  )
  return _Part(
      first=first,
      ids=everywhere(samples.ids),
      gains=everywhere(samples.gains),
      sample=everywhere(samples.sample),
      size=size,
      num_rows=num_rows,
  )


def _cut(array: jax.Array, num_parts: int, value: float) -> jax.Array:
  """[B, ...] as [n, B / n, ...], with `value` where there is nothing."""
  size = -(-array.shape[0] // num_parts)
  padding = num_parts * size - array.shape[0]
  widths = ((0, padding), *[(0, 0)] * (array.ndim - 1))
  padded = jnp.pad(array, widths, constant_values=value)
  return padded.reshape(num_parts, size, *array.shape[1:])
