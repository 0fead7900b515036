# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A cache that forgets what was not asked for in a while."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Hashable
import threading
from typing import Any


class RecentValues:
  """The values of the keys that were asked for last.

  functools.lru_cache keeps the arguments of a function as well, and these may
  be larger than what they are needed for. Any thread may call.
  """

  def __init__(self, max_size: int):
    """Makes an empty cache that keeps `max_size` values."""
    self._max_size = max_size
    self._values = collections.OrderedDict()
    self._lock = threading.Lock()

  def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
    """The value of `key`; make() if there is none.

    Two threads may make a value at the same time. Both get that of the first.

    Args:
      key: says all that the value depends on.
      make: called without the lock, as it may take long.
    """
    with self._lock:
      if key in self._values:
        self._values.move_to_end(key)
        return self._values[key]
    value = make()
    with self._lock:
      value = self._values.setdefault(key, value)
      self._values.move_to_end(key)
      while len(self._values) > self._max_size:
        self._values.popitem(last=False)
    return value
