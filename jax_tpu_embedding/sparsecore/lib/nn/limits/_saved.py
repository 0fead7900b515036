# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits of an earlier run: their state as JSON, and on other devices."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import logging
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
import numpy as np

_VERSION = 1
# Needs of another topology are no more than an estimate.
_MARGIN_OF_ESTIMATE = 1.5
_START_ANEW = (
    "do not load it, and limits set themselves anew. In the state of an input"
    " pipeline, None may take its place."
)


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """The state of AdaptiveLimits at some time.

  Attributes:
    limits: those of then.
    largest: what a batch needed at most; None before the first one.
    num_grown: batches at which limits grew.
    num_batches: that there were.
  """

  limits: _limits.Limits
  largest: _limits.Limits | None
  num_grown: int
  num_batches: int


def to_json(
    snapshot: Snapshot, num_devices: int, num_sc_per_device: int
) -> dict[str, Any]:
  """A snapshot as JSON has it.

  Args:
    snapshot: the state.
    num_devices: of all processes.
    num_sc_per_device: SparseCores per device.
  """
  return {
      "version": _VERSION,
      "topology": [num_devices, num_sc_per_device],
      "enable_minibatching": snapshot.limits.enable_minibatching,
      "limits": _stacks_to_json(snapshot.limits),
      "largest": snapshot.largest and _stacks_to_json(snapshot.largest),
      "num_grown": snapshot.num_grown,
      "num_batches": snapshot.num_batches,
  }


def from_json(
    state: Mapping[str, Any],
    now: Snapshot,
    rule: _growth.GrowthRule,
    bounds: _growth.Bounds,
    as_allowed: Callable[[_limits.Limits], _limits.Limits],
    num_devices: int,
    num_sc_per_device: int,
) -> Snapshot:
  """What a run continues with that was in state `now`.

  On other devices, limits are what the largest needs would be if ids spread
  evenly, and half as much on top.

  Args:
    state: what to_json returned, maybe on other devices.
    now: of the run.
    rule: of the run, like the others.
    bounds: what its limits make sense up to.
    as_allowed: those of other devices -> what they can be on these.
    num_devices: of all processes.
    num_sc_per_device: SparseCores per device.

  Raises:
    ValueError: if the state is of another version, layout or model, or damaged,
      or what it needs on these devices cannot be had.
  """
  expected = to_json(now, num_devices, num_sc_per_device)
  if not isinstance(state, Mapping):
    raise _damaged(f"it is of type {type(state).__name__}")
  for key in ("version", "enable_minibatching"):
    if state.get(key) != expected[key]:
      raise ValueError(
          f"The state of the limits has {key} {state.get(key)!r}, expected"
          f" {expected[key]!r}. Limits of another {key} do not transfer:"
          f" {_START_ANEW}"
      )
  if missing := [key for key in expected if key not in state]:
    raise _damaged(f"it has no {', '.join(map(repr, missing))}")
  limits = _stacks_from_json("limits", state, now)
  largest = None
  if state["largest"] is not None:
    largest = _stacks_from_json("largest", state, now)
  num_grown, num_batches = (
      _number(key, state[key], 0) for key in ("num_grown", "num_batches")
  )
  try:
    devices, scs = state["topology"]
  except (TypeError, ValueError):
    raise _damaged(
        f"its topology is {state['topology']!r}, expected two numbers"
    ) from None
  topology = [_number("topology", x, 1) for x in (devices, scs)]
  if topology == expected["topology"]:
    return Snapshot(limits, largest, num_grown, num_batches)
  if largest is None:  # there was no batch yet
    return dataclasses.replace(now, num_batches=num_batches)
  limits = _transferred(largest, topology, expected["topology"], rule, bounds)
  return dataclasses.replace(
      now, limits=as_allowed(limits), num_batches=num_batches
  )


def _damaged(how: str) -> ValueError:
  return ValueError(
      f"The state of the limits is not what state_dict returned: {how}."
      f" Take it from another checkpoint, or {_START_ANEW}"
  )


def _number(name: str, value: Any, least: int) -> int:
  """An integer of a state."""
  if isinstance(value, (int, np.integer)) and value >= least:
    return int(value)
  raise _damaged(
      f"its {name} is {value!r}, expected an integer of at least {least}"
  )


def _transferred(
    largest: _limits.Limits,
    old_topology: list[int],
    new_topology: list[int],
    rule: _growth.GrowthRule,
    bounds: _growth.Bounds,
) -> _limits.Limits:
  """Limits for the largest needs on devices of another number."""
  (num_devices, num_sc), (new_devices, new_sc) = old_topology, new_topology
  # Of a SparseCore's ids, and of those the part that goes to another one.
  ids = num_devices * num_sc / (new_devices * new_sc)
  to_another = max(ids, ids * ids)
  logging.getLogger(__name__).info(
      "limits: of a run on %d devices with %d SparseCores, for %d with %d.",
      num_devices,
      num_sc,
      new_devices,
      new_sc,
  )
  rungs = []
  for _, needs in largest.stacks:
    for number in _limits.NUMBERS:
      ratio = ids if number == "coo_cells_per_sc" else to_another
      need = _MARGIN_OF_ESTIMATE * ratio * getattr(needs, number)
      rungs.append(rule.rung_above(need))
  least = _limits.Limits.least(bounds.rows_per_sc, largest.enable_minibatching)
  return rule.grown(least, rungs, bounds)


def _stacks_to_json(limits: _limits.Limits) -> dict[str, dict[str, int]]:
  return {
      name: dataclasses.asdict(of_stack) for name, of_stack in limits.stacks
  }


def _stacks_from_json(
    key: str, state: Mapping[str, Any], now: Snapshot
) -> _limits.Limits:
  """In the order of the stacks now."""
  stacks = state[key]
  if not isinstance(stacks, Mapping):
    raise _damaged(f"its {key} are {stacks!r}, expected numbers of each stack")
  names = [name for name, _ in now.limits.stacks]
  if set(stacks) != set(names):
    raise ValueError(
        f"The state has {key} of the stacks {sorted(stacks)}, and the specs"
        f" have {sorted(names)}. Limits of other stacks do not transfer:"
        f" {_START_ANEW}"
    )
  return dataclasses.replace(
      now.limits,
      stacks=tuple(
          (name, _of_stack(key, name, stacks[name])) for name in names
      ),
  )


def _of_stack(key: str, name: str, numbers: Any) -> _limits.StackLimits:
  if not isinstance(numbers, Mapping) or set(numbers) != set(_limits.NUMBERS):
    raise _damaged(
        f"its {key} of stack {name!r} are {numbers!r}, expected"
        f" {', '.join(_limits.NUMBERS)}"
    )
  return _limits.StackLimits(
      **{
          number: _number(f"{number} of stack {name!r}", value, 1)
          for number, value in numbers.items()
      }
  )
