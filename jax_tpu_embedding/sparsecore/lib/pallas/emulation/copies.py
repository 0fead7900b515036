# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Copies between memories, and the semaphores that count them.

A copy is done when it is started, and its bytes are added to its semaphore. A
wait subtracts them. So a wait for a copy that is not under way, and a copy that
nobody waits for, are seen as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import memory
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import mistakes

# In `Memory.owners`: 0 is nobody, a worker w is w + 1, and after a barrier of
# the subcores of SparseCore c its workers are this plus c.
_FIRST_CORE = 128


def is_remote(equation: Any) -> bool:
  """Whether a copy goes to another worker."""
  if equation.primitive.name not in ("dma_start", "dma_wait"):
    return False
  return _operands(equation, list(equation.invars))[4] is not None


def start(worker: Any, equation: Any, *operands: Any) -> list[Any]:
  """Copies, and adds the bytes to the semaphores."""
  source, target, semaphore, send_semaphore, device = _operands(
      equation, operands
  )
  if device is not None:
    target = _of_other_worker(worker, equation, target, device)
    semaphore = _of_other_worker(worker, equation, semaphore, device)
  sizes = _sizes_of_bounded_copy(source, target)
  if sizes is not None:
    _check_sizes(worker, equation, source, sizes)
    _check_sizes(worker, equation, target, sizes)
  source = _select(worker, equation, source, sizes)
  target = _select(worker, equation, target, sizes)
  if target.view.memory.is_read_only and worker.kernel.log.is_enabled:
    raise mistakes.KernelMistake(
        f"{worker.kernel.described(equation)}: a copy into an operand that is"
        " no result. On a TPU that changes the array of who calls the kernel."
        " Name it in in_place of kernel(), or pass a jax.Ref."
    )
  add = equation.params.get("add", False)
  if add and target.view.space is memory.Space.HBM:
    raise NotImplementedError(
        f"{worker.kernel.described(equation)}: A copy with add=True into HBM."
        " SparseCores can add into VMEM and VMEM_SHARED only."
    )
  if sizes is not None and not add and target.view.space is memory.Space.VMEM:
    # The rest may be read, and masked: of the last block of an array
    # emit_pipeline copies what there is, and its body reads the whole block.
    place = target.view.at(target.transforms)
    jax_versions.store(place, memory.as_if_written(place[...]))
  target.write(source.read(), add=add, kept=source.ignored)
  num_bytes = target.count * target.view.dtype.itemsize
  _add(worker, equation, semaphore, num_bytes)
  if device is not None:
    _add(worker, equation, send_semaphore, num_bytes)
  return []


def wait(worker: Any, equation: Any, *operands: Any) -> list[Any]:
  """Subtracts the bytes of a copy from its semaphore."""
  source, target, semaphore, _, _ = _operands(equation, operands)
  if semaphore is None:
    return []
  view, transforms = parts(target)
  count = _count(view, transforms, _sizes_of_bounded_copy(source, target))
  num_bytes = count * view.dtype.itemsize
  under_way = _part(worker, equation, semaphore)[...].reshape(())
  worker.note(
      equation,
      under_way < num_bytes,
      "waits for a copy of {limit} bytes, of which {found} are under way. Start"
      " it before, and wait for it once.",
      found=under_way,
      limit=num_bytes,
  )
  _add(worker, equation, semaphore, -num_bytes)
  return []


def signal(worker: Any, equation: Any, *operands: Any) -> list[Any]:
  """Adds to a semaphore, perhaps that of another worker.

  What a device sends to others counts as if it had sent it to itself: all
  devices run the same program.
  """
  semaphore, transforms, increment, device, core_index = jax.tree.unflatten(
      equation.params["args_tree"], operands
  )
  if core_index is not None:
    raise NotImplementedError(
        f"{worker.kernel.described(equation)}: semaphore_signal with"
        " core_index is not emulated. Use device_id={'core': index}."
    )
  if device is not None:
    index, _ = worker.kernel.worker_at(equation, device, worker.index)
    semaphore = semaphore.of(index)
  place = worker.part(equation, semaphore, transforms)
  place[...] = place[...] + increment
  return []


