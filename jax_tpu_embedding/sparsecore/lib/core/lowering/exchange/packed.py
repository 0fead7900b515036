# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Arrays of any shapes and types in one, so that one collective moves them all.

Bits stay as they are. To put arrays together and to take them apart copies
them, which costs less than a collective for each, as long as these are small.

(A collective of several operands would copy nothing. But XLA's runtime for CPUs
makes one exchange of each operand, and jax.lax has no such collectives.)
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np


def pack(arrays: Sequence[jax.Array], num_parts: int = 1) -> jax.Array:
  """One array [num_parts, words], of which row k has part k of each array.

  Args:
    arrays: whose first dimensions `num_parts` divides.
    num_parts: that each is cut into.
  """
  word = _word(arrays)
  return jnp.concatenate(
      [_to_words(x, word).reshape(num_parts, -1) for x in arrays], axis=1
  )


def unpack(
    packed: jax.Array, like: Sequence[jax.Array], times: int = 1
) -> list[jax.Array]:
  """The arrays of which `pack` made `packed`, or others like them.

  Args:
    packed: an array [parts, words].
    like: what has their shapes and types.
    times: how often as long they are in their first dimension.
  """
  num_parts = packed.shape[0]
  word = packed.dtype
  sizes = [
      times * x.size * x.dtype.itemsize // word.itemsize // num_parts
      for x in like
  ]
  ends = itertools.accumulate(sizes)
  return [
      _of_words(
          lax.slice_in_dim(packed, end - size, end, axis=1),
          (times * x.shape[0], *x.shape[1:]),
          x.dtype,
      )
      for x, size, end in zip(like, sizes, ends)
  ]


def _word(arrays: Sequence[jax.Array]) -> np.dtype:
  """The type of which each of `arrays` has a whole number."""
  types = {x.dtype for x in arrays}
  if len(types) == 1:
    return types.pop()
  itemsize = min(dtype.itemsize for dtype in types)
  return np.dtype(f"uint{8 * itemsize}")


def _to_words(x: jax.Array, word: np.dtype) -> jax.Array:
  return x if x.dtype == word else lax.bitcast_convert_type(x, word)


def _of_words(
    words: jax.Array, shape: tuple[int, ...], dtype: np.dtype
) -> jax.Array:
  if words.dtype == dtype:
    return words.reshape(shape)
  per_element = dtype.itemsize // words.dtype.itemsize
  if per_element > 1:
    shape = (*shape, per_element)
  return lax.bitcast_convert_type(words.reshape(shape), dtype)
