# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The operations of jax.experimental.pallas.tpu_sc on registers and VMEM.

Source: the docstrings of jax.experimental.pallas.tpu_sc, which say what is
undefined; here that is what nobody wrote (memory.py).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import memory


def load_expanded(worker: Any, equation: Any, ref: Any, *rest: Any) -> Any:
  """Element i is that of `ref` whose number is the number of Trues before i."""
  if not isinstance(ref, memory.View):
    return NotImplemented
  *transforms, mask = rest
  transforms = jax.tree.unflatten(equation.params["tree"], transforms)
  source = worker.part(equation, ref, transforms)[...]
  place = jnp.where(mask, jnp.cumsum(mask) - 1, 0)
  value = jnp.where(
      mask, source[place], memory.unwritten(mask.shape, ref.dtype)
  )
  worker.check_written(equation, jnp.where(mask, value, jnp.zeros_like(value)))
  return [value]


def store(worker: Any, equation: Any, ref: Any, x: Any, *rest: Any) -> Any:
  """store_compressed, addupdate and addupdate_compressed."""
  params = equation.params
  if "has_mask" not in params:
    return NotImplemented
  mask = None
  if params["has_mask"]:
    *rest, mask = rest
  transforms = jax.tree.unflatten(params["tree"], rest)
  place = worker.part(equation, ref, transforms)
  old = place[...]
  if mask is None:
    worker.check_written(equation, old)
    new = old + x
  else:
    index = jnp.where(mask, jnp.cumsum(mask) - 1, old.shape[0])
    update = old.at[index]
    if params["add"]:
      worker.check_written(equation, update.get(mode="fill", fill_value=0))
    new = (
        update.add(x, mode="drop")
        if params["add"]
        else update.set(x, mode="drop")
    )
  return [jax_versions.store(place, new)]


def load_gather(worker: Any, equation: Any, *operands: Any) -> Any:
  """Elements at lists of indices, one list for each axis."""
  if not isinstance(operands[0], memory.View):
    return NotImplemented
  ref, transforms, indices, mask = equation.params["tree"].unflatten(operands)
  source = worker.part(equation, ref, transforms)[...]
  _check_indices(worker, equation, indices, mask, source.shape)
  value = source[tuple(indices)]
  if mask is not None:
    value = jnp.where(mask, value, jnp.zeros_like(value))
  worker.check_written(equation, value)
  if mask is not None:
    value = jnp.where(mask, value, memory.unwritten(value.shape, value.dtype))
  return [value]


def store_scatter(worker: Any, equation: Any, *operands: Any) -> Any:
  """store_scatter and addupdate_scatter."""
  if not isinstance(operands[0], memory.View):
    return NotImplemented
  ref, transforms, indices, x, mask = equation.params["tree"].unflatten(
      operands
  )
  place = worker.part(equation, ref, transforms)
  old = place[...]
  _check_indices(worker, equation, indices, mask, old.shape)
  if mask is not None:
    first = jnp.where(mask, indices[0], old.shape[0])
    indices = (first, *indices[1:])
  update = old.at[tuple(indices)]
  add = equation.params["add"]
  if add:
    worker.check_written(equation, update.get(mode="fill", fill_value=0))
  new = update.add(x, mode="drop") if add else update.set(x, mode="drop")
  jax_versions.store(place, new)
  return []


def _check_indices(worker, equation, indices, mask, shape):
  for index, size in zip(indices, shape):
    outside = (index < 0) | (index >= size)
    if mask is not None:
      outside &= mask
    worker.note(
        equation,
        jnp.any(outside),
        "uses index {found} of memory whose size there is {limit}.",
        found=index[jnp.argmax(outside)],
        limit=size,
    )


def bitcast(unused_worker: Any, equation: Any, x: jax.Array) -> Any:
  """The same bits: along columns on SparseCores, along rows on TensorCores."""
  aval = equation.outvars[0].aval
  if aval.shape == x.shape:
    return [jax.lax.bitcast_convert_type(x, aval.dtype)]
  is_by_columns = x.shape[:-1] == aval.shape[:-1]
  if not is_by_columns:
    x = jnp.swapaxes(x, -1, -2)
  ratio = x.dtype.itemsize // aval.dtype.itemsize
  if ratio:  # into smaller numbers
    x = jax.lax.bitcast_convert_type(x, aval.dtype)
    x = x.reshape(*x.shape[:-2], -1)
  else:
    ratio = aval.dtype.itemsize // x.dtype.itemsize
    x = x.reshape(*x.shape[:-1], -1, ratio)
    x = jax.lax.bitcast_convert_type(x, aval.dtype)
  return [x if is_by_columns else jnp.swapaxes(x, -1, -2)]


