# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Limits of an earlier run: their state as JSON, and on other devices."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import logging
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limit_ceiling
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits

_VERSION = 1
# Needs of another topology are no more than an estimate.
_MARGIN_OF_ESTIMATE = 1.5


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
    rule: _limits.GrowthRule,
    bounds: _limits.Bounds,
    ceiling: _limit_ceiling.LimitCeiling,
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
    ceiling: what they can be on these devices.
    num_devices: of all processes.
    num_sc_per_device: SparseCores per device.

  Raises:
    ValueError: if the state is of another version, layout or model, or what it
      needs on these devices cannot be had.
  """
  expected = to_json(now, num_devices, num_sc_per_device)
  for key in ("version", "enable_minibatching"):
    if state.get(key) != expected[key]:
      raise ValueError(
          f"The state of the limits has {key} {state.get(key)!r}, expected"
          f" {expected[key]!r}. Limits of another {key} do not transfer:"
          " do not load them, and they set themselves anew. In the state of an"
          " input pipeline, None may take their place."
      )
  if set(state["limits"]) != set(expected["limits"]):
    raise ValueError(
        f"The state has limits of the stacks {sorted(state['limits'])}, and"
        f" the specs have {sorted(expected['limits'])}."
    )
  num_batches = state["num_batches"]
  largest = state["largest"] and _stacks_from_json(state["largest"], now)
  if list(state["topology"]) == expected["topology"]:
    limits = _stacks_from_json(state["limits"], now)
    return Snapshot(limits, largest, state["num_grown"], num_batches)
  if largest is None:  # there was no batch yet
    return dataclasses.replace(now, num_batches=num_batches)
  limits = _transferred(
      largest, state["topology"], expected["topology"], rule, bounds
  )
  limits = ceiling.below(limits, now.limits, rule)
  return dataclasses.replace(now, limits=limits, num_batches=num_batches)


def _transferred(
    largest: _limits.Limits,
    old_topology: list[int],
    new_topology: list[int],
    rule: _limits.GrowthRule,
    bounds: _limits.Bounds,
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
    stacks: Mapping[str, Mapping[str, int]], now: Snapshot
) -> _limits.Limits:
  """In the order of the stacks now."""
  return dataclasses.replace(
      now.limits,
      stacks=tuple(
          (name, _limits.StackLimits(**stacks[name]))
          for name, _ in now.limits.stacks
      ),
  )
