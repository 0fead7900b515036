# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks that the primitives share, clipping, and values without unit columns.

Source: docs/reference/primitives.md, "Checks".
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import numbers
from typing import Any
from typing import Protocol

import jax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
import jax.numpy as jnp
import jax.ref
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core import row_options
import numpy as np

# Names that are promised here.
MOD_SHARDING = constants.MOD_SHARDING
maybe_clip_params = row_options.clamp


class Shaped(Protocol):
  """An array or its abstract value."""

  shape: tuple[int, ...]
  dtype: np.dtype


def ensure_array(x: Shaped, name: str) -> None:
  """Raises TypeError if `x` is a jax.Ref, which has a shape and dtype too."""
  if isinstance(x, jax.ref.AbstractRef):
    raise TypeError(
        f"{name} must be an array, got a jax.Ref, {x.str_short()}. Pass its"
        " value, ref[...]."
    )


def ensure_dtype(x: Shaped, dtype: np.typing.DTypeLike, name: str) -> None:
  """Raises ValueError unless `x` has the dtype; TypeError for a jax.Ref."""
  ensure_array(x, name)
  if x.dtype != dtype:
    raise ValueError(
        f"{name} must have type {np.dtype(dtype).name}, got {x.dtype.name}."
    )


def ensure_table_dtype(table: Shaped) -> None:
  """Raises ValueError unless the values are of a type that tables can have."""
  ensure_array(table, "table")
  if table.dtype not in low_precision.TABLE_DTYPES:
    names = [np.dtype(dtype).name for dtype in low_precision.TABLE_DTYPES]
    raise ValueError(
        f"table must have type {', '.join(names)}, got {table.dtype.name}."
    )


def ensure_dim(x: Shaped, rank: int | Sequence[int], name: str) -> None:
  """Raises ValueError unless `x` has the rank, or one of the ranks."""
  ensure_array(x, name)
  ranks = (rank,) if isinstance(rank, int) else tuple(rank)
  if len(x.shape) not in ranks:
    raise ValueError(
        f"{name} must have dim {' or '.join(map(str, ranks))}, got"
        f" {len(x.shape)}: shape {tuple(x.shape)}."
    )


def ensure_shape(x: Shaped, shape: Sequence[int], name: str) -> None:
  """Raises ValueError unless `x` has the shape."""
  if tuple(x.shape) != tuple(shape):
    raise ValueError(
        f"{name} must have shape {tuple(shape)}, got {tuple(x.shape)}."
    )