def wait_for_signals(worker: Any, equation: Any, *operands: Any) -> list[Any]:
  """Subtracts from a semaphore, which has been signalled by now."""
  semaphore, transforms, needed, decrement = jax.tree.unflatten(
      equation.params["args_tree"], operands
  )
  place = worker.part(equation, semaphore, transforms)
  value = place[...]
  worker.note(
      equation,
      value < needed,
      "semaphore_wait would wait for ever: the semaphore is {found}, and"
      " {limit} is waited for. A signal counts if the program sends it before"
      " the wait, or in another branch of one jax.lax.cond.",
      found=value,
      limit=needed,
  )
  if decrement is None or isinstance(decrement, bool):
    place[...] = value - needed if decrement is not False else value
  else:
    place[...] = jnp.where(decrement, value - needed, value)
  return []


def read_semaphore(worker: Any, equation: Any, *operands: Any) -> list[Any]:
  """The value of a semaphore."""
  semaphore, transforms = jax.tree.unflatten(
      equation.params["args_tree"], operands
  )
  return [worker.part(equation, semaphore, transforms)[...]]


RULES = {
    "dma_start": start,
    "dma_wait": wait,
    "semaphore_read": read_semaphore,
    "semaphore_signal": signal,
    "semaphore_wait": wait_for_signals,
}


def parts(x: Any) -> tuple[memory.View, tuple[Any, ...]]:
  """A view, and what selects a part of it."""
  if isinstance(x, jax_versions.TransformedRef):
    view, transforms = parts(x.ref)
    return view, (*transforms, *x.transforms)
  return x, ()


def release_owners(blocks: Sequence[memory.Memory]) -> None:
  """After all workers waited for each other, each may write anything."""
  for block in blocks:
    if block.owners is not None:
      block.owners[...] = jnp.zeros_like(block.owners[...])


def share_owners(
    blocks: Sequence[memory.Memory], workers_per_core: int
) -> None:
  """After a barrier of subcores, they may write what their core has written."""
  for block in blocks:
    if block.owners is not None:
      old = block.owners[...]
      core = (old.astype(jnp.int32) - 1) // workers_per_core
      is_worker = (old > 0) & (old < _FIRST_CORE)
      block.owners[...] = jnp.where(
          is_worker, (_FIRST_CORE + core).astype(old.dtype), old
      )


def _operands(equation: Any, operands: Sequence[Any]) -> Any:
  """Source, target, its semaphore, that of the sender, device."""
  return equation.params["tree"].unflatten(list(operands))


def _add(worker: Any, equation: Any, semaphore: Any, num_bytes: Any) -> None:
  if semaphore is None:
    return
  place = _part(worker, equation, semaphore)
  place[...] = place[...] + num_bytes


def _part(worker: Any, equation: Any, semaphore: Any) -> Any:
  return worker.part(equation, *parts(semaphore))


def _of_other_worker(worker: Any, equation: Any, x: Any, device: Any) -> Any:
  index, others = worker.kernel.worker_at(equation, device, worker.index)
  if others:
    raise NotImplementedError(
        f"Kernel {worker.kernel.name!r} copies to another device, along"
        f" {sorted(others)}, which is not emulated. Exchange between devices"
        " by jax.lax collectives around the kernel."
    )
  view, transforms = parts(x)
  view = view.of(index)
  return jax_versions.TransformedRef(view, transforms) if transforms else view


# --- What a copy selects ---


@dataclasses.dataclass
class _Part:
  """Consecutive elements: sizes are known, starts may not be."""

  worker: Any
  equation: Any
  view: memory.View
  transforms: tuple[Any, ...]

  ignored = None

  @property
  def count(self) -> Any:
    return _count(self.view, self.transforms, None)

  def read(self) -> jax.Array:
    self.worker.check_bounds(self.equation, self.transforms)
    owners = self._owners()
    if owners is not None:
      _check_owners(self.worker, self.equation, owners[...], "reads", None)
    return self.view.at(self.transforms)[...]

  def write(self, value: jax.Array, *, add: bool, kept: Any) -> None:
    self.worker.check_bounds(self.equation, self.transforms)
    place = self.view.at(self.transforms)
    _check_alike(self.worker, self.equation, value, place)
    owners = self._owners()
    if owners is not None:
      old = owners[...]
      _check_owners(
          self.worker, self.equation, old, "adds to" if add else "writes", kept
      )
      if not add:
        new = jnp.broadcast_to(_code(self.worker, old), old.shape)
        jax_versions.store(owners, _combine(old, new, False, kept))
    if add or kept is not None:
      old = place[...]
      if add:
        used = _combine(jnp.zeros_like(old), old, False, kept)
        self.worker.check_written(self.equation, used)
      value = _combine(old, value, add, kept)
    jax_versions.store(place, value)

  def _owners(self) -> Any:
    """Who wrote the elements, as a ref; None if that is not known."""
    is_plain = all(
        isinstance(t, jax_versions.Selection) for t in self.transforms
    )
    if self.view.memory.owners is None or not is_plain:
      return None
    return self.view.owners_at(self.transforms)


