# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""64 bits that tell whether an encoded row is another one than before.

A row is words w_0, w_1, .. of 8 bytes, the last one filled up with zeros. Its
fingerprint is the sum over i of

    fold(fold(w_i, 32) * a_i, 29) * b_i  modulo 2^64,  fold(x, n) = x ^ (x >> n)

with odd constants of each place. Each term is a bijection of its word: rows
that differ in one word always differ, and others meet in one of about 2^64
cases. Every step counts: without the first fold, what differs in the last byte
of words alone meets often, as signs of floats do without the constants b_i.

They are compared by the publisher that computed them, and are in no file.

Source: the constants are a splitmix64 sequence (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import functools

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Of rows at a time: they and what is made of them stay in the cache.
_TILE_BYTES = 128 * 2**10


def of_rows(rows: np.ndarray) -> np.ndarray:
  """u8[n, row_bytes] -> u64[n]."""
  num_rows, row_bytes = rows.shape
  result = np.empty(num_rows, np.uint64)
  num_words = -(-row_bytes // 8)
  first_factors, second_factors = _factors(num_words)
  per_tile = max(1, _TILE_BYTES // (8 * num_words))
  all_words = np.empty((min(num_rows, per_tile), num_words), np.uint64)
  all_shifted = np.empty_like(all_words)
  for first in range(0, num_rows, per_tile):
    tile = rows[first : first + per_tile]
    words, shifted = all_words[: len(tile)], all_shifted[: len(tile)]
    words[:, -1] = 0
    words.view(np.uint8)[:, :row_bytes] = tile
    words ^= np.right_shift(words, np.uint64(32), out=shifted)
    words *= first_factors
    words ^= np.right_shift(words, np.uint64(29), out=shifted)
    words *= second_factors
    np.add.reduce(words, axis=1, out=result[first : first + per_tile])
  return result


@functools.lru_cache(maxsize=8)
def _factors(count: int) -> np.ndarray:
  """Odd numbers without a pattern, u64[2, count]."""
  state = np.arange(1, 2 * count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
  state = (state ^ (state >> np.uint64(30))) * _MULTIPLIERS[0]
  state = (state ^ (state >> np.uint64(27))) * _MULTIPLIERS[1]
  state = (state ^ (state >> np.uint64(31))) | np.uint64(1)
  return state.reshape(2, count)
