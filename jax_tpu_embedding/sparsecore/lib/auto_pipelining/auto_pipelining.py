# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A train step as a pipeline, by the interface of jax_tpu_embedding 0.1.

    step = auto_pipelining(train_step, out_shardings=(None, None))
    state = init_state()
    for batch in batches:
      state, (carry, loss) = step(state, carry, batch)  # of the batch before
    state, (carry, loss) = finalize_pipelining(step, state, carry)

`train_step(carry, *data)` returns (new carry, *results), and has the tables in
its carry. Each call updates with the batch before the last, looks its batch up,
and does the dense work of the last: activations miss one update. It is
pipelining.pipelined(mode="stale"), which has its rules and its errors.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax
from jax_tpu_embedding.sparsecore.lib.pipelining import _arguments
from jax_tpu_embedding.sparsecore.lib.pipelining import pipelining

Carry = Any

_DUMP_DIRECTORY = "TEST_UNDECLARED_OUTPUTS_DIR"


class EmbeddingPipeliningState(NamedTuple):
  """What is between two calls. A pytree, to be saved.

  Attributes:
    activations_1: buffers, stacked activations and has_failed of the last
      batch, see pipelining.Flight; donated to the next call.
    args_1: its data, to be trained with.
    updates_0: updates of the batch before that are to be made.
  """

  activations_1: Any = None
  args_1: Any = None
  updates_0: Any = None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
  """A static argument, in a state."""

  value: Any


@dataclasses.dataclass(frozen=True)
class PipeliningFunction:
  """Made by `auto_pipelining`.

  Attributes:
    train_step_func: (state, carry, *data) -> (state, (carry, *results)).
    finalize: (state, carry) -> (state, (carry, *results)).
  """

  train_step_func: Callable[..., Any]
  finalize: Callable[..., Any]

  def __call__(
      self, state: EmbeddingPipeliningState, carry: Carry, *data: Any
  ) -> tuple[EmbeddingPipeliningState, tuple[Any, ...]]:
    return self.train_step_func(state, carry, *data)


def init_state() -> EmbeddingPipeliningState:
  """The state before the first call."""
  return EmbeddingPipeliningState()


def auto_pipelining(
    fn: Callable[..., Any],
    out_shardings: tuple[Any, ...],
    static_argnums: int | Sequence[int] = (),
) -> PipeliningFunction:
  """`fn(carry, *data)` as a step that is one batch ahead.

  The first call returns its carry and None for each array of the results. Later
  ones return the results of the call before, and donate the carry.

  Args:
    fn: not jitted; see pipelining.pipelined for what it may be. It returns a
      tuple of a new carry, of the same structure, and results.
    out_shardings: of what `fn` returns, as in jax.jit.
    static_argnums: of `fn`, as in jax.jit. From one init_state to the next, all
      calls have the same static arguments, and as many others.

  Raises:
    AssertionError: by the first call, if `fn` returns something else.
    TypeError: by a call with something else for the state.
    ValueError: by it, if `fn` cannot be a pipeline; by a later call whose
      static arguments, or number of arguments, are others; now, if
      static_argnums are no positions.
  """
  static_argnums = _arguments.argnums("static_argnums", static_argnums)

  @functools.cache
  def pipeline(num_arguments):
    return pipelining.pipelined(
        fn,
        [i for i in range(1, num_arguments) if i not in static_argnums],
        "stale",
        static_argnums=static_argnums,
        donate_argnums=0,
        out_shardings=out_shardings,
    )

  def train_step(state, carry, *data):
    _check_is_state(state)
    step = pipeline(1 + len(data))
    is_static = [i in static_argnums for i in range(1, 1 + len(data))]
    if state.args_1 is None:
      args = [_Static(x) if s else x for x, s in zip(data, is_static)]
      results = _results_of(fn, carry, args)
      flight = step.start(carry, *data)
      if os.environ.get(_DUMP_DIRECTORY):
        for name, jaxpr in step.trace_parts(flight, carry, *data).items():
          dump_jaxpr(jaxpr, name)
      out = carry, *jax.tree.map(lambda _: None, results)
    else:
      _check_like_last(
          [x.value for x in state.args_1 if isinstance(x, _Static)],
          [x for x, s in zip(data, is_static) if s],
          len(state.args_1),
          len(data),
      )
      flight, out = step(_flight_of(state), carry, *data)
    # The flight has copies of what the caller may change.
    batch = iter(flight.batch)
    args_1 = tuple(
        _Static(x) if s else next(batch) for x, s in zip(data, is_static)
    )
    return _state_of(flight, args_1), out

  def finalize(state, carry):
    _check_is_state(state)
    if state.args_1 is None:
      raise AssertionError(
          "Nothing is in the pipeline: finalize_pipelining takes the state that"
          " a step returned."
      )
    step = pipeline(1 + len(state.args_1))
    statics = [x.value for x in state.args_1 if isinstance(x, _Static)]
    flight, (carry, *results) = step.finish(_flight_of(state), carry, *statics)
    carry, *_ = step.flush(flight, carry, *statics)
    return init_state(), (carry, *results)

  return PipeliningFunction(train_step, finalize)


