# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a pipelined step carries from one call to the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
import numpy as np


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

  batch: tuple[Any, ...]  # what comes next, as it was passed; see `keep`
  # Of every lookup of the step: buffers; stacked activations, stack name ->
  # f32[B, D]; and where something is wrong with them, bool[G].
  inputs: tuple[Any, ...]
  activations: tuple[Any, ...]
  has_failed: tuple[Any, ...]
  pending: tuple[PendingUpdate, ...]  # mode "stale", in order
  warmup_steps_left: int = dataclasses.field(metadata=dict(static=True))
  mode: str = dataclasses.field(metadata=dict(static=True))
  is_finished: bool = dataclasses.field(metadata=dict(static=True))


def keep(batch: Any) -> Any:
  """`batch` in containers and NumPy arrays of the flight's own.

  The caller may fill its own with the next batch as soon as a call returns. The
  call after that trains with this one, and on a CPU the program of the first
  may still read it: JAX takes the memory of NumPy arrays as it is. So a program
  gets these copies, too. Arrays of JAX do not change, and are not copied.
  """
  return jax.tree.map(
      lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch
  )


def check(flight: Any, mode: str, may_be_finished: bool = False) -> None:
  """Raises if a pipeline of this mode cannot go on with `flight`."""
  if not isinstance(flight, Flight):
    raise TypeError(
        "The first argument must be a Flight, which `start` and every call"
        f" return, got {type(flight).__name__}."
    )
  if flight.mode != mode:
    raise ValueError(
        f"The flight is of mode {flight.mode!r}, this pipeline of"
        f" {mode!r}. Begin with `start`."
    )
  if flight.is_finished and not may_be_finished:
    raise ValueError(
        "The flight is finished: its batch has been trained with. Go on with"
        " `start` and the next batch, after `flush` with mode='stale'."
    )


def check_unused(arrays: Any) -> None:
  """Raises if a call has written over `arrays`, a tree of those of a flight."""
  for x in jax.tree.leaves(arrays):
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
      if x.is_deleted():
        raise RuntimeError(
            "The flight was used: the call that it was passed to wrote over its"
            " arrays. Go on with the flight that this call returned."
        )


def split(flight: Flight) -> tuple[Any, Flight]:
  """What a program may write over, and the rest; see `join`.

  The rest does not count warm-up steps, or each of them would be another
  program.
  """
  donated = flight.activations, [x.gradients for x in flight.pending]
  rest = dataclasses.replace(
      flight,
      activations=(),
      pending=tuple(
          dataclasses.replace(x, gradients=None) for x in flight.pending
      ),
      warmup_steps_left=0,
  )
  return donated, rest


def join(donated: Any, rest: Flight) -> Flight:
  """The flight that `split` took apart."""
  activations, gradients = donated
  return dataclasses.replace(
      rest,
      activations=activations,
      pending=tuple(
          dataclasses.replace(x, gradients=of_x)
          for x, of_x in zip(rest.pending, gradients, strict=True)
      ),
  )


def with_room_of(batch: Any, flight: Flight) -> Flight:
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
