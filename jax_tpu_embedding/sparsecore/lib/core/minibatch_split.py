# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How a step is split into minibatches; in readable and slow Python.

A stage of the reference converter, input_preprocessing.py. A hash spreads the
stack rows of a step over 64 buckets, and neighbouring buckets join into
minibatches as long as every partition stays within its limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_tpu_embedding.sparsecore.lib.core import constants

NUM_BUCKETS = constants.MAX_MINIBATCHES

_KEY = (
    0x4451E30F87DB9609,
    0xCA7358A1FD2737F8,
    0x4B2C991FCEE4FDEA,
    0x0B2658E18326F6BA,
)
_MUL0 = (
    0xDBE6D5D5FE4CCE2F,
    0xA4093822299F31D0,
    0x13198A2E03707344,
    0x243F6A8885A308D3,
)
_MUL1 = (
    0x3BD39E10CB0EF593,
    0xC0ACF169B5F18A8C,
    0xBE5466CF34E90C6C,
    0x452821E638D01377,
)
# Which byte of a pair of 64-bit words each byte of a zipper merge is.
_ZIPPER = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
_MASK64 = 2**64 - 1
_MASK32 = 2**32 - 1


def hash_stack_row(stack_row: int) -> int:
  """HighwayHash-64 of the four little-endian bytes of a stack row.

  Source: Alakuijala, Cox and Wassenberg, "Fast keyed hash/pseudo-random
  function using SIMD multiply and permute", arXiv:1612.06257, 2016.
  """
  size = 4
  v0 = [
      ((mul ^ key) + (size << 32) + size) & _MASK64
      for mul, key in zip(_MUL0, _KEY)
  ]
  v1 = [
      _rotate_halves(mul ^ _swap_halves(key), size)
      for mul, key in zip(_MUL1, _KEY)
  ]
  state = (v0, v1, list(_MUL0), list(_MUL1))
  _update(state, [stack_row, 0, 0, 0])
  for _ in range(4):
    _update(state, [_swap_halves(v0[i]) for i in (2, 3, 0, 1)])
  return sum(words[0] for words in state) & _MASK64


def bucket_of(stack_row: int) -> int:
  """The bucket of a stack row, in [0, NUM_BUCKETS)."""
  return hash_stack_row(stack_row) % NUM_BUCKETS


def split_bits(counts: Sequence[int], limit: int) -> int:
  """The boundaries between buckets that one partition needs.

  Args:
    counts: entries, or distinct rows, of each bucket.
    limit: of the partition in one minibatch.

  Returns:
    63 bits, one per node of a binary tree over the buckets: first the nodes of
    two buckets from left to right, then those of four. A set bit keeps the
    boundary in the middle of its node.
  """
  counts = list(counts)
  bits = bit = 0
  size = 2
  while size <= NUM_BUCKETS:
    for i in range(0, NUM_BUCKETS, size):
      left, right = counts[i], counts[i + size // 2]
      if left + right > limit:
        bits |= 1 << bit
        counts[i] = max(left, right)
      else:
        counts[i] = left + right
      bit += 1
    size *= 2
  return bits


def minibatches(bits: int) -> list[range]:
  """The buckets of each minibatch."""
  starts = [0]
  bit = 0
  size = 2
  while size <= NUM_BUCKETS:
    for i in range(0, NUM_BUCKETS, size):
      if bits >> bit & 1:
        starts.append(i + size // 2)
      bit += 1
    size *= 2
  starts.sort()
  return [range(*ends) for ends in zip(starts, starts[1:] + [NUM_BUCKETS])]


def _swap_halves(word: int) -> int:
  return word >> 32 | (word & _MASK32) << 32


def _rotate_halves(word: int, bits: int) -> int:
  low, high = word & _MASK32, word >> 32
  low, high = ((x << bits | x >> 32 - bits) & _MASK32 for x in (low, high))
  return high << 32 | low


def _update(state: Sequence[list[int]], packet: Sequence[int]) -> None:
  v0, v1, mul0, mul1 = state
  for i in range(4):
    v1[i] = (v1[i] + mul0[i] + packet[i]) & _MASK64
    mul0[i] ^= (v1[i] & _MASK32) * (v0[i] >> 32)
    v0[i] = (v0[i] + mul1[i]) & _MASK64
    mul1[i] ^= (v0[i] & _MASK32) * (v1[i] >> 32)
  _add_zipped(v1, to=v0)
  _add_zipped(v0, to=v1)


def _add_zipped(words: Sequence[int], to: list[int]) -> None:
  for pair in (0, 2):
    both = b"".join(w.to_bytes(8, "little") for w in words[pair : pair + 2])
    zipped = bytes(both[i] for i in _ZIPPER)
    for i in range(2):
      word = int.from_bytes(zipped[8 * i : 8 * i + 8], "little")
      to[pair + i] = (to[pair + i] + word) & _MASK64
