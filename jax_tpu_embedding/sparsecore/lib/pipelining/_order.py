# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The order of lookups, dense work and updates: the programs of a pipeline.

Each is traced by jax.jit. It takes the arguments of a call, which have the next
batch, and the flight of the call before, which has the batch to train with:

    exact  train with the batch in flight and update; look the next one up
    stale  make the updates of the call before; look the next one up; train
    off    train_step, for the batch in flight

Before a lookup comes `before_lookup`, for the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.pipelining import _arguments
from jax_tpu_embedding.sparsecore.lib.pipelining import _cut
from jax_tpu_embedding.sparsecore.lib.pipelining import _flight


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Programs:
  """Those of one train step.

  A step of any mode is a function of a flight, as `_flight.split` takes it
  apart, and of arguments of train_step. It returns the next flight, without its
  batch, and the results of train_step.
  """

  train_step: Callable[..., Any]
  positions: _arguments.Positions
  before_lookup: Callable[..., None] | None

  def start(self, *args: Any) -> Any:
    """Buffers, stacked activations and has_failed of the first batch."""
    step = self.cut(args)
    self._make_ready(step, args)
    return _look_up(step, self.positions.leaves(args))

  def off(
      self, donated: Any, rest: _flight.Flight, *args: Any
  ) -> tuple[_flight.Flight, Any]:
    """A step of mode "off"."""
    flight = _flight.join(donated, rest)
    args = self._in_flight(flight, args)
    if self.before_lookup is not None:
      self._make_ready(self.cut(args), args)
    return dataclasses.replace(flight, batch=()), self.train_step(*args)

  def exact(
      self, donated: Any, rest: _flight.Flight, *args: Any
  ) -> tuple[_flight.Flight, Any]:
    """A step of mode "exact"."""
    flight = _flight.join(donated, rest)
    args_in_flight = self._in_flight(flight, args)
    step = self.cut(args_in_flight)
    leaves = self.positions.leaves(args_in_flight)

    def update(of: _cut.Update):
      return step.lookups[of.lookup].site.update(
          flight.inputs[of.lookup],
          step.tables(of.lookup, leaves),
          of.gradients,
          of.has_failed,
          of.step,
      )

    results = step.rest(leaves, _looked_up(flight), update)
    following = self._cut_like(step, args_in_flight, args)
    self._make_ready(following, args)
    leaves = self.positions.leaves(args)
    if any(x.site.returns_tables for x in following.lookups):
      leaves = self._leaves_after(following, args, results)
    return _after(flight, _look_up(following, leaves), ()), results

  def stale(
      self, donated: Any, rest: _flight.Flight, *args: Any
  ) -> tuple[_flight.Flight, Any]:
    """A step of mode "stale"."""
    flight = _flight.join(donated, rest)
    args_in_flight = self._in_flight(flight, args)
    step = self.cut(args_in_flight)
    following = self._cut_like(step, args_in_flight, args)
    looked_up, updated = _update_and_look_up(
        following,
        flight,
        self.positions.leaves(args),
        lambda: self._make_ready(following, args),
    )
    leaves = _replace(self.positions.leaves(args_in_flight), updated)
    results, pending = _train(step, flight, leaves)
    return _after(flight, looked_up, pending), results

  def flush(self, flight: _flight.Flight, *args: Any) -> list[Any]:
    """Leaves of `args` after the pending updates, without jax.Refs."""
    leaves = self.positions.leaves(args)
    leaves = _replace(leaves, _update(self.cut(args), flight, leaves))
    return [x for x in leaves if not isinstance(x, jax.Ref)]

  def parts_of_stale(
      self, flight: _flight.Flight, args: Sequence[Any]
  ) -> dict[str, Any]:
    """The jaxprs of what `stale` does; see PipelinedStep.trace_parts."""
    step, leaves = self.cut(args), self.positions.leaves(args)

    def traced(function, *operands):
      return jax.make_jaxpr(function, return_shape=True)(*operands)

    dense, (_, pending) = traced(
        lambda flight, leaves: _train(step, flight, leaves), flight, leaves
    )
    flight = dataclasses.replace(flight, pending=pending)
    programs = {
        "original": lambda unused_flight, leaves: self.train_step(
            *self.positions.with_leaves(args, leaves)
        ),
        "lookup": lambda unused_flight, leaves: _look_up(step, leaves),
        "update": lambda flight, leaves: _update(step, flight, leaves),
        "update_lookup": lambda flight, leaves: _update_and_look_up(
            step, flight, leaves
        ),
    }
    return {"dense": dense} | {
        name: traced(program, flight, leaves)[0]
        for name, program in programs.items()
    }

  def cut(self, args: Sequence[Any]) -> _cut.Step:
    """The train step for arguments of these shapes, to be run in parts."""
    return _cut.cut(
        lambda *traced: self.train_step(
            *self.positions.with_traced(args, traced)
        ),
        self.positions.traced(args),
        self.positions.batch,
    )

  def _cut_like(
      self, step: _cut.Step, args: Sequence[Any], other: Sequence[Any]
  ) -> _cut.Step:
    """`cut(other)`; `step` is that of `args`, mostly of the same shapes."""
    traced = self.positions.traced
    if _types(traced(args)) == _types(traced(other)):
      return step
    following = self.cut(other)
    if len(following.lookups) != len(step.lookups):
      raise ValueError(
          f"train_step has {len(step.lookups)} lookups for one batch and"
          f" {len(following.lookups)} for the next. Finish the first before"
          " the other is started."
      )
    return following

  def _in_flight(
      self, flight: _flight.Flight, args: Sequence[Any]
  ) -> list[Any]:
    """`args` with the batch in flight."""
    others = self.positions.without_batch(args)
    return self.positions.with_batch(others, flight.batch)

  def _make_ready(self, step: _cut.Step, args: Sequence[Any]) -> None:
    """Calls before_lookup for the batch of `args`, which `step` looks up."""
    if self.before_lookup is None:
      return
    for lookup in step.lookups:
      if lookup.site.returns_tables:
        raise NotImplementedError(
            f"before_lookup is for tables in jax.Refs, which it can write, and"
            f" those of {lookup.site} are values. Use a layer with"
            " tables='ref', or leave before_lookup out."
        )
    self.before_lookup(*args)

  def _leaves_after(
      self, step: _cut.Step, args: Sequence[Any], results: Any
  ) -> list[Any]:
    """Leaves of `args`, those of tables as the step returns them."""
    candidates = [results]
    if type(results) in (tuple, list):
      candidates += results
    leaves = []
    for position, arg in self.positions.traced(args).items():
      of_arg = jax.tree.leaves(arg)
      in_arg = range(len(leaves), len(leaves) + len(of_arg))
      if any(
          x.leaf in in_arg
          for lookup in step.lookups
          if lookup.site.returns_tables
          for x in jax.tree.leaves(lookup.tables)
      ):
        same = [x for x in candidates if _types(x) == _types(arg)]
        if len(same) != 1:
          raise ValueError(
              f"Argument {position} has tables, and {len(same)} results of"
              " train_step have its structure and types. For mode='exact',"
              " train_step returns it with the new tables, by itself or as one"
              " element of a tuple."
          )
        of_arg = jax.tree.leaves(same[0])
      leaves += of_arg
    return leaves


