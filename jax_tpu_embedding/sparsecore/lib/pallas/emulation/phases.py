# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""All workers of a kernel, from one point where they wait to the next.

Workers run one after another. Where they wait for each other, all have to come
before any goes on, so the kernel is cut there: each piece, a phase, is run by
all workers before the next. What a worker has computed in a phase and needs in
a later one is kept for each of them, and loops around a barrier become loops
of phases.

Source: "pocl: A Performance-Portable OpenCL Implementation", section on work
group functions, which runs barriers of OpenCL on CPUs in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.pallas import jax_versions
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import copies
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import memory
from jax_tpu_embedding.sparsecore.lib.pallas.emulation import worker as workers

_BARRIER = "barrier"
_WAIT = "semaphore_wait"


def run_kernel(
    kernel: workers.Kernel,
    jaxpr: Any,
    consts: Sequence[Any],
    refs: Sequence[memory.Memory],
) -> None:
  """Runs a kernel on all of its workers.

  Args:
    kernel: whose mesh the workers are.
    jaxpr: of the kernel: of refs, and of scratch memory after them.
    consts: of the jaxpr.
    refs: that it reads and writes, in place.
  """
  scratch = [x.aval for x in jaxpr.invars[len(refs) :]]
  with kernel.allocated(scratch):
    if _waits(jaxpr):
      phases = _Phases(kernel, [*refs, *(c for c in consts if _is_block(c))])
      blocks = phases.allocate(scratch)
      phases.run(jaxpr, consts, [*refs, *blocks])
      phases.check_semaphores(jaxpr.eqns, blocks)
    else:
      _run_in_one_phase(kernel, jaxpr, consts, refs, scratch)
  kernel.log.report()


def _run_in_one_phase(kernel, jaxpr, consts, refs, scratch):
  """No worker waits for another, so each allocates its own memory."""
  shared = {
      number: kernel.blank(aval, one_for_all_phases=False)
      for number, aval in enumerate(scratch)
      if memory.space_of(aval) is memory.Space.SHARED
  }

  def run(index, carry):
    worker = workers.Worker(kernel, index)
    own = [
        shared[number]
        if number in shared
        else kernel.blank(aval, one_for_all_phases=False)
        for number, aval in enumerate(scratch)
    ]
    views = [block.seen_by(index) for block in own]
    seen = [c.seen_by(index) if _is_block(c) else c for c in consts]
    worker.run(jaxpr, seen, [*(x.seen_by(index) for x in refs), *views])
    if jaxpr.eqns:
      worker.check_semaphores(jaxpr.eqns[-1], views)
    return carry

  jax.lax.fori_loop(0, kernel.num_workers, run, 0)


def _waits(jaxpr: Any) -> bool:
  """Whether workers wait for each other somewhere in it."""
  return any(
      _is_wait(equation) or any(map(_waits, jax_versions.jaxprs_of(equation)))
      for equation in jaxpr.eqns
  )


def _is_wait(equation: Any) -> bool:
  name = equation.primitive.name
  if name in (_BARRIER, _WAIT):
    return True
  return name == "dma_wait" and copies.is_remote(equation)


def _is_block(x: Any) -> bool:
  return isinstance(x, memory.Memory)


@dataclasses.dataclass(frozen=True)
class _OfEach:
  """A value that each worker has computed: [num_workers, ...]."""

  values: jax.Array


