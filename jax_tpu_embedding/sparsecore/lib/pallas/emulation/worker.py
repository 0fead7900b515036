# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One worker of a kernel: what it is, and how it runs the kernel's equations.

The equations are those that a TPU would run. Most are of plain JAX and are run
as they are; those on refs, and those that Pallas has of its own, have a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import chips
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import copies
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import memory
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import mistakes
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import registers


class Kernel:
  """What all workers of a kernel have in common."""

  def __init__(self, name: str, mesh: Any, chip: chips.Chip, check: bool):
    """Of a kernel that is being traced.

    Args:
      name: of the kernel.
      mesh: of the cores of a device.
      chip: that the program is traced for.
      check: whether mistakes are looked for.
    """
    self.name = name
    self.axes = dict(mesh.shape)
    self.num_workers = math.prod(self.axes.values())
    # The first axis is that of cores, the second that of their subcores.
    self.workers_per_core = self.num_workers // next(iter(self.axes.values()))
    self.log = mistakes.Log(name, self._worker_names(), check)
    self.barrier_semaphore = memory.Memory(
        array=jax.new_ref(jnp.zeros((self.num_workers,), jnp.int32)),
        aval=jax.ShapeDtypeStruct((), jnp.int32),
        space=memory.Space.SEMAPHORE,
        workers_per_copy=1,
    )
    self._is_sparse_core = "sc" in str(mesh.core_type).lower()
    self._chip = chip
    self._facts = chip.facts
    self._words = {space: 0 for space in memory.Space}
    self._around: list[Any] = []

  def coordinates(self, worker: jax.typing.ArrayLike) -> dict[str, Any]:
    """Index of a worker along each axis."""
    result = {}
    for axis, size in reversed(self.axes.items()):
      result[axis] = worker % size
      worker = worker // size
    return result

  def worker_at(
      self, equation: Any, device: Any, worker: jax.typing.ArrayLike
  ) -> tuple[Any, dict[str, Any]]:
    """The worker that a device_id names, and the axes that are not of cores."""
    if not isinstance(device, dict):
      raise NotImplementedError(
          f"Kernel {self.name!r}: device_id {device!r} is not emulated. Use a"
          f" dictionary with axes of {list(self.axes)}."
      )
    device = dict(device)
    index = jnp.int32(0)
    for axis, mine in reversed(self.coordinates(worker).items()):
      place, size = device.pop(axis, mine), self.axes[axis]
      self.log.note(
          (place < 0) | (place >= size),
          f"names {axis} {{found}} of {{limit}} in device_id.",
          line=self.line_of(equation),
          worker=worker,
          found=place,
          limit=size,
      )
      index = index * size + place
    return index, device

  def described(self, equation: Any) -> str:
    return f"Kernel {self.name!r}, {self.line_of(equation)}"

  def line_of(self, equation: Any) -> str:
    """The line that made an equation, or else one around it."""
    lines = [jax_versions.source_line(x) for x in (*self._around, equation)]
    return next(filter(None, reversed(lines)), "at an unknown line")

  @contextlib.contextmanager
  def inside(self, equation: Any) -> Iterator[None]:
    """While what an equation contains is run."""
    self._around.append(equation)
    try:
      yield
    finally:
      self._around.pop()

  def blank(self, aval: Any, *, one_for_all_phases: bool) -> memory.Memory:
    """New scratch memory.

    Args:
      aval: of the ref.
      one_for_all_phases: that of all workers; else that of the one that runs.
    """
    copies_of_it = None
    if memory.space_of(aval) is memory.Space.SHARED:
      copies_of_it = self.num_workers // self.workers_per_core
    elif one_for_all_phases:
      copies_of_it = self.num_workers
    return memory.allocate(
        aval, copies_of_it, self.num_workers, self.log.is_enabled
    )

  @contextlib.contextmanager
  def allocated(self, avals: Sequence[Any]) -> Iterator[None]:
    """While memory is allocated, whose sizes must fit those of the chip."""
    added = {space: 0 for space in memory.Space}
    for aval in avals:
      space = memory.space_of(aval)
      size = math.prod(aval.shape)
      if space is not memory.Space.SEMAPHORE:
        # Words: rows of 8 bit numbers are padded to them.
        size = -(-size * aval.dtype.itemsize // 4)
      added[space] += size
    for space, size in added.items():
      self._words[space] += size
    self._check_sizes()
    yield
    for space, size in added.items():
      self._words[space] -= size

  def _check_sizes(self) -> None:
    if not self.log.is_enabled:
      return
    words = self._words
    vmem, shared = words[memory.Space.VMEM], words[memory.Space.SHARED]
    if not self._is_sparse_core:
      self._check_size("VMEM", vmem, self._facts.vmem_capacity_bytes // 4)
    else:
      info = self._facts.sparse_core
      # The last word is the system's.
      one = info.vmem_capacity_bytes // 4 - 1
      self._check_size("VMEM of a subcore", vmem, one)
      pool = info.num_subcores * info.vmem_capacity_bytes // 4 - 1
      if shared:
        self._check_size(
            "VMEM_SHARED, and the VMEM of all subcores,",
            shared + info.num_subcores * vmem,
            pool,
        )
      self._check_size(
          "semaphores of a subcore",
          words[memory.Space.SEMAPHORE],
          self._chip.max_semaphores_of_subcore,
          "",
      )
    self._check_size(
        "SMEM", words[memory.Space.SMEM], self._facts.smem_capacity_bytes // 4
    )

  def _check_size(self, what, found, limit, unit=" words"):
    if found > limit:
      raise mistakes.KernelMistake(
          f"Kernel {self.name!r}, every worker: {found}{unit} of {what}, of"
          f" which {self._chip.name} has {limit}. Use smaller or fewer"
          " scratch_shapes."
      )

  def _worker_names(self) -> list[str]:
    names = []
    for worker in range(self.num_workers):
      places = reversed(self.coordinates(worker).items())
      names.append(", ".join(f"{axis} {i}" for axis, i in places))
    return names


class Worker:
  """Runs equations as one worker of a kernel."""

  def __init__(self, kernel: Kernel, index: jax.typing.ArrayLike):
    self.kernel = kernel
    self.index = index  # int32[], may be traced

  def run(
      self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]
  ) -> list[Any]:
    """Runs a jaxpr. Values are arrays, refs are Views."""
    return jax_versions.run_jaxpr(jaxpr, consts, args, self.run_equation)

  def run_equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Runs one equation: its list of results."""
    name = equation.primitive.name
    if name in _REFUSED:
      raise NotImplementedError(
          f"{self.kernel.described(equation)}: {name!r} is not emulated."
          f" {_REFUSED[name]}"
      )
    if name in _RULES:
      with self.kernel.inside(equation):
        results = _RULES[name](self, equation, *operands)
      if results is not NotImplemented:
        return list(results)
    if any(isinstance(x, memory.View) for x in operands):
      raise NotImplementedError(
          f"{self.kernel.described(equation)}: {name!r} on a ref is not"
          " emulated. Read it first, or run the kernel on a TPU."
      )
    return jax_versions.evaluate(equation, operands)

  def note(self, equation: Any, is_wrong: Any, text: str, **numbers) -> None:
    """Remembers a mistake of this worker; see mistakes.Log."""
    self.kernel.log.note(
        is_wrong,
        text,
        line=self.kernel.line_of(equation),
        worker=self.index,
        **numbers,
    )

  def part(
      self, equation: Any, view: memory.View, transforms: Sequence[Any] = ()
  ) -> Any:
    """(A part of) a ref, which registers are loaded from or stored to."""
    if view.space in (memory.Space.HBM, memory.Space.SHARED):
      raise NotImplementedError(
          f"{self.kernel.described(equation)}: {equation.primitive.name!r} on a"
          f" ref in {view.space.value}, which cores reach by copies only. Copy"
          " it to VMEM or from there, by pltpu.sync_copy."
      )
    self.check_bounds(equation, transforms)
    return view.at(transforms)

  def read(
      self, equation: Any, view: memory.View, transforms: Sequence[Any] = ()
  ) -> jax.Array:
    """What is in (a part of) a ref."""
    value = self.part(equation, view, transforms)[...]
    self.check_written(equation, value)
    return value

  def check_written(self, equation: Any, value: jax.Array) -> None:
    """Notes a value that nobody wrote."""
    if not self.kernel.log.is_enabled:
      return
    where = memory.is_unwritten(value)
    if where is not None:
      self.note(
          equation,
          jnp.any(where),
          "reads memory that nobody has written ({found} of {limit} numbers).",
          found=jnp.sum(where),
          limit=value.size,
      )

  def check_bounds(self, equation: Any, transforms: Sequence[Any]) -> None:
    """Notes indices that are known at run time and out of range."""
    for transform in transforms:
      if not isinstance(transform, jax_versions.Selection):
        continue
      for index, limit in zip(transform.indices, transform.shape):
        start, size = index, 1
        if isinstance(index, jax_versions.Slice):
          start, size = index.start, index.size
          if isinstance(start, int) or not isinstance(size, int):
            continue  # JAX has looked at the former.
          size = max(0, (size - 1) * index.stride + 1)
        is_in_range = isinstance(start, int) and 0 <= start < limit
        if is_in_range or copies.is_list(start):
          continue
        self.note(
            equation,
            (start < 0) | (start + size > limit),
            f"uses rows {{found}} to {{found}} + {size} of memory that has"
            " {limit} there."
            if size > 1
            else "uses row {found} of memory that has {limit} there.",
            found=start,
            limit=limit,
        )

  def check_semaphores(
      self, equation: Any, views: Sequence[memory.View]
  ) -> None:
    """Notes copies that nobody waited for, where semaphores go out of scope."""
    for view in views:
      if view.space is memory.Space.SEMAPHORE:
        value = view.at()[...]
        self.note(
            equation,
            jnp.any(value != 0),
            "ends with a semaphore that is {found}: bytes of copies, or"
            " signals, that nobody waited for.",
            found=jnp.max(value),
        )


# --- Rules: functions of worker, equation and operands; a list of results ---


def _axis_index(worker, equation):
  axis = equation.params["axis_name"]
  if axis not in worker.kernel.axes:
    return NotImplemented  # of devices
  return [jnp.int32(worker.kernel.coordinates(worker.index)[axis])]


def _get(worker, equation, ref, *indices):
  transforms = jax.tree.unflatten(equation.params["tree"], indices)
  return [worker.read(equation, ref, transforms)]


def _swap(worker, equation, ref, value, *indices):
  if "tree" not in equation.params or "has_mask" in equation.params:
    return registers.store(worker, equation, ref, value, *indices)
  transforms = jax.tree.unflatten(equation.params["tree"], indices)
  return [jax_versions.store(worker.part(equation, ref, transforms), value)]


def _add(worker, equation, ref, value, *indices):
  transforms = jax.tree.unflatten(equation.params["tree"], indices)
  old = worker.read(equation, ref, transforms)
  jax_versions.store(ref.at(transforms), old + value)
  return []


def _masked_load(worker, equation, *operands):
  ref, transforms, mask, other = jax.tree.unflatten(
      equation.params["args_tree"], operands
  )
  if mask is None:
    return [worker.read(equation, ref, transforms)]
  value = worker.part(equation, ref, transforms)[...]
  worker.check_written(equation, jnp.where(mask, value, jnp.zeros_like(value)))
  return [value if other is None else jnp.where(mask, value, other)]


def _masked_store(worker, equation, *operands):
  ref, transforms, value, mask = jax.tree.unflatten(
      equation.params["args_tree"], operands
  )
  place = worker.part(equation, ref, transforms)
  if mask is not None:
    value = jnp.where(mask, value, place[...])
  return [jax_versions.store(place, value)]


def _call(worker, equation, *operands):
  jaxpr, consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
  return worker.run(jaxpr, consts, operands)


def _cond(worker, equation, index, *operands):
  arrays = [x for x in operands if not isinstance(x, memory.View)]

  def branch(closed, *values):
    jaxpr, consts = jax_versions.open_jaxpr(closed)
    return worker.run(jaxpr, consts, fill(operands, values))

  return jax.lax.switch(
      index,
      [functools.partial(branch, b) for b in equation.params["branches"]],
      *arrays,
  )


def _scan(worker, equation, *operands):
  consts, carry, elements = jax_versions.scan_operands(equation, operands)
  jaxpr, jaxpr_consts = jax_versions.open_jaxpr(equation.params["jaxpr"])

  def body(values, xs):
    results = worker.run(
        jaxpr, jaxpr_consts, [*consts, *fill(carry, values), *xs]
    )
    values, ys = jax_versions.scan_results(equation, results, len(carry))
    return arrays_of(values, carry), ys

  values, ys = jax.lax.scan(
      body,
      arrays_of(carry, carry),
      list(elements),
      length=equation.params["length"],
      reverse=equation.params["reverse"],
  )
  return [*fill(carry, values), *ys]


def _while(worker, equation, *operands):
  cond, body, init = while_parts(equation, operands)

  def run(part, values):
    (jaxpr, jaxpr_consts), consts = part
    return worker.run(jaxpr, jaxpr_consts, [*consts, *fill(init, values)])

  values = jax.lax.while_loop(
      lambda values: run(cond, values)[0],
      lambda values: arrays_of(run(body, values), init),
      arrays_of(init, init),
  )
  return fill(init, values)


def _parallel_loop(worker, equation, *operands):
  lower, upper, step, consts, carry = equation.params["tree"].unflatten(
      operands
  )
  jaxpr, _ = jax_versions.open_jaxpr(equation.params["jaxpr"])
  count = -(-(upper - lower) // step)

  # From JAX 0.12 on, constants are operands like others.
  split = len(jaxpr.constvars)

  def body(number, values):
    operands = [*consts, lower + number * step, *values]
    return worker.run(jaxpr, operands[:split], operands[split:])

  return jax.lax.fori_loop(0, count, body, list(carry))


def _run_scoped(worker, equation, *consts):
  jaxpr, jaxpr_consts = jax_versions.scoped_jaxpr(equation, consts)
  avals = [x.aval for x in jaxpr.invars]
  with worker.kernel.allocated(avals):
    views = [_new_view(worker, aval) for aval in avals]
    results = worker.run(jaxpr, jaxpr_consts, views)
    worker.check_semaphores(equation, views)
  return results


def _empty_ref(worker, equation, *unused):
  return [_new_view(worker, equation.outvars[0].aval)]


def _new_view(worker, aval):
  block = worker.kernel.blank(aval, one_for_all_phases=False)
  return block.seen_by(worker.index)


def _barrier_semaphore(worker, unused_equation, *unused):
  return [worker.kernel.barrier_semaphore.seen_by(worker.index)]


def _nothing(unused_worker, unused_equation, *unused):
  return []


def _itself(unused_worker, equation, x, *unused):
  return [x] if equation.outvars else []


def _reciprocal(unused_worker, unused_equation, x):
  return [1 / x]


# --- Values of loops: arrays are carried, refs stay where they are ---


def arrays_of(values: Sequence[Any], like: Sequence[Any]) -> list[Any]:
  """Those of `values` whose counterpart in `like` is no ref."""
  return [v for v, x in zip(values, like) if not is_memory(x)]


def fill(like: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
  """`like` with its arrays replaced by `arrays`, in order."""
  arrays = iter(arrays)
  return [x if is_memory(x) else next(arrays) for x in like]


def is_memory(x: Any) -> bool:
  return isinstance(x, (memory.View, memory.Memory))


def while_parts(equation: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
  """Condition and body, each with its constants, and what is carried."""
  params = equation.params
  first = params["cond_nconsts"]
  second = first + params["body_nconsts"]
  return (
      (jax_versions.open_jaxpr(params["cond_jaxpr"]), operands[:first]),
      (jax_versions.open_jaxpr(params["body_jaxpr"]), operands[first:second]),
      list(operands[second:]),
  )


Rule = Callable[..., Any]

_RULES: dict[str, Rule] = {
    **copies.RULES,
    **registers.RULES,
    "add_dependency": _itself,
    "addupdate": _add,
    "axis_index": _axis_index,
    "barrier": _nothing,  # phases.py
    "closed_call": _call,
    "cond": _cond,
    "core_call": _call,
    "debug_print": _nothing,
    "delay": _nothing,
    "empty_ref": _empty_ref,
    "get": _get,
    "get_barrier_semaphore": _barrier_semaphore,
    "jit": _call,
    "masked_load": _masked_load,
    "masked_swap": _masked_store,
    "multiple_of": _itself,
    "parallel_loop": _parallel_loop,
    "pjit": _call,
    "reciprocal": _reciprocal,
    "run_scoped": _run_scoped,
    "scan": _scan,
    "swap": _swap,
    "trace_value": _nothing,
    "while": _while,
}

_PRNG = "Make random bits outside and pass them as an operand."
_MXU = "Use jnp.dot."
_REFUSED = {
    "prng_random_bits": _PRNG,
    "prng_seed": _PRNG,
    "prng_split": _PRNG,
    "prng_join": _PRNG,
    "matmul_acc_lhs": _MXU,
    "matmul_lhs_fifo": _MXU,
    "matmul_pop": _MXU,
    "matmul_pop_fifo": _MXU,
    "matmul_push_rhs": _MXU,
    "program_id": "Use jax.lax.axis_index.",
    "num_programs": "Use jax.lax.axis_size.",
    "get_global": "Pass the memory by scratch_shapes.",
}