@dataclasses.dataclass
class _Scattered:
  """Elements by lists of indices; what is out of range is left out."""

  worker: Any
  equation: Any
  view: memory.View
  transforms: tuple[Any, ...]  # before the lists
  indices: tuple[Any, ...]  # that broadcast; out of range: not there
  ignored: jax.Array | None  # bool[n]: rows that are not to be copied
  count: Any

  def read(self) -> jax.Array:
    self._check_owners("reads")
    whole = self.view.at(self.transforms)[...]
    return whole.at[self.indices].get(mode="fill")

  def write(self, value: jax.Array, *, add: bool, kept: Any) -> None:
    if kept is not None:
      raise NotImplementedError(
          f"{self.worker.kernel.described(self.equation)}: A copy with ignored"
          " indices at its source, and lists of indices at its target."
      )
    place = self.view.at(self.transforms)
    whole = place[...]
    update = whole.at[self.indices]
    old = update.get(mode="fill", fill_value=0)
    _check_alike(self.worker, self.equation, value, old)
    self._check_owners("adds to" if add else "writes")
    if add:
      self.worker.check_written(self.equation, old)
    elif self.view.memory.owners is not None:
      owners = self.view.owners_at(self.transforms)
      of_all = owners[...]
      code = _code(self.worker, of_all)
      owners[...] = of_all.at[self.indices].set(code, mode="drop")
    place[...] = (
        update.add(value, mode="drop")
        if add
        else update.set(value, mode="drop")
    )

  def _check_owners(self, what: str) -> None:
    if self.view.memory.owners is None:
      return
    owners = self.view.owners_at(self.transforms)[...]
    old = owners.at[self.indices].get(mode="fill", fill_value=0)
    _check_owners(self.worker, self.equation, old, what, None)


def _check_alike(worker, equation, source, target):
  """Raises for what the compiler of a TPU refuses as a fault of its own."""
  found, expected = (f"{x.dtype.name}{list(x.shape)}" for x in (source, target))
  if found != expected:
    raise mistakes.KernelMistake(
        f"{worker.kernel.described(equation)}: a copy of {found} to {expected}."
        " Source and target have the same shape and type."
    )


def _combine(old, new, add, kept):
  if add:
    new = old + new
  if kept is None:
    return new
  return jnp.where(kept.reshape(kept.shape + (1,) * (old.ndim - 1)), old, new)


def _code(worker, owners):
  """What `worker` is called in them."""
  return jnp.asarray(worker.index + 1).astype(owners.dtype)


def _check_owners(worker, equation, owners, what, kept):
  """Notes elements that another worker has written; it `what` them."""
  core = _FIRST_CORE + worker.index // worker.kernel.workers_per_core
  core = jnp.asarray(core).astype(owners.dtype)
  is_mine = (owners == _code(worker, owners)) | (owners == core)
  is_other = (owners != 0) & ~is_mine
  if kept is not None:
    is_other &= ~kept.reshape(kept.shape + (1,) * (owners.ndim - 1))
  worker.note(
      equation,
      jnp.any(is_other),
      f"{what} what another worker has written, and there is no barrier between"
      " them. Give every row to one worker, or let all wait there.",
  )


