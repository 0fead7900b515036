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
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import operator
from typing import Any
from typing import Literal

import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.pipelining import _cut

_MODES = ("exact", "stale", "off")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PendingUpdate:
  """An update of a batch that has been trained with. A pytree."""

  inputs: Any  # the buffers of the batch
  gradients: Any  # stack name -> f32[B, D]
  has_failed: jax.Array  # bool[G]
  step: Any  # what the layer was told
  lookup: int = dataclasses.field(metadata=dict(static=True))  # which


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flight:
  """What is between two calls of a pipelined step. A pytree, to be saved.

  A call takes the memory of activations and gradients for those of the next.
  """

  batch: tuple[Any, ...]  # what comes next, as it was passed
  # Of every lookup of the step: buffers; stacked activations, stack name ->
  # f32[B, D]; and where something is wrong with them, bool[G].
  inputs: tuple[Any, ...]
  activations: tuple[Any, ...]
  has_failed: tuple[Any, ...]
  pending: tuple[PendingUpdate, ...]  # mode "stale", in order
  warmup_steps_left: int = dataclasses.field(metadata=dict(static=True))
  mode: str = dataclasses.field(metadata=dict(static=True))
  is_finished: bool = dataclasses.field(metadata=dict(static=True))


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
  batch = _argnums("batch_argnums", batch_argnums)
  static = _argnums("static_argnums", static_argnums)
  donated = _argnums("donate_argnums", donate_argnums)
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
      train_step,
      batch,
      mode,
      warmup_steps,
      before_lookup,
      static,
      donated,
      in_shardings,
      out_shardings,
  )


def _argnums(name: str, argnums: int | Iterable[int]) -> tuple[int, ...]:
  if not isinstance(argnums, Iterable):
    argnums = (argnums,)
  argnums = tuple(map(operator.index, argnums))
  if any(i < 0 for i in argnums) or len(set(argnums)) < len(argnums):
    raise ValueError(
        f"{name} are positions of arguments, from 0, each once; got {argnums}."
    )
  return argnums


