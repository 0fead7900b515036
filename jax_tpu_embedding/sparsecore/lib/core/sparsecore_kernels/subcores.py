# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The vector subcores of a device, as the kernels of this room use them.

Each of them is a worker: it takes a share of the rows, in chunks that fit into
its memory, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses
import math
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib import pallas
from jax_tpu_embedding.sparsecore.lib.core import layout

# Of rows in one copy by a list of indices.
MOST_ROWS_OF_CHUNK = 128
# Of a subcore's memory, for rows; the rest is for lists and what XLA adds.
_FOR_ROWS = 0.75

_record = contextvars.ContextVar("memory of kernels", default=None)


class KernelMemory(NamedTuple):
  """What a kernel takes of the memory of each subcore."""

  name: str
  words: int
  words_of_subcore: int


@contextlib.contextmanager
def recorded() -> Iterator[list[KernelMemory]]:
  """A list of the memory of the kernels that are traced within."""
  token = _record.set([])
  try:
    yield _record.get()
  finally:
    _record.reset(token)


@dataclasses.dataclass(frozen=True)
class Subcores:
  """Those of the chip that a program is traced for."""

  mesh: Any
  lanes: int
  capacity: int  # words of memory of a subcore

  @property
  def words(self) -> int:
    """What of it is for rows."""
    return int(self.capacity * _FOR_ROWS)

  @property
  def num_workers(self) -> int:
    return self.mesh.num_cores * self.mesh.num_subcores

  def worker(self) -> jax.Array:
    """i32[], which one runs; in a kernel."""
    core, subcore = self.mesh.shape
    return jax.lax.axis_index(
        core
    ) * self.mesh.num_subcores + jax.lax.axis_index(subcore)

  def rows_of_chunk(self, words_per_row: int) -> int:
    """How many rows a worker takes at once: a multiple of the lanes.

    Raises:
      NotTaken: if not even so many fit.
    """
    fits = self.words // words_per_row // self.lanes * self.lanes
    if not fits:
      raise NotTaken(
          f"A row takes {words_per_row} words of a subcore, which has"
          f" {self.words} for {self.lanes} rows. Use fewer columns."
      )
    rows = self.lanes
    while rows * 2 <= min(fits, MOST_ROWS_OF_CHUNK):
      rows *= 2
    return rows

  def kernel(self, body: Any, scratch: Any, **kwargs: Any) -> Any:
    """pallas.kernel of arrays in the layout of tables: rows one after another."""
    if _record.get() is not None:
      taken = sum(
          -(-math.prod(x.shape) * jnp.dtype(x.dtype).itemsize // 4)
          for x in scratch
          if getattr(x, "memory_space", None) == pltpu.VMEM
      )
      _record.get().append(KernelMemory(kwargs["name"], taken, self.capacity))
    return pallas.kernel(
        body,
        self.mesh,
        scratch,
        compiler_params=pltpu.CompilerParams(
            use_tc_tiling_on_sc=False, needs_layout_passes=False
        ),
        **kwargs,
    )


class NotTaken(NotImplementedError):
  """What these kernels do not do, and other ways do."""


def of_chip() -> Subcores:
  """The subcores of the chip of the current mesh; see pallas.find_chip."""
  chip = pallas.find_chip()
  info = chip.facts.sparse_core
  return Subcores(
      mesh=pallas.vector_subcore_mesh(chip=chip.name),
      lanes=info.num_lanes,
      capacity=info.vmem_capacity_bytes // 4,
  )


def words(dim: int, dtype: Any) -> int:
  """How much of a subcore's memory a row takes."""
  return layout.round_up(dim * dtype.itemsize, 4) // 4