def _select(worker, equation, x, sizes):
  view, transforms = parts(x)
  if any(map(jax_versions.has_stride, transforms)):
    raise NotImplementedError(
        f"{worker.kernel.described(equation)}: A copy of a slice with a stride,"
        " which TPUs do not have. Copy all of it to VMEM, and load it with the"
        " stride."
    )
  for number, transform in enumerate(transforms):
    if not _is_scattered(transform):
      continue
    if transforms[number + 1 :]:
      raise NotImplementedError(
          f"{worker.kernel.described(equation)}: A part of what a list of"
          " indices, or a slice of run-time size, selects. Select columns"
          " first."
      )
    is_bounded = _is_bounded(transform)
    worker.check_bounds(equation, transforms[: number + is_bounded])
    if is_bounded:
      indices, ignored = _bounded_indices(transform, sizes), None
    else:
      indices, ignored = _listed_indices(worker, equation, transform)
    return _Scattered(
        worker=worker,
        equation=equation,
        view=view,
        transforms=transforms[:number],
        indices=indices,
        ignored=ignored,
        count=_count(view, transforms, sizes),
    )
  if sizes is not None and transforms and not _is_bounded(transforms[-1]):
    # The other side of a copy of run-time size.
    return _whole_bounded(worker, equation, view, transforms, sizes)
  if sizes is not None and not transforms:
    return _whole_bounded(worker, equation, view, (), sizes)
  return _Part(worker, equation, view, transforms)


def _whole_bounded(worker, equation, view, transforms, sizes):
  """The first elements of a part, as many as the copy has."""
  shape = view.at(transforms).shape if transforms else view.shape
  free = [_Start(0)] * len(shape)
  return _Scattered(
      worker=worker,
      equation=equation,
      view=view,
      transforms=transforms,
      indices=_spread([(s.start, n) for s, n in zip(free, shape)], sizes),
      ignored=None,
      count=math.prod(real for _, real in sizes),
  )


@dataclasses.dataclass
class _Start:
  start: Any


def _is_bounded(transform: Any) -> bool:
  """Whether it has a slice whose size is known at run time only."""
  return isinstance(transform, jax_versions.Selection) and any(
      isinstance(index, jax_versions.Slice) and not isinstance(index.size, int)
      for index in transform.indices
  )


def is_list(index: Any) -> bool:
  """Whether it is a list of indices, in registers or in memory."""
  if isinstance(
      index, (plsc.Indices, memory.View, jax_versions.TransformedRef)
  ):
    return True
  return not isinstance(index, jax_versions.Slice) and jnp.ndim(index) > 0


def _is_scattered(transform: Any) -> bool:
  return isinstance(transform, jax_versions.Selection) and (
      _is_bounded(transform) or any(map(is_list, transform.indices))
  )


def _listed_indices(worker, equation, selection):
  """Index arrays of a selection by lists, and which of the rows are ignored."""
  arrays, ignored = [], None
  shapes = []
  for index, size in zip(selection.indices, selection.shape):
    if isinstance(index, jax_versions.Slice):
      if isinstance(index.start, int) and (index.start, index.size) == (
          0,
          size,
      ):
        arrays.append(slice(None))
      else:
        arrays.append(index.start + jnp.arange(index.size))
      continue
    value, ignored_value = _values_of_list(worker, equation, index)
    outside = (value < 0) | (value >= size)
    if ignored_value is not None:
      ignored = value == ignored_value
      outside &= ~ignored
    worst = value.reshape(-1)[jnp.argmax(outside.reshape(-1))]
    worker.note(
        equation,
        jnp.any(outside),
        "copies row {found} of memory that has {limit} rows.",
        found=worst,
        limit=size,
    )
    outside = (value < 0) | (value >= size)
    if ignored_value is not None:
      outside |= ignored
    arrays.append(jnp.where(outside, size, value))
    shapes.append(value.shape)
  # Lists beside slices that begin elsewhere: as in numpy, each on its axis.
  if any(isinstance(a, jax.Array) and a.ndim == 1 for a in arrays) and any(
      isinstance(index, jax_versions.Slice) and not isinstance(array, slice)
      for index, array in zip(selection.indices, arrays)
  ):
    arrays = [
        jnp.arange(n) if isinstance(a, slice) else a
        for a, n in zip(arrays, selection.shape)
    ]
    rank = len(arrays)
    arrays = [
        a.reshape((1,) * i + (-1,) + (1,) * (rank - i - 1))
        for i, a in enumerate(arrays)
    ]
  return tuple(arrays), ignored


def _values_of_list(worker, equation, index):
  """A list of indices, and the value in it that is to be left out."""
  ignored_value = None
  if isinstance(index, plsc.Indices):
    index, ignored_value = index.values, index.ignored_value
  if isinstance(index, (memory.View, jax_versions.TransformedRef)):
    view, transforms = parts(index)
    index = worker.read(equation, view, transforms)
  return jnp.asarray(index), ignored_value


