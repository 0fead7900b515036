# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Makes the next items while the last one is used."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from concurrent import futures
import contextlib
from typing import TypeVar

_Item = TypeVar("_Item")
_END = object()


@contextlib.contextmanager
def prefetch(items: Iterator[_Item], depth: int) -> Iterator[Iterator[_Item]]:
  """The same items, made ahead of time by a thread; use it in `with`.

  An exception of `items` is raised where the item would have been. No thread is
  left behind, wherever the `with` ends.

  Args:
    items: used by nobody else.
    depth: number of items to have ready, at least 1.
  """
  # One thread, so that items stay in order.
  with futures.ThreadPoolExecutor(max_workers=1) as pool:

    def submit():
      return pool.submit(next, items, _END)

    pending = collections.deque(submit() for _ in range(depth))

    def ready():
      while (item := pending.popleft().result()) is not _END:
        pending.append(submit())
        yield item

    try:
      yield ready()
    finally:
      for future in pending:
        future.cancel()