class PipelinedStep:
  """Made by `pipelined`. Holds programs, and nothing of a run."""

  def __init__(
      self,
      train_step: Callable[..., Any],
      batch_argnums: tuple[int, ...],
      mode: str,
      warmup_steps: int,
      before_lookup: Callable[..., None] | None,
      static_argnums: tuple[int, ...],
      donate_argnums: tuple[int, ...],
      in_shardings: Any,
      out_shardings: Any,
  ):
    self._train_step = train_step
    self._batch_argnums = batch_argnums
    self._mode = mode
    self._warmup_steps = warmup_steps
    self._before_lookup = before_lookup
    self._static_argnums = static_argnums

    def jitted(function, num_flights, donated, out_shardings=None):
      options = {}
      if in_shardings is not None:
        options["in_shardings"] = (None,) * num_flights + tuple(in_shardings)
      if out_shardings is not None:
        options["out_shardings"] = (None, out_shardings)
      return jax.jit(
          function,
          static_argnums=[i + num_flights for i in static_argnums],
          donate_argnums=donated,
          **options,
      )

    # The flight is two arguments: what is donated, and the rest.
    of_step = [0, *(i + 2 for i in donate_argnums)]
    self._start = jitted(self._start_program, 0, ())
    self._flush = jitted(
        self._flush_program, 1, [i + 1 for i in donate_argnums]
    )
    self._steps = {
        name: jitted(program, 2, of_step, out_shardings)
        for name, program in (
            ("exact", self._exact_program),
            ("stale", self._stale_program),
            ("off", self._off_program),
        )
    }
    self._last_steps = self._steps
    if before_lookup is not None:
      # Not once more for the last batch, whose update it would come after.
      without = PipelinedStep(
          train_step,
          batch_argnums,
          mode,
          warmup_steps,
          None,
          static_argnums,
          donate_argnums,
          in_shardings,
          out_shardings,
      )
      self._last_steps = without._steps | {"off": self._steps["off"]}

  def sites(self, *args: Any) -> tuple[Site, ...]:
    """What train_step looks up, in order.

    Args:
      *args: of train_step, or their shapes.

    Raises:
      ValueError, NotImplementedError: see `start`.
    """
    self._check_arguments(args)
    step = self._cut(args)
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
        but by before_lookup.

    Raises:
      ValueError: if train_step looks nothing up, or not what can be known a
        step ahead.
      NotImplementedError: if it does in a loop or under vmap, or if there is
        a before_lookup and tables are values.
    """
    self._check_arguments(args)
    flight = Flight(
        batch=self._batch_of(args),
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
      *args: of train_step, with the next batch.

    Returns:
      The flight of that batch, and the results of train_step for the batch that
      was in flight.

    Raises:
      ValueError: if the flight is of another mode, or finished.
    """
    return self._run(self._steps, flight, args)

  def _run(
      self, steps: dict[str, Any], flight: Flight, args: Sequence[Any]
  ) -> tuple[Flight, Any]:
    self._check_flight(flight)
    self._check_arguments(args)
    flight = _with_room_of(self._batch_of(args), flight)
    program, donated, rest = self._prepare(flight)
    after, results = steps[program](donated, rest, *args)
    return (
        dataclasses.replace(
            after,
            batch=self._batch_of(args),
            warmup_steps_left=max(flight.warmup_steps_left - 1, 0),
        ),
        results,
    )

  def lower(self, flight: Flight, *args: Any) -> jax.stages.Lowered:
    """The lowered program of a call with these arguments, or their shapes."""
    program, donated, rest = self._prepare(flight)
    self._check_arguments(args)
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
    step, leaves = self._cut(args), self._leaves(args)

    def traced(function, *operands):
      return jax.make_jaxpr(function, return_shape=True)(*operands)

    dense, (_, pending) = traced(
        lambda flight, leaves: _train(step, flight, leaves), flight, leaves
    )
    flight = dataclasses.replace(flight, pending=pending)
    programs = {
        "original": lambda unused_flight, leaves: self._train_step(
            *self._with_leaves(args, leaves)
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
    self._check_flight(flight)
    args = self._with_batch(others, flight.batch)
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
    self._check_flight(flight, may_be_finished=True)
    if not flight.pending:
      return others
    args = self._with_batch(others, flight.batch)
    # A Ref cannot be a result.
    arrays = iter(self._flush(flight, *args))
    new = list(args)
    for position, arg in self._traced(args).items():
      new[position] = jax.tree.map(
          lambda x: x if isinstance(x, jax.Ref) else next(arrays), arg
      )
    return tuple(self._without_batch(new))

  # What follows is traced.

  def _start_program(self, *args):
    step = self._cut(args)
    self._make_ready(step, args)
    return _look_up(step, self._leaves(args))

  def _off_program(self, donated, rest, *args):
    flight = _join(donated, rest)
    args = self._in_flight(flight, args)
    if self._before_lookup is not None:
      self._make_ready(self._cut(args), args)
    return flight, self._train_step(*args)

  def _exact_program(self, donated, rest, *args):
    flight = _join(donated, rest)
    args_in_flight = self._in_flight(flight, args)
    step, leaves = self._cut(args_in_flight), self._leaves(args_in_flight)

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
    leaves = self._leaves(args)
    if any(x.site.returns_tables for x in following.lookups):
      leaves = self._leaves_after(following, args, results)
    return _after(flight, _look_up(following, leaves), ()), results

  def _stale_program(self, donated, rest, *args):
    flight = _join(donated, rest)
    args_in_flight = self._in_flight(flight, args)
    step = self._cut(args_in_flight)
    following = self._cut_like(step, args_in_flight, args)
    looked_up, updated = _update_and_look_up(
        following,
        flight,
        self._leaves(args),
        lambda: self._make_ready(following, args),
    )
    leaves = _replace(self._leaves(args_in_flight), updated)
    results, pending = _train(step, flight, leaves)
    return _after(flight, looked_up, pending), results

  def _flush_program(self, flight, *args):
    leaves = self._leaves(args)
    leaves = _replace(leaves, _update(self._cut(args), flight, leaves))
    return [x for x in leaves if not isinstance(x, jax.Ref)]

  def _make_ready(self, step: _cut.Step, args: Sequence[Any]) -> None:
    """Calls before_lookup for the batch of `args`, which `step` looks up."""
    if self._before_lookup is None:
      return
    for lookup in step.lookups:
      if lookup.site.returns_tables:
        raise NotImplementedError(
            f"before_lookup is for tables in jax.Refs, which it can write, and"
            f" those of {lookup.site} are values. Use a layer with"
            " tables='ref', or leave before_lookup out."
        )
    self._before_lookup(*args)

  def _cut(self, args: Sequence[Any]) -> _cut.Step:
    def of_traced(*traced):
      traced = iter(traced)
      return self._train_step(
          *(
              arg if i in self._static_argnums else next(traced)
              for i, arg in enumerate(args)
          )
      )

    return _cut.cut(of_traced, self._traced(args), self._batch_argnums)

  def _cut_like(
      self, step: _cut.Step, args: Sequence[Any], other: Sequence[Any]
  ) -> _cut.Step:
    """`_cut(other)`; `step` is that of `args`, mostly of the same shapes."""
    if _types(self._traced(args)) == _types(self._traced(other)):
      return step
    following = self._cut(other)
    if len(following.lookups) != len(step.lookups):
      raise ValueError(
          f"train_step has {len(step.lookups)} lookups for one batch and"
          f" {len(following.lookups)} for the next. Finish the first before"
          " the other is started."
      )
    return following

  def _leaves_after(
      self, step: _cut.Step, args: Sequence[Any], results: Any
  ) -> list[Any]:
    """Leaves of `args`, those of tables as the step returns them."""
    candidates = [results]
    if type(results) in (tuple, list):
      candidates += results
    leaves = []
    for position, arg in self._traced(args).items():
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

  # Arguments of train_step.

  def _traced(self, args: Sequence[Any]) -> dict[int, Any]:
    return {
        i: arg for i, arg in enumerate(args) if i not in self._static_argnums
    }

  def _leaves(self, args: Sequence[Any]) -> list[Any]:
    return jax.tree.leaves(tuple(self._traced(args).values()))

  def _with_leaves(
      self, args: Sequence[Any], leaves: Sequence[Any]
  ) -> list[Any]:
    """`args` with other leaves."""
    structure = jax.tree.structure(tuple(self._traced(args).values()))
    traced = iter(structure.unflatten(leaves))
    return [
        arg if i in self._static_argnums else next(traced)
        for i, arg in enumerate(args)
    ]

  def _batch_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(args[i] for i in self._batch_argnums)

  def _without_batch(self, args: Sequence[Any]) -> list[Any]:
    return [x for i, x in enumerate(args) if i not in self._batch_argnums]

  def _with_batch(
      self, others: Sequence[Any], batch: Sequence[Any]
  ) -> list[Any]:
    args = list(others)
    for i, x in sorted(
        zip(self._batch_argnums, batch), key=lambda pair: pair[0]
    ):
      args.insert(i, x)
    return args

  def _in_flight(self, flight: Flight, args: Sequence[Any]) -> list[Any]:
    """`args` with the batch in flight."""
    return self._with_batch(self._without_batch(args), flight.batch)

  def _check_arguments(self, args: Sequence[Any]) -> None:
    if len(args) <= max(self._batch_argnums):
      raise ValueError(
          f"Got {len(args)} arguments of train_step, but its batch is at"
          f" {self._batch_argnums}. Pass the flight first, and then all of them,"
          " by position."
      )

  def _check_flight(self, flight: Any, may_be_finished: bool = False) -> None:
    if not isinstance(flight, Flight):
      raise TypeError(
          "The first argument must be a Flight, which `start` and every call"
          f" return, got {type(flight).__name__}."
      )
    if flight.mode != self._mode:
      raise ValueError(
          f"The flight is of mode {flight.mode!r}, this pipeline of"
          f" {self._mode!r}. Begin with `start`."
      )
    if flight.is_finished and not may_be_finished:
      raise ValueError(
          "The flight is finished: its batch has been trained with. Go on with"
          " `start` and the next batch, after `flush` with mode='stale'."
      )

  def _prepare(self, flight: Flight) -> tuple[str, Any, Flight]:
    """Which program, and a flight as what is donated and the rest."""
    self._check_flight(flight)
    program = "exact" if flight.warmup_steps_left else self._mode
    donated = flight.activations, [x.gradients for x in flight.pending]
    rest = dataclasses.replace(
        flight,
        activations=(),
        pending=tuple(
            dataclasses.replace(x, gradients=None) for x in flight.pending
        ),
        # Not another program for every number.
        warmup_steps_left=0,
    )
    return program, donated, rest


def _with_room_of(batch: Any, flight: Flight) -> Flight:
  """`flight` with buffers as large as those of the next batch.

  Where limits have grown, all that is compiled anew is a step in which both
  batches have the new ones, and not also one in which one of them has.
  """
  is_input = lambda x: isinstance(x, embedding.PreprocessedInput)
  inputs_in = lambda tree: [
      x
      for x in jax.tree.leaves(tree, is_leaf=is_input)
      if is_input(x) and x.settings is not None
  ]
  grown = {}
  for old, new in zip(inputs_in(flight.batch), inputs_in(batch)):
    of_old, of_new = _limits.of_buffers(old), _limits.of_buffers(new)
    same = dataclasses.replace(new.settings, limits=old.settings.limits)
    if old.settings == same and of_new != of_old and of_new.covers(of_old):
      grown[old.settings, of_old] = of_new
  if not grown:
    return flight

  def pad(x):
    if not is_input(x) or x.settings is None:
      return x
    limits = grown.get((x.settings, _limits.of_buffers(x)))
    return _limits.pad(x, limits) if limits else x

  return jax.tree.map(pad, flight, is_leaf=is_input)


def _join(donated: Any, rest: Flight) -> Flight:
  activations, gradients = donated
  return dataclasses.replace(
      rest,
      activations=activations,
      pending=tuple(
          dataclasses.replace(x, gradients=of_x)
          for x, of_x in zip(rest.pending, gradients, strict=True)
      ),
  )


def _types(tree: Any) -> Any:
  """Equal for trees for which a step is traced alike."""
  leaves, structure = jax.tree.flatten(tree)
  types = map(jax.typeof, leaves)
  return structure, [(x.shape, x.dtype) for x in types]


def _looked_up(flight: Flight) -> list[Any]:
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
    step: _cut.Step, flight: Flight, leaves: Sequence[Any]
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
    flight: Flight,
    leaves: Sequence[Any],
    between: Callable[[], None] = lambda: None,
) -> tuple[Any, dict[int, Any]]:
  """What `_look_up` returns after the pending updates, and these."""
  updated = _update(step, flight, leaves)
  between()
  return _look_up(step, _replace(leaves, updated)), updated


def _train(
    step: _cut.Step, flight: Flight, leaves: Sequence[Any]
) -> tuple[Any, tuple[PendingUpdate, ...]]:
  """Results of the step, and the updates that it leaves to be made."""
  pending = []

  def update(of: _cut.Update):
    pending.append(
        PendingUpdate(
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
    flight: Flight, looked_up: Any, pending: tuple[PendingUpdate, ...]
) -> Flight:
  inputs, activations, has_failed = looked_up
  return dataclasses.replace(
      flight,
      batch=(),
      inputs=inputs,
      activations=activations,
      has_failed=has_failed,
      pending=pending,
  )