def cumulative_sum(unused_worker, unused_equation, x, mask):
  """Sums of the elements so far for which `mask` is True."""
  return [jnp.cumsum(jnp.where(mask, x, 0)).astype(x.dtype)]


def _cumulative_extreme(combine):
  def extreme(unused_worker, unused_equation, x, mask):
    def step(left, right):
      (a, has_a), (b, has_b) = left, right
      both = jnp.where(has_a & has_b, combine(a, b), jnp.where(has_a, a, b))
      return both, has_a | has_b

    result, seen = jax.lax.associative_scan(step, (x, mask))
    return [jnp.where(seen, result, x)]  # what is before the first is itself

  return extreme


def scan_count(unused_worker, unused_equation, x, mask):
  """How often an element was there until now, and whether it is the last."""
  same = (x[:, None] == x[None, :]) & mask[None, :]
  number = jnp.arange(x.shape[0])
  until_now = same & (number[None, :] <= number[:, None])
  later = same & (number[None, :] > number[:, None])
  counts = until_now.sum(1).astype(jnp.int32)
  return [counts, mask & ~later.any(1)]


def sort(unused_worker, equation, keys, values, *maybe_mask):
  """Keys and values in the order of keys; what is masked out goes last."""
  (mask,) = maybe_mask or (jnp.ones(keys.shape, jnp.bool_),)
  order = jnp.argsort(
      keys, stable=True, descending=equation.params["descending"]
  )
  order = order[jnp.argsort(~mask[order], stable=True)]
  results = [keys[order], values[order]]
  return results + [mask[order]] if maybe_mask else results


def count_true(unused_worker, equation, x):
  """The number of Trues, in every element."""
  aval = equation.outvars[0].aval
  return [jnp.full(aval.shape, x.sum(), aval.dtype)]


def find_first_true(unused_worker, equation, x):
  """The number of the first True, or the size, in every element."""
  aval = equation.outvars[0].aval
  first = jnp.where(x.any(), jnp.argmax(x), x.size)
  return [jnp.full(aval.shape, first, aval.dtype)]


def pack(unused_worker, equation, a, b):
  """Two registers as one of numbers of half the size."""
  dtype = equation.outvars[0].aval.dtype
  a, b = a.astype(dtype), b.astype(dtype)
  if _is_interleaved(equation):
    return [jnp.stack([a, b], -1).reshape(-1)]
  return [jnp.stack([a, b]).reshape(equation.outvars[0].aval.shape)]


def unpack(unused_worker, equation, x):
  """The reverse of pack."""
  dtype = equation.outvars[0].aval.dtype
  if _is_interleaved(equation):
    a, b = x[0::2], x[1::2]
  else:
    a, b = x.reshape(2, -1)
  return [a.astype(dtype), b.astype(dtype)]


def _is_interleaved(equation):
  return str(equation.params["format"].value) == "interleaved"


def fetch_and_add(worker, equation, ref, value, *indices_and_subcore):
  """Adds to SMEM of another subcore of the SparseCore; the value before."""
  *indices, subcore = indices_and_subcore
  kernel = worker.kernel
  first = worker.index // kernel.workers_per_core * kernel.workers_per_core
  worker.note(
      equation,
      (subcore < 0) | (subcore >= kernel.workers_per_core),
      "adds to subcore {found} of {limit}.",
      found=subcore,
      limit=kernel.workers_per_core,
  )
  for index, size in zip(indices, ref.shape, strict=True):
    worker.note(
        equation,
        (index < 0) | (index >= size),
        "uses index {found} of memory whose size there is {limit}.",
        found=index,
        limit=size,
    )
  view = ref.of(first + subcore)
  array, old = view.at(()), view.at(())[...]
  at = tuple(indices)
  worker.check_written(equation, old[at])
  array[...] = old.at[at].add(value)
  return [old[at]]


RULES = {
    "all_reduce_ffs": find_first_true,
    "all_reduce_population_count": count_true,
    "bitcast": bitcast,
    "gather": load_gather,
    "load": load_expanded,
    "masked_cummax": _cumulative_extreme(jnp.maximum),
    "masked_cummin": _cumulative_extreme(jnp.minimum),
    "masked_cumsum": cumulative_sum,
    "masked_sort": sort,
    "pack": pack,
    "sc_fetch_and_add": fetch_and_add,
    "scan_count": scan_count,
    "scatter": store_scatter,
    "swap": store,
    "unique": scan_count,  # the name of scan_count in JAX 0.10.2
    "unpack": unpack,
}