def _free_slices(x: Any) -> list[Any]:
  """Start, size of the memory, and size of the part, of what is copied."""
  view, transforms = parts(x)
  if transforms and isinstance(transforms[-1], jax_versions.Selection):
    last = transforms[-1]
    return [
        (index.start, bound, index.size)
        for index, bound in zip(last.indices, last.shape)
        if isinstance(index, jax_versions.Slice)
    ]
  shape = view.at(transforms).shape if transforms else view.shape
  return [(0, size, size) for size in shape]


def _sizes_of_bounded_copy(source: Any, target: Any) -> Any:
  """Of each axis, the largest size and that at run time; None if all is known."""
  is_bounded = any(
      _is_bounded(t) for x in (source, target) for t in parts(x)[1][-1:]
  )
  if not is_bounded:
    return None
  sizes = []
  for (_, bound_a, a), (_, bound_b, b) in zip(
      _free_slices(source), _free_slices(target), strict=True
  ):
    known = [size for size in (a, b) if isinstance(size, int)]
    unknown = [size for size in (a, b) if not isinstance(size, int)]
    bound = min([*known, bound_a, bound_b])
    real = bound if not unknown else functools.reduce(jnp.minimum, unknown)
    sizes.append((bound, real))
  return sizes


def _check_sizes(worker, equation, x, sizes):
  """Notes where `x` has no room for a copy of run-time size.

  A slice of HBM may end after the array, as those of emit_pipeline do in the
  last block. Nothing is copied there.
  """
  view, _ = parts(x)
  for (start, limit, size), (_, real) in zip(_free_slices(x), sizes):
    if isinstance(start, int) and isinstance(real, int):
      continue
    limit = start + size if isinstance(size, int) else limit
    found = jnp.where(real < 0, real, jnp.where(start < 0, start, start + real))
    is_wrong = found < 0
    if view.space is memory.Space.HBM:
      is_wrong |= start > limit
    else:
      is_wrong |= found > limit
    worker.note(
        equation,
        is_wrong,
        "copies a slice of run-time size, whose size, start or end is {found},"
        " of memory that has {limit} there.",
        found=found,
        limit=limit,
    )


def _bounded_indices(selection, sizes):
  """Index arrays of a selection whose slices have `sizes`."""
  sizes = iter(sizes)
  starts = []
  for index, size in zip(selection.indices, selection.shape):
    if isinstance(index, jax_versions.Slice):
      starts.append((index.start, size, next(sizes)))
    else:
      starts.append((index, size, None))
  return _broadcast(starts)


def _spread(starts, sizes):
  return _broadcast([(s, n, size) for (s, n), size in zip(starts, sizes)])


def _broadcast(axes):
  """Index arrays along axes of (start, size of memory, sizes or None)."""
  rank = sum(size is not None for *_, size in axes)
  arrays, axis = [], 0
  for start_of_axis, num, size in axes:
    if size is None:
      arrays.append(start_of_axis)
      continue
    bound, real = size
    k = jnp.arange(bound)
    index = jnp.where(k < real, start_of_axis + k, num)
    shape = [1] * rank
    shape[axis] = bound
    arrays.append(index.reshape(shape))
    axis += 1
  return tuple(arrays)


def _count(view: memory.View, transforms: Sequence[Any], sizes: Any) -> Any:
  """How many elements a part has."""
  if sizes is not None:
    return math.prod(real for _, real in sizes)
  last = transforms[-1] if transforms else None
  if last is not None and _is_scattered(last):
    count, lists = 1, set()
    for index in last.indices:
      if isinstance(index, jax_versions.Slice):
        count *= index.size
      else:
        if isinstance(index, plsc.Indices):
          index = index.values
        if isinstance(index, jax_versions.TransformedRef):
          view_of_list, rest = parts(index)
          lists.add(tuple(view_of_list.at(rest).shape))
        else:
          lists.add(
              tuple(jnp.shape(index))
              if not isinstance(index, memory.View)
              else tuple(index.shape)
          )
    return count * max((math.prod(shape) for shape in lists), default=1)
  shape = view.at(transforms).shape if transforms else view.shape
  return math.prod(shape)