class _Phases:
  """Runs equations for all workers.

  Values are arrays that are the same for all, _OfEach, or Memory.
  """

  def __init__(self, kernel: workers.Kernel, refs: Sequence[memory.Memory]):
    self._kernel = kernel
    self._blocks = list(refs)  # that are there, whose owners a barrier ends
    # bool[num_workers], or None for all: who runs a branch or a loop that
    # others do not.
    self._active: jax.Array | None = None

  def allocate(self, avals: Sequence[Any]) -> list[memory.Memory]:
    blocks = [self._kernel.blank(x, one_for_all_phases=True) for x in avals]
    self._blocks += blocks
    return blocks

  def check_semaphores(self, equations, blocks):
    """Notes what nobody waited for; `equations` say where."""

    def check(worker):
      worker.check_semaphores(
          equations[-1], [block.seen_by(worker.index) for block in blocks]
      )

    if self._kernel.log.is_enabled and equations:
      self._for_each_worker(check)

  def run(
      self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]
  ) -> list[Any]:
    """Runs a jaxpr in phases."""
    num_blocks = len(self._blocks)
    values = dict(zip(jaxpr.constvars, consts))
    values.update(zip(jaxpr.invars, args))
    needed_after = _needed_after(jaxpr)
    phase: list[Any] = []

    def finish(number):
      if phase:
        values.update(self._run_phase(phase, values, needed_after[number]))
        phase.clear()

    for number, equation in enumerate(jaxpr.eqns):
      if _is_wait(equation):
        finish(number)
        self._meet(equation)
        phase.append(equation)
      elif self._is_of_all(equation):
        finish(number)
        operands = [_value(values, x) for x in equation.invars]
        results = self._run_for_all(equation, operands)
        values.update(zip(equation.outvars, results))
      else:
        phase.append(equation)
    finish(len(jaxpr.eqns))
    # What was allocated inside, perhaps of a loop, is not there any more.
    del self._blocks[num_blocks:]
    return [_value(values, x) for x in jaxpr.outvars]

  def _is_of_all(self, equation):
    """Whether it allocates what later phases use, or waits inside."""
    return equation.primitive.name in (
        "run_scoped",
        "empty_ref",
        "get_barrier_semaphore",
    ) or any(map(_waits, jax_versions.jaxprs_of(equation)))

  def _for_each_worker(self, run: Callable[[workers.Worker], None]) -> None:
    """Runs it for every active worker, one after another."""

    def one(index, carry):
      worker = workers.Worker(self._kernel, index)
      if self._active is None:
        run(worker)
      else:
        jax.lax.cond(
            self._active[index], lambda: (run(worker), None)[1], lambda: None
        )
      return carry

    jax.lax.fori_loop(0, self._kernel.num_workers, one, 0)

  def _run_phase(self, phase, values, needed):
    """Runs equations; their results that are `needed` later, of each worker."""
    equations = list(phase)
    kept = [
        variable
        for equation in equations
        for variable in equation.outvars
        if variable in needed
    ]
    results = [
        jax.new_ref(
            jnp.zeros((self._kernel.num_workers, *x.aval.shape), x.aval.dtype)
        )
        for x in kept
    ]

    def run(worker):
      own = {}

      def value_of(variable):
        if jax_versions.is_literal(variable):
          return variable.val
        if variable in own:
          return own[variable]
        return _seen_by(values[variable], worker.index)

      for equation in equations:
        own.update(
            zip(
                equation.outvars,
                worker.run_equation(
                    equation, [value_of(x) for x in equation.invars]
                ),
            )
        )
      for variable, result in zip(kept, results):
        result[worker.index] = jnp.asarray(own[variable], variable.aval.dtype)

    self._for_each_worker(run)
    return {x: _OfEach(result[...]) for x, result in zip(kept, results)}

  def _meet(self, equation):
    """All active workers are here: what that means for who may write what."""
    if equation.primitive.name != _BARRIER:
      if self._kernel.log.is_enabled:
        copies.release_owners(self._blocks)
      return
    if not self._kernel.log.is_enabled:
      return
    per_core = self._kernel.workers_per_core
    if self._active is not None:
      active = self._active.reshape(-1, per_core)
      missing = (active.any(1, keepdims=True) & ~active).reshape(-1)
      self._kernel.log.note(
          jnp.any(missing),
          "does not reach a barrier that other subcores of its SparseCore wait"
          " at.",
          line=self._kernel.line_of(equation),
          worker=jnp.argmax(missing),
      )
    copies.share_owners(self._blocks, per_core)

  # --- Equations of all workers at once ---

  def _run_for_all(self, equation, operands):
    name = equation.primitive.name
    if name == "get_barrier_semaphore":
      return [self._kernel.barrier_semaphore]
    if name == "empty_ref":
      return self.allocate([equation.outvars[0].aval])
    rules = {
        "closed_call": self._call,
        "cond": self._cond,
        "jit": self._call,
        "pjit": self._call,
        "run_scoped": self._run_scoped,
        "scan": self._scan,
        "while": self._while,
    }
    if name not in rules:
      raise NotImplementedError(
          f"{self._kernel.described(equation)}: A barrier, or a wait for"
          f" another worker, inside {name!r} is not emulated. Put it into"
          " pl.loop, pl.when, or no loop."
      )
    with self._kernel.inside(equation):
      return rules[name](equation, operands)

  def _run_scoped(self, equation, consts):
    jaxpr, jaxpr_consts = jax_versions.scoped_jaxpr(equation, consts)
    avals = [x.aval for x in jaxpr.invars]
    with self._kernel.allocated(avals):
      blocks = self.allocate(avals)
      results = self.run(jaxpr, jaxpr_consts, blocks)
      self.check_semaphores([equation], blocks)
    return results

  def _call(self, equation, operands):
    jaxpr, consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
    return self.run(jaxpr, consts, operands)

  @contextlib.contextmanager
  def _only(self, active: jax.Array) -> Iterator[None]:
    """Only those workers run."""
    before = self._active
    self._active = active if before is None else before & active
    try:
      yield
    finally:
      self._active = before

  def _cond(self, equation, operands):
    index, *operands = operands
    branches = equation.params["branches"]
    index = self._of_each(index, jnp.int32)
    index = jnp.clip(index, 0, len(branches) - 1)
    opened = [jax_versions.open_jaxpr(branch) for branch in branches]
    # First those that wait for nothing, as others may wait for their signals.
    order = sorted(range(len(opened)), key=lambda n: _waits(opened[n][0]))
    results = None
    for number in order:
      jaxpr, consts = opened[number]
      is_taken = index == number
      with self._only(is_taken):
        new = self.run(jaxpr, consts, operands)
      new = [x if _is_block(x) else self._of_each(x) for x in new]
      results = new if results is None else self._choose(is_taken, new, results)
    return [x if _is_block(x) else _OfEach(x) for x in results]

  def _scan(self, equation, operands):
    consts, carry, elements = jax_versions.scan_operands(equation, operands)
    jaxpr, jaxpr_consts = jax_versions.open_jaxpr(equation.params["jaxpr"])
    if len(equation.outvars) != len(carry):
      raise NotImplementedError(
          f"{self._kernel.described(equation)}: A jax.lax.scan with results of"
          " each step, around a barrier, is not emulated. Use pl.loop."
      )
    length = equation.params["length"]

    def body(number, arrays):
      if equation.params["reverse"]:
        number = length - 1 - number
      current = workers.fill(carry, map(_OfEach, arrays))
      xs = [
          _OfEach(x.values[:, number]) if isinstance(x, _OfEach) else x[number]
          for x in elements
      ]
      results = self.run(jaxpr, jaxpr_consts, [*consts, *current, *xs])
      return self._carried(results, carry)

    arrays = jax.lax.fori_loop(0, length, body, self._carried(carry, carry))
    return workers.fill(carry, map(_OfEach, arrays))

  def _while(self, equation, operands):
    cond, body, init = workers.while_parts(equation, operands)

    def run(part, arrays):
      (jaxpr, jaxpr_consts), consts = part
      current = workers.fill(init, map(_OfEach, arrays))
      return self.run(jaxpr, jaxpr_consts, [*consts, *current])

    def goes_on(arrays, active):
      with self._only(active):
        return active & self._of_each(run(cond, arrays)[0])

    def step(state):
      arrays, active = state
      with self._only(active):
        new = self._carried(run(body, arrays), init)
      arrays = self._choose(active, new, arrays)
      return arrays, goes_on(arrays, active)

    arrays = self._carried(init, init)
    active = jnp.ones((self._kernel.num_workers,), jnp.bool_)
    arrays, _ = jax.lax.while_loop(
        lambda state: state[1].any(), step, (arrays, goes_on(arrays, active))
    )
    return workers.fill(init, map(_OfEach, arrays))

  def _carried(self, values, like):
    return [self._of_each(x) for x in workers.arrays_of(values, like)]

  def _of_each(self, x, dtype=None):
    """[num_workers, ...]: what each of them has."""
    if not isinstance(x, _OfEach):
      x = jnp.asarray(x)
      x = jnp.broadcast_to(x, (self._kernel.num_workers, *x.shape))
      return x if dtype is None else x.astype(dtype)
    return x.values if dtype is None else x.values.astype(dtype)

  def _choose(self, chosen, new, old):
    """For each worker, `new` where it is chosen."""

    def choose(a, b):
      if _is_block(a):
        return a
      return jnp.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return list(map(choose, new, old))


def _value(values, variable):
  if jax_versions.is_literal(variable):
    return variable.val
  return values[variable]


def _seen_by(x, worker):
  if _is_block(x):
    return x.seen_by(worker)
  return x.values[worker] if isinstance(x, _OfEach) else x


def _needed_after(jaxpr):
  """For each equation, and the end, the variables that are used from there on."""
  needed = {x for x in jaxpr.outvars if not jax_versions.is_literal(x)}
  result = [set(needed)]
  for equation in reversed(jaxpr.eqns):
    needed |= {x for x in equation.invars if not jax_versions.is_literal(x)}
    result.append(set(needed))
  return result[::-1]