def validate_abstract_eval_params(
    row_pointers: Shaped,
    embedding_ids: Shaped,
    sample_ids: Shaped,
    gains: Shaped,
    num_minibatches: Shaped,
    table: Shaped,
    activation_gradient: Shaped | None,
    *,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    computation_name: str,
    sharding_strategy: int,
    min_value: float | None = None,
    max_value: float | None = None,
) -> None:
  """Checks what lookup and update have in common.

  Args:
    row_pointers: i32[R].
    embedding_ids: i32[B].
    sample_ids: i32[B].
    gains: f32[B].
    num_minibatches: i32[].
    table: [rows, D], or [rows] for one column, of one of
      low_precision.TABLE_DTYPES.
    activation_gradient: f32[samples, D], or f32[samples]; None for a lookup.
    max_ids_per_partition: limit of the stack, positive.
    max_unique_ids_per_partition: limit of the stack, positive.
    computation_name: name of the optimizer's function; not empty.
    sharding_strategy: MOD_SHARDING.
    min_value: lower bound of table values, if any.
    max_value: upper bound of table values, if any.

  Raises:
    ValueError: if one of them is otherwise. The message has its name.
  """
  gradients = () if activation_gradient is None else (activation_gradient,)
  ensure_dtype(row_pointers, jnp.int32, "row_pointers")
  ensure_dtype(sample_ids, jnp.int32, "sample_ids")
  ensure_dtype(embedding_ids, jnp.int32, "embedding_ids")
  ensure_dtype(gains, jnp.float32, "gains")
  ensure_dtype(num_minibatches, jnp.int32, "num_minibatches")
  ensure_table_dtype(table)
  for gradient in gradients:
    ensure_dtype(gradient, jnp.float32, "activation_gradient")

  ensure_dim(row_pointers, 1, "row_pointers")
  ensure_dim(table, (1, 2), "table")
  ensure_dim(num_minibatches, 0, "num_minibatches")
  for gradient in gradients:
    ensure_dim(gradient, (1, 2), "activation_gradient")

  ensure_dim(sample_ids, 1, "sample_ids")
  ensure_shape(embedding_ids, sample_ids.shape, "embedding_ids")
  ensure_shape(gains, sample_ids.shape, "gains")
  for gradient in gradients:
    if get_embedding_dim(gradient) != get_embedding_dim(table):
      raise ValueError(
          "activation_gradient must have as many columns as the table,"
          f" {get_embedding_dim(table)}, got {get_embedding_dim(gradient)}."
      )

  if sharding_strategy != MOD_SHARDING:
    raise ValueError(
        f"sharding_strategy must be {MOD_SHARDING} (MOD), got"
        f" {sharding_strategy}."
    )
  ensure_positive(max_ids_per_partition, "max_ids_per_partition")
  ensure_positive(max_unique_ids_per_partition, "max_unique_ids_per_partition")
  if not computation_name:
    raise ValueError("computation_name must not be empty.")
  for bound, name in ((min_value, "min_value"), (max_value, "max_value")):
    if bound is not None and math.isnan(bound):
      raise ValueError(
          f"{name} must be a number, got {bound}. Leave it out to have none."
      )
  if min_value is not None and max_value is not None and min_value > max_value:
    raise ValueError(
        f"min_value must not exceed max_value, got {min_value} > {max_value}."
    )


def get_embedding_dim(table: Shaped) -> int:
  """The columns of a table, or of anything with one row per sample."""
  return table.shape[1] if len(table.shape) == 2 else 1


def ensure_integer(value: int, name: str) -> None:
  """Raises TypeError unless `value` is an integer, of Python or NumPy."""
  if not isinstance(value, numbers.Integral) or isinstance(value, bool):
    raise TypeError(f"{name} must be an integer, got {value!r}.")


def ensure_positive(value: int, name: str) -> None:
  """Raises TypeError or ValueError unless `value` is a positive integer."""
  ensure_integer(value, name)
  if value <= 0:
    raise ValueError(f"{name} must be positive, got {value}.")


# --- For lowering rules of programs of the reference. Nothing here calls it.


def to_value_sequence(
    values: mlir.ir.Value | Sequence[Any],
) -> tuple[mlir.ir.Value, ...]:
  """The values of a program in what a lowering rule may return.

  That is one value, or a sequence, for results of several values a nested one.
  """
  if isinstance(values, mlir.ir.Value):
    return (values,)
  return tuple(
      value for nested in values for value in to_value_sequence(nested)
  )


def maybe_squeeze_abstract_eval(
    aval: jax.core.ShapedArray, ndim: int
) -> jax.core.ShapedArray:
  """`aval` with trailing dimensions of 1 dropped until it has `ndim`."""
  return aval.update(shape=_squeezed(aval.shape, ndim))


def maybe_squeeze_ir(value: mlir.ir.Value, ndim: int) -> mlir.ir.Value:
  """`value` in the shape that maybe_squeeze_abstract_eval gives."""
  old = mlir.ir.RankedTensorType(value.type)
  shape = _squeezed(tuple(old.shape), ndim)
  if len(shape) == old.rank:
    return value
  new = mlir.ir.RankedTensorType.get(shape, old.element_type)
  return stablehlo.ReshapeOp(new, value).result


def _squeezed(shape: tuple[int, ...], ndim: int) -> tuple[int, ...]:
  while len(shape) > ndim and shape[-1] == 1:
    shape = shape[:-1]
  return shape
