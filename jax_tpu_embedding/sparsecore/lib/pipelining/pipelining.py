# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Train steps that look the next batch up beside this batch's dense work.

On a TPU, SparseCores look up and update while the TensorCore does the rest,
but within a step there is little that they could do at the same time. So a
pipelined step trains with one batch and looks up the next:

    step = pipelining.pipelined(train_step, batch_argnums=2, mode="exact")
    flight = step.start(dense, tables, batches[0])
    for batch in batches[1:]:
      flight, (dense, loss) = step(flight, dense, tables, batch)
    flight, (dense, loss) = step.finish(flight, dense, tables)

`train_step(dense, tables, batch)` is what would be jitted without a pipeline.
Each call returns what train_step does for the batch before.

    off    | lookup n | dense n ....... | update n
    exact  | dense n .......| update n, lookup n+1       the same numbers as off
    stale  | dense n .......                             activations miss the
           | update n-1, lookup n+1                      latest update

A CPU runs one operation after the other, and gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import operator
from typing import Any
from typing import Literal

import jax
from jax_tpu_embedding.sparsecore.lib.pipelining import _arguments
from jax_tpu_embedding.sparsecore.lib.pipelining import _flight
from jax_tpu_embedding.sparsecore.lib.pipelining import _order

_MODES = ("exact", "stale", "off")

Flight = _flight.Flight
PendingUpdate = _flight.PendingUpdate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
  """A lookup of a train step."""

  stacks: tuple[str, ...]
  in_refs: bool  # whether its tables are jax.Refs; else they are values
  num_updates: int  # how often the step updates what it looked up


def pipelined(
    train_step: Callable[..., Any],
    batch_argnums: int | Sequence[int],
    mode: Literal["exact", "stale", "off"] = "exact",
    *,
    warmup_steps: int = 0,
    before_lookup: Callable[..., None] | None = None,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> PipelinedStep:
  """A jitted train step with lookups that are a batch ahead; see PipelinedStep.

  Args:
    train_step: a function of trees of arrays, and of jax.Refs, that has layers
      of lib/flax in it and differentiates them. Where it is jitted itself, the
      options of that jit do not count. It must read ids and their weights from
      the batch, and tables from other arguments as they are. Tables that are
      values, not jax.Refs, are updated in an argument that is returned whole,
      by itself or as an element of a tuple of results.
    batch_argnums: the arguments that are the batch: all that differs between
      batches, a number of the step or a random key among them, if the step
      needs those of the batch that it trains with. Other arguments are those of
      the time of the call.
    mode: "exact" makes the operations of tables in the order of train_step, and
      so the same numbers. In "stale", activations miss the update before, which
      takes longer to converge, and hides lookup and update beside all of the
      dense work. "off" is train_step by the calls of the others.
    warmup_steps: how many steps of "stale" are to be "exact" first.
    before_lookup: called with the arguments of train_step before their batch is
      looked up, and after the updates of those before; once for each batch, in
      the same program. It may write tables in jax.Refs, such as the rows that
      ids of this batch are the first to have.
    static_argnums: as in jax.jit; none of the batch.
    donate_argnums: as in jax.jit; none of the batch, and no jax.Ref.
    in_shardings: as in jax.jit, a tuple for all arguments that are not static.
    out_shardings: as in jax.jit, of what train_step returns.

  Raises:
    ValueError: if an argument is none of these.
  """
  if mode not in _MODES:
    raise ValueError(f"mode must be one of {_MODES}, got {mode!r}.")
  batch = _arguments.argnums("batch_argnums", batch_argnums)
  static = _arguments.argnums("static_argnums", static_argnums)
  donated = _arguments.argnums("donate_argnums", donate_argnums)
  if not batch:
    raise ValueError(
        "batch_argnums is empty. Name the arguments of train_step that are the"
        " batch."
    )
  for name, argnums in (
      ("static_argnums", static),
      ("donate_argnums", donated),
  ):
    if both := sorted(set(argnums) & set(batch)):
      raise ValueError(
          f"{name} has the arguments {both} of batch_argnums, which a pipeline"
          " keeps from one call to the next. Leave them out."
      )
  if operator.index(warmup_steps) < 0:
    raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}.")
  if warmup_steps and mode != "stale":
    raise ValueError(
        f"warmup_steps={warmup_steps} are exact steps before stale ones, but"
        f" mode is {mode!r}. Leave them out."
    )
  return PipelinedStep(
      _order.Programs(
          train_step=train_step,
          positions=_arguments.Positions(batch=batch, static=static),
          before_lookup=before_lookup,
      ),
      mode,
      warmup_steps,
      donated,
      in_shardings,
      out_shardings,
  )


