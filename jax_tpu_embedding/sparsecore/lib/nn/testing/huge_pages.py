# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which memory of arrays is in huge pages, as the system says."""

from __future__ import annotations

import pathlib
import re

from absl.testing import absltest
import jax

_BYTES = 2**21  # of a huge page
_CHOICES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def assert_are_under(test: absltest.TestCase, array: jax.Array) -> None:
  """Fails unless an array on CPU devices is in huge pages.

  Its two ends share theirs with other memory, and may have small ones. Where the
  system has none, the rest of the test is skipped.
  """
  if not _CHOICES.exists() or "[never]" in _CHOICES.read_text():
    test.skipTest("This system has no huge pages.")
  for part in array.addressable_shards:
    begin = part.data.unsafe_buffer_pointer()
    test.assertGreaterEqual(
        _bytes_in_huge_pages(begin, begin + part.data.nbytes),
        part.data.nbytes - 2 * _BYTES,
    )


def _bytes_in_huge_pages(begin: int, end: int) -> int:
  """Of the mappings that have a part of this range."""
  total, is_part = 0, False
  for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
    if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
      first, last = (int(bound, 16) for bound in bounds.groups())
      is_part = first < end and begin < last
    elif is_part and line.startswith("AnonHugePages:"):
      total += 1024 * int(line.split()[1])
  return total
