# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The memories of a kernel, as mutable arrays of the program that emulates it.

Where every worker has its own, or every SparseCore, there is one array for all
of them with a leading axis, and a worker sees its part.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import enum
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
import numpy as np


class Space(enum.Enum):
  HBM = "HBM"
  SHARED = "VMEM_SHARED"
  VMEM = "VMEM"
  SMEM = "SMEM"
  SEMAPHORE = "semaphores"


def space_of(aval: Any) -> Space:
  """The memory that the abstract value of a ref names."""
  space = aval.memory_space
  name = getattr(space, "memory_space", space)
  name = str(getattr(name, "name", name)).lower()
  if "sem" in name:
    return Space.SEMAPHORE
  if "shared" in name:
    return Space.SHARED
  if "smem" in name:
    return Space.SMEM
  if "hbm" in name or "any" in name:
    return Space.HBM
  return Space.VMEM


# What memory holds that nobody wrote, by the bytes of a number. Of floats it is
# a NaN that no arithmetic makes.
_UNWRITTEN = {1: 0x5A, 2: 0x5A5A, 4: 0x5AA5C35A}
_UNWRITTEN_FLOATS = {
    jnp.dtype(jnp.float32): 0x7FE5A5A5,
    jnp.dtype(jnp.bfloat16): 0x7FE5,
    jnp.dtype(jnp.float16): 0x7E5A,
}


def unwritten(shape: Sequence[int], dtype: Any) -> jax.Array:
  """Memory in which nothing was written: NaN, a large integer, or zero."""
  dtype = jnp.dtype(dtype)
  bits = _bits_of_unwritten(dtype)
  if bits is None:
    is_float = jnp.issubdtype(dtype, jnp.floating)
    return jnp.full(shape, jnp.nan if is_float else 0, dtype)
  return jax.lax.bitcast_convert_type(jnp.full(shape, bits), dtype)


def is_unwritten(x: jax.Array) -> jax.Array | None:
  """Where `x` is as `unwritten` made it; None if that cannot be told.

  Integers of up to 16 bits may be anything.
  """
  bits = _bits_of_unwritten(x.dtype)
  is_float = jnp.issubdtype(x.dtype, jnp.floating)
  if bits is None or (bits.dtype.itemsize < 4 and not is_float):
    return None
  return jax.lax.bitcast_convert_type(x, bits.dtype) == bits


def as_if_written(x: jax.Array) -> jax.Array:
  """`x` in which what nobody wrote is another NaN, or another large integer."""
  where = is_unwritten(x)
  if where is None:
    return x
  bits = jax.lax.bitcast_convert_type(x, _bits_of_unwritten(x.dtype).dtype)
  return jax.lax.bitcast_convert_type(jnp.where(where, bits ^ 1, bits), x.dtype)


def _bits_of_unwritten(dtype: Any) -> Any:
  dtype = jnp.dtype(dtype)
  pattern = _UNWRITTEN_FLOATS.get(dtype)
  if pattern is None and jnp.issubdtype(dtype, jnp.integer):
    # Those of 2 and 4 bits have none.
    if jnp.iinfo(dtype).bits == 8 * dtype.itemsize:
      pattern = _UNWRITTEN.get(dtype.itemsize)
  if pattern is None:
    return None
  return np.dtype(f"uint{8 * dtype.itemsize}").type(pattern)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """A ref of a kernel, for all workers."""

  array: jax.Ref  # [copies, *shape of the ref], or the shape alone
  aval: Any
  space: Space
  # How many neighbouring workers share a copy; None if there is one for all.
  workers_per_copy: int | None = None
  is_read_only: bool = False  # an operand that is no result
  # uint8, like `array`: who wrote an element of HBM or VMEM_SHARED; see
  # copies.py.
  owners: jax.Ref | None = None

  def seen_by(self, worker: jax.typing.ArrayLike) -> View:
    """What a worker sees of it."""
    if self.workers_per_copy is None:
      return View(self, ())
    place = self.array.at[worker // self.workers_per_copy]
    return View(self, place.transforms)


# Of JAX 0.12; see View.at.
_SLICE_OF_SUBCORE = "SharedMemRefSliceTransform"


@dataclasses.dataclass(frozen=True)
class View:
  """A ref of a kernel, as one worker sees it."""

  memory: Memory
  prefix: tuple[Any, ...]  # selects the worker's part

  @property
  def shape(self) -> tuple[int, ...]:
    return self.memory.aval.shape

  @property
  def dtype(self) -> Any:
    return self.memory.aval.dtype

  @property
  def space(self) -> Space:
    return self.memory.space

  def at(self, transforms: Sequence[Any] = ()) -> Any:
    """The ref, or its part that `transforms` select."""
    selections = map(jax_versions.readable, transforms)
    transforms = (*self.prefix, *itertools.chain.from_iterable(selections))
    if any(type(t).__name__ == _SLICE_OF_SUBCORE for t in transforms):
      raise NotImplementedError(
          "plsc.slice_subcore_vmem_from_shared is not emulated. Give each"
          " subcore memory of its own by pltpu.VMEM in scratch_shapes."
      )
    if not transforms:
      return self.memory.array
    return jax_versions.TransformedRef(self.memory.array, transforms)

  def owners_at(self, transforms: Sequence[Any] = ()) -> Any:
    """The same part of the owners."""
    transforms = (*self.prefix, *transforms)
    if not transforms:
      return self.memory.owners
    return jax_versions.TransformedRef(self.memory.owners, transforms)

  def of(self, worker: jax.typing.ArrayLike) -> View:
    """The same ref of another worker."""
    return self.memory.seen_by(worker)


def allocate(
    aval: Any, copies: int | None, num_workers: int, check: bool
) -> Memory:
  """New memory in which nothing is written, and semaphores that are zero.

  Args:
    aval: of the ref.
    copies: how many there are, one after another, for equal numbers of workers;
      None is one for all.
    num_workers: of the kernel.
    check: whether it is remembered who wrote what several can write.
  """
  space = space_of(aval)
  if space is Space.SEMAPHORE:
    value = jnp.zeros(aval.shape, jnp.int32)
  else:
    value = unwritten(aval.shape, aval.dtype)
  if copies is not None:
    value = jnp.broadcast_to(value, (copies, *aval.shape))
  owners = None
  if check and space is Space.SHARED:
    owners = jax.new_ref(jnp.zeros(value.shape, jnp.uint8))
  return Memory(
      array=jax.new_ref(value),
      aval=aval,
      space=space,
      owners=owners,
      workers_per_copy=None if copies is None else num_workers // copies,
  )
