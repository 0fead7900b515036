# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a kernel may do wrong, and how a running one reports it.

A program of XLA cannot raise. So the first mistake of a kernel is written into
a small array, four numbers, and a callback after the kernel raises if there is
one. Without a mistake nothing is called.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np


class KernelMistake(ValueError):
  """A kernel does what a TPU would not survive, or would compute wrongly.

  Those that are found while a kernel runs arrive as the text of a
  jax.errors.JaxRuntimeError, as everything that a callback raises.
  """


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Site:
  """A place in a kernel where a mistake can be found."""

  line: str
  text: str  # with {found} and {limit}


class Log:
  """The first mistake of a kernel on one device; remembers nothing if off."""

  def __init__(self, kernel: str, worker_names: Sequence[str], enabled: bool):
    self._kernel = kernel
    self._worker_names = worker_names
    self._sites: list[_Site] = []
    # Number of the site plus one, worker, value found, limit.
    self._record = jax.new_ref(jnp.zeros(4, jnp.int32)) if enabled else None

  @property
  def is_enabled(self) -> bool:
    return self._record is not None

  def note(
      self,
      is_wrong: jax.typing.ArrayLike,
      text: str,
      *,
      line: str,
      worker: jax.typing.ArrayLike,
      found: jax.typing.ArrayLike = 0,
      limit: jax.typing.ArrayLike = 0,
  ) -> None:
    """Remembers a mistake of `worker`, if `is_wrong` and it is the first.

    Args:
      is_wrong: bool[].
      text: what is wrong, with {found} and {limit} for the two numbers.
      line: of the kernel.
      worker: int32[].
      found: int32[].
      limit: int32[].
    """
    if not self.is_enabled:
      return
    self._sites.append(_Site(line=line, text=text))
    numbers = [len(self._sites), worker, found, limit]
    new = jnp.stack([jnp.asarray(x).astype(jnp.int32) for x in numbers])
    old = self._record[...]
    is_first = jnp.asarray(is_wrong) & (old[0] == 0)
    self._record[...] = jnp.where(is_first, new, old)

  def report(self) -> None:
    """Raises, when the program runs, if there was a mistake."""
    if not self.is_enabled:
      return
    record = self._record[...]
    jax.lax.cond(
        record[0] != 0,
        lambda: io_callback(self._raise, None, record),
        lambda: None,
    )

  def _raise(self, record: Any) -> None:
    number, worker, found, limit = map(int, np.asarray(record))
    site = self._sites[number - 1]
    raise KernelMistake(
        f"Kernel {self._kernel!r}, {self._worker_names[worker]}, {site.line}:"
        f" {site.text.format(found=found, limit=limit)}"
    )
