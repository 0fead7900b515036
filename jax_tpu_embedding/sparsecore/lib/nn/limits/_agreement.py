# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How the processes of a job agree on a batch and on limits.

By reductions, which all of them make in one order: the union of the bits that
each of them contributes.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import operator
from typing import Any
import zlib

# Contributions to the reduction of each batch.
DOES_NOT_FIT, HAS_ENDED = 1, 2
# Added to the union, where processes have different things.
DIFFERS = 4

# Reductions are numbered, and the converter makes two keys of 31 bits of each
# number. Numbers that come again are new ones: of keys, a node remembers the
# last 1,024, to tell who contributes twice.
_MAX_REDUCTION = (1 << 30) - 1
_BITS_PER_REDUCTION = 64
# Above those of the contributions, a digest and its complement.
_NUM_FLAGS = 2
_DIGEST_BITS = 30
_DIGESTS = (1 << _DIGEST_BITS) - 1


class Agreement:
  """The reductions of one process. Not thread-safe.

  Of one process alone, which agrees with itself, there are none.
  """

  def __init__(self, all_reduce_interface: Any | None):
    """Starts without reductions.

    Args:
      all_reduce_interface: nothing else uses it, but the converter with the
        numbers of `next_number`. None: there is one process.
    """
    self._all_reduce = all_reduce_interface
    self._num_reductions = 0

  def next_number(self) -> int:
    """That of the next reduction, for who makes it without this object."""
    self._num_reductions = self._num_reductions % _MAX_REDUCTION + 1
    return self._num_reductions

  def union(self, value: int) -> int:
    """The bits that any process has."""
    if self._all_reduce is None:
      return value
    # Converters use positive keys.
    return self._all_reduce.bitwise_or(-self.next_number(), value)

  def union_of_batch(self, flags: int, of_batch: Any) -> int:
    """The flags that any process has, and DIFFERS if batches are not alike.

    Args:
      flags: DOES_NOT_FIT or 0. Who has ended has no batch: `union` is for it.
      of_batch: what is to be the same on all processes: hashable, and its repr
        tells.
    """
    if self._all_reduce is None:
      return flags
    # Where two digests differ, one has a bit that is in the complement of the
    # other: no further reduction is needed to see it.
    digest = _digest(of_batch)
    both = digest | (digest ^ _DIGESTS) << _DIGEST_BITS
    union = self.union(flags | both << _NUM_FLAGS)
    both = union >> _NUM_FLAGS
    differs = both & (both >> _DIGEST_BITS) & _DIGESTS
    return union & (DOES_NOT_FIT | HAS_ENDED) | (DIFFERS if differs else 0)

  def highest(self, values: Sequence[int]) -> list[int]:
    """Of each value, the highest that any process has."""
    if self._all_reduce is None:
      return list(values)
    # A union of bits says whether any process has as much as is tried: from the
    # highest bit down, that is the number.
    union = self.union(functools.reduce(operator.or_, values, 0))
    highest = [0] * len(values)
    for bit in reversed(range(union.bit_length())):
      for first in range(0, len(values), _BITS_PER_REDUCTION):
        some = range(first, min(first + _BITS_PER_REDUCTION, len(values)))
        tried = {i: highest[i] | (1 << bit) for i in some}
        found = self.union(
            sum((values[i] >= tried[i]) << (i - first) for i in some)
        )
        for i in some:
          if found & (1 << (i - first)):
            highest[i] = tried[i]
    return highest


def not_alike(batch_number: int, batches: Any, rest: str) -> ValueError:
  """What all processes raise for a batch that is not alike on all of them.

  Args:
    batch_number: of it.
    batches: features and their sizes, where they are not as declared.
    rest: what else was compared, as messages say it.
  """
  size = dict(batches) or "the declared size"
  return ValueError(
      f"Batch {batch_number}: processes have parts of other sizes, features or"
      " shapes, or other limits. That of this one is of a batch of"
      f" {size}{rest and ', with '}{rest}. Give all of them as many samples, of"
      " the same features, in arrays of the same shapes. Where they started"
      " with other limits, or states, call restart()."
  )


# Of most batches it is that of the one before.
@functools.lru_cache(maxsize=128)
def _digest(of_batch: Any) -> int:
  # Not its hash, which is another one in each process.
  return zlib.crc32(repr(of_batch).encode()) & _DIGESTS