class PipelinedStep:
  """Made by `pipelined`. Holds programs, and nothing of a run."""

  def __init__(
      self,
      programs: _order.Programs,
      mode: str,
      warmup_steps: int,
      donate_argnums: tuple[int, ...],
      in_shardings: Any,
      out_shardings: Any,
  ):
    self._programs = programs
    self._positions = programs.positions
    self._mode = mode
    self._warmup_steps = warmup_steps

    def jitted(function, num_flights, donated, out_shardings=None):
      options = {}
      if in_shardings is not None:
        options["in_shardings"] = (None,) * num_flights + tuple(in_shardings)
      if out_shardings is not None:
        options["out_shardings"] = (None, out_shardings)
      return jax.jit(
          function,
          static_argnums=[i + num_flights for i in self._positions.static],
          donate_argnums=donated,
          **options,
      )

    def steps_of(programs):
      # The flight is two arguments: what is donated, and the rest.
      donated = [0, *(i + 2 for i in donate_argnums)]
      return {
          mode: jitted(getattr(programs, mode), 2, donated, out_shardings)
          for mode in _MODES
      }

    self._start = jitted(programs.start, 0, ())
    self._flush = jitted(programs.flush, 1, [i + 1 for i in donate_argnums])
    self._steps = steps_of(programs)
    self._last_steps = self._steps
    if programs.before_lookup is not None:
      # `finish` looks the last batch up again, after its update. To make rows
      # ready for it once more would be too late, and write over the update.
      without = dataclasses.replace(programs, before_lookup=None)
      self._last_steps = steps_of(without) | {"off": self._steps["off"]}

  def sites(self, *args: Any) -> tuple[Site, ...]:
    """What train_step looks up, in order.

    Args:
      *args: of train_step, or their shapes.

    Raises:
      ValueError, NotImplementedError: see `start`.
    """
    self._positions.check(args)
    step = self._programs.cut(args)
    updates = [update.lookup for update in step.updates]
    return tuple(
        Site(
            stacks=lookup.site.stacks,
            in_refs=not lookup.site.returns_tables,
            num_updates=updates.count(i),
        )
        for i, lookup in enumerate(step.lookups)
    )

  def start(self, *args: Any) -> Flight:
    """Looks the first batch up.

    Args:
      *args: of train_step, with the first batch. Nothing is donated, or mutated
        but by before_lookup. NumPy arrays of the batch are copied, and may be
        filled with the next one.

    Raises:
      ValueError: if train_step looks nothing up, or not what can be known a
        step ahead.
      NotImplementedError: if it does in a loop or under vmap, or if there is
        a before_lookup and tables are values.
    """
    args = self._keep(args)
    flight = Flight(
        batch=self._positions.batch_of(args),
        inputs=(),
        activations=(),
        has_failed=(),
        pending=(),
        warmup_steps_left=self._warmup_steps,
        mode=self._mode,
        is_finished=False,
    )
    if self._mode == "off":
      return flight
    inputs, activations, has_failed = self._start(*args)
    return dataclasses.replace(
        flight,
        inputs=inputs,
        activations=activations,
        has_failed=has_failed,
    )

  def __call__(self, flight: Flight, *args: Any) -> tuple[Flight, Any]:
    """Trains with the batch in flight, and looks up that of `args`.

    Args:
      flight: what the call before returned, or `start`. Its activations and
        gradients are donated, so it can be used once.
      *args: of train_step, with the next batch; see `start`.

    Returns:
      The flight of that batch, and the results of train_step for the batch that
      was in flight.

    Raises:
      ValueError: if the flight is of another mode, or finished.
      RuntimeError: if the flight was used. Not in mode "off", whose flights
        have nothing but the batch, so that this trains with it again.
    """
    _flight.check(flight, self._mode)
    return self._run(self._steps, flight, self._keep(args))

  def _keep(self, args: Sequence[Any]) -> list[Any]:
    """`args`, checked, with a batch that the caller does not change."""
    self._positions.check(args)
    return self._positions.with_batch(
        self._positions.without_batch(args),
        _flight.keep(self._positions.batch_of(args)),
    )

  def _run(
      self, steps: dict[str, Any], flight: Flight, args: Sequence[Any]
  ) -> tuple[Flight, Any]:
    """A call with arguments whose batch the flight that it returns keeps."""
    _flight.check_unused((flight.activations, flight.pending))
    flight = _flight.with_room_of(self._positions.batch_of(args), flight)
    program, donated, rest = self._prepare(flight)
    after, results = steps[program](donated, rest, *args)
    return (
        dataclasses.replace(
            after,
            batch=self._positions.batch_of(args),
            warmup_steps_left=max(flight.warmup_steps_left - 1, 0),
        ),
        results,
    )

  def lower(self, flight: Flight, *args: Any) -> jax.stages.Lowered:
    """The lowered program of a call with these arguments, or their shapes."""
    program, donated, rest = self._prepare(flight)
    self._positions.check(args)
    return self._steps[program].lower(donated, rest, *args)

  def trace_parts(self, flight: Flight, *args: Any) -> dict[str, Any]:
    """The programs that a step of mode "stale" is made of, to be looked at.

    Args:
      flight: of `start`.
      *args: of train_step.

    Returns:
      `original`, train_step itself; `lookup`; `dense`; `update`; and
      `update_lookup`, the two together, each as a jaxpr.
    """
    return self._programs.parts_of_stale(flight, args)

  def finish(self, flight: Flight, *others: Any) -> tuple[Flight, Any]:
    """Trains with the last batch.

    There is no program for this, unless there is a before_lookup: the last
    batch is looked up once more, for nothing.

    Args:
      flight: see __call__.
      *others: the arguments of train_step that are not the batch.

    Returns:
      A flight that is good for `flush` only, and the results of train_step.
    """
    _flight.check(flight, self._mode)
    args = self._positions.with_batch(others, flight.batch)
    self._positions.check(args)
    after, results = self._run(self._last_steps, flight, args)
    return dataclasses.replace(after, is_finished=True), results

  def flush(self, flight: Flight, *others: Any) -> tuple[Any, ...]:
    """Makes the updates that are pending in mode "stale".

    What is in `flight` was looked up before them: to go on, `start` again with
    `flight.batch`. Do so before tables are saved without the flight, and after
    `finish`. Other modes have nothing pending, and get `others` back.

    Args:
      flight: see __call__.
      *others: the arguments of train_step that are not the batch. Those of
        donate_argnums are donated.

    Returns:
      `others`, updated. Tables in jax.Refs are written in place.
    """
    _flight.check(flight, self._mode, may_be_finished=True)
    if not flight.pending:
      return others
    _flight.check_unused(flight.pending)
    args = self._positions.with_batch(others, flight.batch)
    # A Ref cannot be a result.
    arrays = iter(self._flush(flight, *args))
    new = list(args)
    for position, arg in self._positions.traced(args).items():
      new[position] = jax.tree.map(
          lambda x: x if isinstance(x, jax.Ref) else next(arrays), arg
      )
    return tuple(self._positions.without_batch(new))

  def _prepare(self, flight: Flight) -> tuple[str, Any, Flight]:
    """Which program, and a flight as what is donated and the rest."""
    _flight.check(flight, self._mode)
    program = "exact" if flight.warmup_steps_left else self._mode
    return program, *_flight.split(flight)