def finalize_pipelining(
    fn: PipeliningFunction, state: EmbeddingPipeliningState, carry: Carry
) -> tuple[EmbeddingPipeliningState, tuple[Any, ...]]:
  """Trains with the last batch, and makes the updates that are left.

  Args:
    fn: what auto_pipelining returned.
    state: what its last call returned. Donated.
    carry: the same. Donated.

  Returns:
    A state for a first call, and the carry and results of the last batch.

  Raises:
    AssertionError: if `fn` is something else, or there was no call.
    TypeError: if `state` is something else.
  """
  if not isinstance(fn, PipeliningFunction):
    raise AssertionError(
        "fn must be what auto_pipelining returned, got" f" {type(fn).__name__}."
    )
  return fn.finalize(state, carry)


def dump_jaxpr(jaxpr: Any, name: str) -> None:
  """Writes a program to $TEST_UNDECLARED_OUTPUTS_DIR/jaxpr_<name>.txt, if set.

  A first call does so with `original`, the traced function, and its parts:
  `lookup`, `dense`, `update`, and `update_lookup`.
  """
  if directory := os.environ.get(_DUMP_DIRECTORY):
    pathlib.Path(directory, f"jaxpr_{name}.txt").write_text(f"{jaxpr}\n")


def _check_is_state(state: Any) -> None:
  if not isinstance(state, EmbeddingPipeliningState):
    raise TypeError(
        "state must be what init_state() or the call before returned, got a"
        f" {type(state).__name__}."
    )


def _check_like_last(
    last_statics: Sequence[Any],
    statics: Sequence[Any],
    last_num_data: int,
    num_data: int,
) -> None:
  """Raises if the last batch would be trained with arguments of this one."""
  if num_data != last_num_data:
    raise ValueError(
        f"This call has {num_data} arguments of data, and trains with the batch"
        f" of the last call, which had {last_num_data}. Pass as many, or call"
        " finalize_pipelining before."
    )
  if statics != last_statics:
    raise ValueError(
        f"This call has the static arguments {statics}, and trains with the"
        f" batch of the last call, which had {last_statics}. Pass the same, or"
        " call finalize_pipelining before."
    )


def _results_of(
    fn: Callable[..., Any], carry: Carry, data: Sequence[Any]
) -> tuple[Any, ...]:
  """Shapes of the results of `fn`, without the carry."""
  out = jax.eval_shape(
      lambda carry, *data: fn(
          carry, *(x.value if isinstance(x, _Static) else x for x in data)
      ),
      carry,
      *data,
  )
  if not isinstance(out, tuple):
    raise AssertionError(
        "fn must return a tuple (carry, *results), got"
        f" {type(out).__name__}."
    )
  found, expected = map(jax.tree.structure, (out[0], carry))
  if found != expected:
    raise AssertionError(
        "The first that fn returns must have the structure of its carry"
        f" {expected}, got {found}."
    )
  return out[1:]


def _flight_of(state: EmbeddingPipeliningState) -> pipelining.Flight:
  inputs, activations, has_failed = state.activations_1
  return pipelining.Flight(
      batch=tuple(x for x in state.args_1 if not isinstance(x, _Static)),
      inputs=inputs,
      activations=activations,
      has_failed=has_failed,
      pending=state.updates_0,
      warmup_steps_left=0,
      mode="stale",
      is_finished=False,
  )


def _state_of(
    flight: pipelining.Flight, args: tuple[Any, ...]
) -> EmbeddingPipeliningState:
  return EmbeddingPipeliningState(
      activations_1=(flight.inputs, flight.activations, flight.has_failed),
      args_1=args,
      updates_0=flight.pending,
  )
