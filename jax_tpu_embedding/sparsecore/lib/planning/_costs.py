# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The costs of a model as numbers: of its stacks, of a device, and of a step."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.planning import chips

MODES = ("off", "exact", "stale")  # of pipelining.pipelined
BYTES_PER_ID = 8  # of a replicated stack: id and gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackCost:
  """What a stack takes of a device, in one batch. Bytes and seconds.

  Attributes:
    name: of the stack.
    num_columns: with padding.
    table_bytes: without padding.
    slot_bytes: the same.
    padding_bytes: of both.
    activation_bytes: of a batch; gradients have as many.
    buffer_bytes: of a batch, with the limits.
    num_ids: of a batch.
    distinct_rows: that its SparseCores ask for, each by itself; of a replicated
      stack, that the device asks for.
    owned_rows: of its own that all devices ask for; of a replicated stack all,
      which a product reads and a step writes.
    needs: largest numbers of the batches; a replicated stack has none.
    limits: that AdaptiveLimits would set; a replicated stack has none.
    num_minibatches: that a batch takes with them.
    load: entries of the SparseCore that has most, over the mean.
    lookup_seconds: estimate, and the same of updates.
    update_seconds: see there.
    lookup_bound: "memory", "network", or of a replicated stack "product".
    update_bound: the same.
  """

  name: str
  num_columns: int
  table_bytes: int
  slot_bytes: int
  padding_bytes: int
  activation_bytes: int
  buffer_bytes: int
  num_ids: float
  distinct_rows: float
  owned_rows: float
  needs: embedding.StackLimits | None
  limits: embedding.StackLimits | None
  num_minibatches: int
  load: float
  lookup_seconds: float
  update_seconds: float
  lookup_bound: str
  update_bound: str

  @property
  def bytes_at_rest(self) -> int:
    return self.table_bytes + self.slot_bytes + self.padding_bytes


def num_cells(stack: StackCost, topology: chips.Topology) -> int:
  """How many ids a device's buffers have room for."""
  if stack.limits is None:
    return stack.buffer_bytes // BYTES_PER_ID
  return stack.limits.coo_cells_per_sc * topology.chip.num_sc


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCost:
  """What a model takes of a topology.

  Attributes:
    topology: of devices.
    workload: where ids come from, in words.
    plan: of stacks.
    stacks: in the order of the plan.
    limits: for AdaptiveLimits(start=...) and compiling ahead.
    dense_bytes: of parameters that are no tables; 0 where they are not known.
    dense_seconds: of the dense part; None where nothing was said of it.
    weight_gradient_seconds: of it, what can run beside an update.
    host_seconds: that preprocessing takes of one core, for each device.
    efficiency: of lookups, the share of the bandwidth that they are taken to
      have.
    update_efficiency: the same of updates.
    is_calibrated: whether a measured lookup says so.
  """

  topology: chips.Topology
  workload: str
  plan: embedding.StackingPlan
  stacks: tuple[StackCost, ...]
  limits: embedding.Limits
  dense_bytes: int
  dense_seconds: float | None
  weight_gradient_seconds: float | None
  host_seconds: float
  efficiency: float
  update_efficiency: float
  is_calibrated: bool = False

  @property
  def is_measured(self) -> bool:
    """Whether lookups and updates of this device were timed."""
    return self.topology.chip.times is not None

  @property
  def source_of_times(self) -> str:
    """Where lookups and updates have their seconds from."""
    if self.is_measured:
      return "measured"
    return "calibrated" if self.is_calibrated else "not calibrated"

  @property
  def efficiency_in_words(self) -> str:
    of_lookups, of_updates = (
        f"{x:.2f}" for x in (self.efficiency, self.update_efficiency)
    )
    if of_lookups == of_updates:
      return of_lookups
    return f"{of_lookups} ({of_updates} of updates)"

  @property
  def lookup_seconds(self) -> float:
    return sum(stack.lookup_seconds for stack in self.stacks)

  @property
  def update_seconds(self) -> float:
    return sum(stack.update_seconds for stack in self.stacks)

  def step_seconds(self, mode: str) -> float:
    """Of a step in a mode of pipelining.pipelined.

    Raises:
      ValueError: if the dense part is not known, or there is no such mode.
    """
    if mode not in MODES:
      raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
    if self.dense_seconds is None:
      raise ValueError(
          "The time of a step needs that of its dense part. Pass dense= to"
          " estimate."
      )
    lookup, update = self.lookup_seconds, self.update_seconds
    dense, beside = self.dense_seconds, self.weight_gradient_seconds
    if mode == "off":
      return lookup + dense + max(0.0, update - beside)
    if mode == "exact":
      return dense + max(0.0, update + lookup - beside)
    return max(dense, update + lookup)

  def bytes_per_device(self, mode: str = "off") -> int:
    """Tables, slots, dense_bytes, and batches of a step in a mode.

    Raises:
      ValueError: the mode is none of MODES.
    """
    if mode not in MODES:
      raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
    # Buffers of the batch; of the one in flight; and of the pending update.
    # Activations with their gradients; those in flight; pending gradients.
    copies = 1 + MODES.index(mode)
    return self.dense_bytes + sum(
        stack.bytes_at_rest
        + copies * stack.buffer_bytes
        + (1 + copies) * stack.activation_bytes
        for stack in self.stacks
    )

  def with_measured_lookup(self, seconds: float) -> Self:
    """These costs with the efficiency that a measured lookup has.

    That of updates, which are not measured, changes by the same factor.

    Args:
      seconds: of a step's lookups.

    Raises:
      ValueError: the seconds are not positive and finite.
    """
    if not 0 < seconds < math.inf:
      raise ValueError(
          f"seconds must be positive and finite, got {seconds}. Pass those of"
          " a step's lookups."
      )
    factor = self.lookup_seconds / seconds
    return dataclasses.replace(
        self,
        efficiency=self.efficiency * factor,
        update_efficiency=self.update_efficiency * factor,
        is_calibrated=True,
        stacks=tuple(
            dataclasses.replace(
                stack,
                lookup_seconds=stack.lookup_seconds / factor,
                update_seconds=stack.update_seconds / factor,
            )
            for stack in self.stacks
        ),
    )