def _types(tree: Any) -> Any:
  """Equal for trees for which a step is traced alike."""
  leaves, structure = jax.tree.flatten(tree)
  types = map(jax.typeof, leaves)
  return structure, [(x.shape, x.dtype) for x in types]


def _looked_up(flight: _flight.Flight) -> list[Any]:
  return list(zip(flight.activations, flight.has_failed, strict=True))


def _look_up(step: _cut.Step, leaves: Sequence[Any]) -> Any:
  """Buffers, stacked activations and has_failed of every lookup."""
  inputs = step.inputs(leaves)
  activations, has_failed = [], []
  with jax.named_scope("pipelined/lookup"):
    for i, lookup in enumerate(step.lookups):
      results = lookup.site.lookup(inputs[i], step.tables(i, leaves))
      activations.append(results[0])
      has_failed.append(results[1])
  return tuple(inputs), tuple(activations), tuple(has_failed)


def _update(
    step: _cut.Step, flight: _flight.Flight, leaves: Sequence[Any]
) -> dict[int, Any]:
  """Makes the pending updates; leaf -> new value of tables that are values."""
  new = {}
  for pending in flight.pending:
    lookup = step.lookups[pending.lookup]
    with jax.named_scope("pipelined/update"):
      tables = lookup.site.update(
          pending.inputs,
          step.tables(pending.lookup, _replace(leaves, new)),
          pending.gradients,
          pending.has_failed,
          pending.step,
      )
    if lookup.site.returns_tables:
      places = [x.leaf for x in jax.tree.leaves(lookup.tables)]
      new |= zip(places, jax.tree.leaves(tables), strict=True)
  return new


def _update_and_look_up(
    step: _cut.Step,
    flight: _flight.Flight,
    leaves: Sequence[Any],
    between: Callable[[], None] = lambda: None,
) -> tuple[Any, dict[int, Any]]:
  """What `_look_up` returns after the pending updates, and these."""
  updated = _update(step, flight, leaves)
  between()
  return _look_up(step, _replace(leaves, updated)), updated


def _train(
    step: _cut.Step, flight: _flight.Flight, leaves: Sequence[Any]
) -> tuple[Any, tuple[_flight.PendingUpdate, ...]]:
  """Results of the step, and the updates that it leaves to be made."""
  pending = []

  def update(of: _cut.Update):
    pending.append(
        _flight.PendingUpdate(
            inputs=flight.inputs[of.lookup],
            gradients=of.gradients,
            has_failed=of.has_failed,
            step=of.step,
            lookup=of.lookup,
        )
    )
    # The step returns tables as they are now.
    if step.lookups[of.lookup].site.returns_tables:
      return step.tables(of.lookup, leaves)
    return None

  results = step.rest(leaves, _looked_up(flight), update)
  return results, tuple(pending)


def _replace(leaves: Sequence[Any], new: dict[int, Any]) -> list[Any]:
  return [new.get(i, x) for i, x in enumerate(leaves)]


def _after(
    flight: _flight.Flight,
    looked_up: Any,
    pending: tuple[_flight.PendingUpdate, ...],
) -> _flight.Flight:
  inputs, activations, has_failed = looked_up
  return dataclasses.replace(
      flight,
      batch=(),
      inputs=inputs,
      activations=activations,
      has_failed=has_failed,
      pending=pending,
  )
