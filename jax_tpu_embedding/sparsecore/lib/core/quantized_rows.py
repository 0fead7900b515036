# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows of 8-bit codes, each with a scale and a bias: tables that are only read.

A row is words of 32 bits: the codes of four columns to a word, the first in the
lowest bits; then scale and bias as float32, such that a number is code * scale
+ bias; then zeros up to a multiple of 8 words, the tile of a table. These are
the bytes of int8 rows of served tables (docs/reference/served_tables.md), and
zeros; `encode` may differ from those in the last bit of a scale.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
import numpy as np

_LARGEST_CODE = np.float32(255)
_WORDS_OF_TILE = 8


def words_per_row(dim: int) -> int:
  """W, for D columns: a quarter of those of float32, and at most 9 more."""
  return layout.round_up(-(-dim // 4) + 2, _WORDS_OF_TILE)


def encode(rows: jax.Array) -> jax.Array:
  """i32[R, W] of f32[R, D], finite; off by half of a row's scale at most."""
  num_rows, dim = rows.shape
  bias = jnp.min(rows, axis=1, keepdims=True)
  span = jnp.max(rows, axis=1, keepdims=True) - bias
  inverse = _LARGEST_CODE / span
  # Of one number, or of numbers too close to divide by.
  is_constant = jnp.isinf(inverse)
  scale = jnp.where(is_constant, 1, span / _LARGEST_CODE)
  codes = jnp.rint((rows - bias) * jnp.where(is_constant, 0, inverse))
  codes = jnp.pad(codes.astype(jnp.uint8), ((0, 0), (0, -dim % 4)))
  words = jax.lax.bitcast_convert_type(
      codes.reshape(num_rows, -1, 4), jnp.int32
  )
  numbers = jax.lax.bitcast_convert_type(
      jnp.concatenate([scale, bias], axis=1), jnp.int32
  )
  words = jnp.concatenate([words, numbers], axis=1)
  return jnp.pad(words, ((0, 0), (0, words_per_row(dim) - words.shape[1])))


def decode(words: jax.Array, dim: int) -> jax.Array:
  """f32[R, D] of i32[R, W]; XLA may round product and sum at once."""
  num_words = -(-dim // 4)
  codes = jax.lax.bitcast_convert_type(words[:, :num_words], jnp.uint8)
  codes = codes.reshape(words.shape[0], -1)[:, :dim].astype(jnp.float32)
  scale, bias = (
      jax.lax.bitcast_convert_type(words[:, i : i + 1], jnp.float32)
      for i in (num_words, num_words + 1)
  )
  return codes * scale + bias


def of_served_rows(rows: jax.Array, dim: int) -> jax.Array:
  """i32[R, W] of the rows of a served table, u8[R, row_bytes].

  Raises:
    ValueError: if they are not int8 rows of D columns.
  """
  expected = layout.round_up(dim, 4) + 8
  if rows.dtype != jnp.uint8 or rows.shape[1] != expected:
    raise ValueError(
        f"int8 rows of {dim} columns are uint8[rows, {expected}], got"
        f" {rows.dtype.name}{list(rows.shape)}."
    )
  words = jax.lax.bitcast_convert_type(
      rows.reshape(rows.shape[0], -1, 4), jnp.int32
  )
  return jnp.pad(words, ((0, 0), (0, words_per_row(dim) - words.shape[1])))
