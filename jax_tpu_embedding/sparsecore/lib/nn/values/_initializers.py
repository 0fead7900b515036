# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Calls of the initializers of one table: their keys, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import hashlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
import numpy as np

TablePlacement = _placement.TablePlacement


def key_of(rng: jax.Array, table_name: str, variable: int) -> jax.Array:
  """The key of a variable of a table: 0 is the table itself, then its slots.

  Depends on the name and on nothing else, so that a table has the same values
  beside any other tables, in any stack and on any number of devices.
  """
  digest = hashlib.sha256(table_name.encode()).digest()
  # 64 bits of the hash: 2^32 tables may be used before two share a key.
  numbers = (*np.frombuffer(digest[:8], ">u4"), variable)
  return _fold_in(rng, np.array(numbers, np.uint32))


@jax.jit
def _fold_in(key: jax.Array, numbers: jax.Array) -> jax.Array:
  for i in range(numbers.size):
    key = jax.random.fold_in(key, numbers[i])
  return key


def returns_whole_table(
    initializer: Callable[..., Any], table_name: str
) -> bool:
  """Whether the initializer takes no arguments, rather than (key, shape).

  Raises:
    ValueError: if it takes neither.
  """
  try:
    signature = inspect.signature(initializer)
  except ValueError:  # some that are written in C have none
    return False
  if _accepts(signature, None, None):
    return False
  if _accepts(signature):
    return True
  raise ValueError(
      f"Table {table_name!r}: the initializer has the parameters {signature}."
      " It must be callable as initializer(key, shape), or without arguments."
  )


@contextlib.contextmanager
def naming_table(table_name: str) -> Iterator[None]:
  """Adds the table's name to errors of its initializer."""
  try:
    yield
  except Exception as error:
    error.add_note(
        f"In an initializer of table {table_name!r}. It is traced, and has to"
        " return an array for (key, shape), as jax.nn.initializers.normal()"
        " does, with parentheses; one without arguments runs on the host."
    )
    raise


def call(
    initializer: Callable[..., Any],
    key: jax.Array,
    shape: tuple[int, int],
    table_name: str,
) -> jax.Array:
  """f32 of `shape` from an initializer(key, shape).

  Raises:
    ValueError: if it returns another shape, or complex numbers.
  """
  with naming_table(table_name):
    values = jnp.asarray(initializer(key, shape))
  if jnp.iscomplexobj(values):
    raise ValueError(
        f"Table {table_name!r}: the initializer must return real numbers, got"
        f" {values.dtype}."
    )
  values = values.astype(jnp.float32)
  if values.shape != shape:
    raise ValueError(
        f"Table {table_name!r}: the initializer was called for the shape"
        f" {shape}, and returned {values.shape}."
    )
  return values


def call_whole(
    initializer: Callable[[], Any], table: TablePlacement
) -> np.ndarray:
  """[vocabulary_size, embedding_dim] from an initializer().

  Raises:
    ValueError: if it returns less, or no real numbers; more is cropped.
  """
  values = np.asarray(initializer())
  if values.dtype.kind in "cSUOMm":
    raise ValueError(
        f"Table {table.name!r}: the initializer without arguments must return"
        f" real numbers, got {values.dtype}."
    )
  rows, width = table.vocabulary_size, table.embedding_dim
  if values.ndim != 2 or values.shape[0] < rows or values.shape[1] < width:
    raise ValueError(
        f"Table {table.name!r}: the initializer without arguments must return"
        f" at least {(rows, width)}, got {values.shape}."
    )
  return values[:rows, :width]


def _accepts(signature: inspect.Signature, *arguments: Any) -> bool:
  try:
    signature.bind(*arguments)
  except TypeError:
    return False
  return True
