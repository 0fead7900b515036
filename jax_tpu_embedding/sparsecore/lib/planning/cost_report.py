# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a model takes of devices that are not there: memory, and time.

    report = cost_report.estimate(feature_specs, "v6e:4x4",
                                  workload=workload.Zipf(1.05))
    print(report.describe())

Memory follows from the plan and from limits; these from batches that are drawn
and go through the real converter. Times of TPUs and GPUs are bounds by bandwidth,
divided by an efficiency that nobody measured yet: they say what is large and
what bounds it, not how long a step takes. Those of a CPU are measured on this
machine (_call_probe.py). Replicated tables are looked up by products with all
of their rows, and bounds are those of the products too.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import itertools
import json
import math
import os
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core.tpu import overlap_report
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _growth
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _limits
from jax_tpu_embedding.sparsecore.lib.planning import _cost_picture
from jax_tpu_embedding.sparsecore.lib.planning import _cost_text
from jax_tpu_embedding.sparsecore.lib.planning import _costs
from jax_tpu_embedding.sparsecore.lib.planning import _suggestions
from jax_tpu_embedding.sparsecore.lib.planning import chips
from jax_tpu_embedding.sparsecore.lib.planning import prepared_specs
from jax_tpu_embedding.sparsecore.lib.planning import workload as workload_lib
import numpy as np

_GRANULE = 32  # bytes that SparseCores read at once
_CELL_BYTES = 12  # of a buffer: row, sample, gain
_TPU_TILE = 1024  # numbers; vectors in a TPU's memory are multiples of it
_VALUE_BYTES = 4  # of slots, activations and their gradients
# A batch with more ids is drawn for some of the devices only.
_MAX_IDS = 4_000_000
# Of one core, from benchmarks/preprocessing (Criteo, 8 x 4).
_HOST_SECONDS_PER_ID = 5e-9
# Of compiled steps of MLPs.
_WEIGHT_GRADIENT_SHARE = 1 / 3
_DENSE_EFFICIENCY = 0.5

MODES = _costs.MODES
StackCost = _costs.StackCost


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseCost:
  """The dense part of a step, where it is not compiled.

  Attributes:
    flops_per_sample: forward and backward together.
    weight_bytes: of parameters and their optimizer's state, on each device.
  """

  flops_per_sample: float
  weight_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostReport(_costs.ModelCost):
  """The costs of a model on a topology: numbers, and what to read of them."""

  @property
  def suggestions(self) -> tuple[str, ...]:
    """What could be better, each with what it would gain."""
    return _suggestions.suggestions(self)

  def describe(self) -> str:
    """The report as text."""
    return _cost_text.describe(self)

  def to_json(self) -> str:
    """The report's numbers as JSON, in bytes and seconds."""
    numbers = {
        "topology": self.topology.name,
        "num_devices": self.topology.num_devices,
        "workload": self.workload,
        "is_calibrated": self.is_calibrated,
        "efficiency": self.efficiency,
        "update_efficiency": self.update_efficiency,
        "bytes_per_device": {
            mode: self.bytes_per_device(mode) for mode in MODES
        },
        "memory_bytes": self.topology.chip.memory_bytes,
        "lookup_seconds": self.lookup_seconds,
        "update_seconds": self.update_seconds,
        "host_seconds": self.host_seconds,
        "dense_seconds": self.dense_seconds,
        "step_seconds": None
        if self.dense_seconds is None
        else {mode: self.step_seconds(mode) for mode in MODES},
        "stacks": [dataclasses.asdict(stack) for stack in self.stacks],
        "suggestions": self.suggestions,
    }
    return json.dumps(numbers, indent=2)

  def plot(self, path: str | os.PathLike[str]) -> None:
    """Draws what stacks take of a device's memory, and of its time.

    Args:
      path: the file to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
      ImportError: if matplotlib is not there. It comes with the extra `plots`.
    """
    _cost_picture.plot(self, path)


def estimate(
    feature_specs: Any,
    topology: str | chips.Topology,
    *,
    workload: workload_lib.Workload = workload_lib.Uniform(),
    ids_per_sample: Mapping[str, float] | None = None,
    dense: DenseCost | jax.stages.Lowered | jax.stages.Compiled | None = None,
    sc_efficiency: float | None = None,
    batches: int = 3,
) -> CostReport:
  """The costs of a model. Needs no device, and changes nothing.

  Args:
    feature_specs: any tree. Specs that are not prepared for this topology are
      stacked for it, automatically.
    topology: its name, see chips.topology, or itself.
    workload: what ids there are.
    ids_per_sample: feature name -> ids of a sample, on average; default: as
      many as input_shape says. Features with samples of any length need it,
      unless the workload is of past batches.
    dense: the dense part of a step: a count of its operations, or a step that
      was lowered for the topology's TPUs, which is compiled, and whose
      parameters are not counted.
    sc_efficiency: of lookups and updates, the share of the bandwidth that they
      are taken to have; default: that of the chip, or what they took where that
      was measured.
    batches: how many are drawn or taken; needs are the largest of them.

  Raises:
    ValueError: if an argument is none of these, or the batch does not divide
      among the SparseCores.
    TypeError: if the topology is neither a name nor a Topology.
  """
  if isinstance(topology, str):
    topology = chips.topology(topology)
  if not isinstance(topology, chips.Topology):
    raise TypeError(
        "topology must be its name, such as 'v6e:4x4', or a chips.Topology,"
        f" got {topology!r}."
    )
  if sc_efficiency is not None and not 0 < sc_efficiency <= 1:
    raise ValueError(
        "sc_efficiency is a share of the bandwidth, above 0 and at most 1, got"
        f" {sc_efficiency}."
    )
  if sc_efficiency is not None:
    by_bandwidth = dataclasses.replace(topology.chip, times=None)
    topology = dataclasses.replace(topology, chip=by_bandwidth)
  num_devices, num_sc = topology.num_devices, topology.chip.num_sc
  features = prepared_specs.prepared(feature_specs, num_devices, num_sc)
  plan = embedding.get_plan(features, num_devices, num_sc)
  if isinstance(workload, workload_lib.FromStats):
    counts = _counts_of_stats(workload, plan)
  else:
    counts = _draw(features, plan, workload, ids_per_sample, batches)
  split = {x.name for x in plan.stacks if not x.is_replicated}
  limits = _limits_for(
      features,
      {name: x for name, x in counts.items() if name in split},
      topology,
  )
  lookup = sc_efficiency or topology.chip.lookup_efficiency
  update = sc_efficiency or topology.chip.update_efficiency
  stacks = tuple(
      _stack_cost(
          stack,
          counts[stack.name],
          limits[stack.name],
          topology,
          lookup,
          update,
      )
      if stack.name in split
      else _replicated_cost(stack, counts[stack.name], topology, lookup, update)
      for stack in plan.stacks
  )
  num_samples = features[0].input_shape[0] / num_devices
  dense_bytes, seconds, beside = _dense(dense, num_samples, topology.chip)
  return CostReport(
      topology=topology,
      workload=str(workload),
      plan=plan,
      stacks=stacks,
      limits=limits,
      dense_bytes=dense_bytes,
      dense_seconds=seconds,
      weight_gradient_seconds=beside,
      host_seconds=_HOST_SECONDS_PER_ID * sum(x.num_ids for x in stacks),
      efficiency=lookup,
      update_efficiency=update,
  )


@dataclasses.dataclass(kw_only=True)
class _Counts:
  """Of a stack and a device, means over batches; needs are the largest.

  Of a replicated stack there is, in place of needs, how many ids a sample has
  room for.
  """

  needs: embedding.StackLimits | None
  num_ids: float
  distinct_rows: float
  owned_rows: float
  load: float
  valency: int = 0


def _draw(
    features: list[Any],
    plan: embedding.StackingPlan,
    workload: Any,
    ids_per_sample: Mapping[str, float] | None,
    num_batches: int,
) -> dict[str, _Counts]:
  num_devices, num_sc = plan.global_device_count, plan.num_sc_per_device
  if isinstance(workload, workload_lib.FromBatches):
    workload, total = _with_num_ids(workload)
  else:
    total = sum(
        feature.input_shape[0]
        * workload_lib.num_ids_per_sample(feature, ids_per_sample or {})
        for feature in features
    )
  num_local = min(
      max(int(_MAX_IDS / max(total, 1) * num_devices), 1), num_devices
  )
  drawn = []
  for batch in workload_lib.draw_batches(
      workload, features, num_batches, num_local / num_devices, ids_per_sample
  ):
    needs = _needs(features, batch, num_local, num_devices, num_sc)
    drawn.append(
        {
            stack.name: _count(features, batch, stack, needs, plan, num_local)
            for stack in plan.stacks
        }
    )
  if not drawn:
    raise ValueError("The workload has no batches.")
  counts = {}
  for stack in plan.stacks:
    of_stack = [batch[stack.name] for batch in drawn]
    mean = lambda name: float(np.mean([getattr(x, name) for x in of_stack]))
    needs = of_stack[0].needs
    for x in of_stack[1:]:
      needs = needs and needs.union(x.needs)
    counts[stack.name] = _Counts(
        needs=needs,
        num_ids=mean("num_ids"),
        distinct_rows=mean("distinct_rows"),
        owned_rows=mean("owned_rows"),
        load=mean("load"),
        valency=max(x.valency for x in of_stack),
    )
  return counts


def _with_num_ids(
    workload: workload_lib.FromBatches,
) -> tuple[workload_lib.FromBatches, int]:
  """The same batches, which may be given once, and the ids of the first."""
  batches = iter(workload.batches)
  first = list(itertools.islice(batches, 1))
  leaves = jax.tree.leaves(first, is_leaf=lambda x: isinstance(x, tuple))
  total = sum(map(workload_lib.num_ids, leaves))
  return workload_lib.FromBatches(itertools.chain(first, batches)), total


def _needs(
    features: list[Any],
    batch: list[Any],
    num_local: int,
    num_devices: int,
    num_sc: int,
) -> dict[str, embedding.StackLimits]:
  """What a batch needs of the stacks that are split over devices."""
  split = [
      pair
      for pair in zip(features, batch, strict=True)
      if not pair[0].table_spec.is_replicated
  ]
  if not split:
    return {}
  of_split, ids = map(list, zip(*split))
  _, stats = embedding.preprocess_sparse_dense_matmul_input(
      ids,
      None,
      of_split,
      num_local,
      num_devices,
      num_sc_per_device=num_sc,
      # Counted all the same. Limits are what is looked for.
      allow_id_dropping=True,
      limits="specs",
  )
  return dict(_limits.needs_of(stats).stacks)


def _count(
    features: list[Any],
    batch: list[Any],
    stack: Any,
    needs: Mapping[str, Any],
    plan: embedding.StackingPlan,
    num_local: int,
) -> _Counts:
  """What the devices that were drawn for ask for."""
  num_sc, num_scs = plan.num_sc_per_device, plan.num_shards
  by_table, valency = {}, 1
  num_parts = num_local * (1 if stack.is_replicated else num_sc)
  for feature, ids in zip(features, batch, strict=True):
    table = feature.table_spec
    if table.setting_in_stack.stack_name == stack.name:
      parts = _by_sc(ids, num_parts)
      valency = max(valency, _valency(ids))
      by_table.setdefault(table.name, (table, []))[1].append(parts)
  num_ids, distinct, all_distinct = 0, 0, 0
  load = np.zeros(num_scs)
  for table, of_features in by_table.values():
    parts = [np.concatenate(x) for x in zip(*of_features)]
    num_ids += sum(x.size for x in parts)
    rows = [_distinct(x) for x in parts]
    distinct += sum(x.size for x in rows)
    all_distinct += _distinct(np.concatenate(rows)).size
    rotation = table.setting_in_stack.shard_rotation
    shards = (np.concatenate(parts) + rotation) % num_scs
    load += np.bincount(shards, minlength=num_scs)
  if stack.is_replicated:
    return _Counts(
        needs=None,
        num_ids=num_ids / num_local,
        distinct_rows=distinct / num_local,
        owned_rows=stack.num_rows,
        load=1.0,
        valency=valency,
    )
  num_devices = plan.global_device_count
  # Other devices ask for other rows, at most.
  vocabulary = sum(table.vocabulary_size for table, _ in by_table.values())
  owned = min(all_distinct * num_devices / num_local, vocabulary)
  return _Counts(
      needs=needs[stack.name],
      num_ids=num_ids / num_local,
      distinct_rows=distinct / num_local,
      owned_rows=owned / num_devices,
      load=float(load.max() / max(load.mean(), 1e-9)),
  )


def _distinct(ids: np.ndarray) -> np.ndarray:
  """The different ones of `ids`, which are not negative.

  By a sort: np.unique hashes since NumPy 2.3, and takes 20 times as long for
  millions of ids.
  """
  ids = np.sort(ids)
  return ids[np.diff(ids, prepend=-1) != 0]


def _valency(ids: Any) -> int:
  """How many ids a sample of a replicated table has room for."""
  if isinstance(ids, tuple):
    most = int(np.diff(ids[1]).max(initial=1))
    return 2 ** (most - 1).bit_length()
  ids = np.asarray(ids)
  return math.prod(ids.shape[1:])


def _by_sc(ids: Any, num_parts: int) -> list[np.ndarray]:
  """The ids of the samples of each SparseCore, or device."""
  if isinstance(ids, tuple):  # values and row splits
    values, splits = ids
    begins = splits[:: (len(splits) - 1) // num_parts]
    return [values[a:b] for a, b in zip(begins, begins[1:])]
  return [x.reshape(-1) for x in np.array_split(np.asarray(ids), num_parts)]


def _counts_of_stats(
    workload: workload_lib.FromStats, plan: embedding.StackingPlan
) -> dict[str, _Counts]:
  stats = workload.load()
  needs = dict(_limits.needs_of(stats).stacks)
  counts = {}
  for stack in plan.stacks:
    if stack.is_replicated:
      counts[stack.name] = _counts_of_shapes(stack, plan)
      continue
    if stack.name not in needs:
      raise ValueError(
          f"The statistics have the stacks {sorted(needs)}, and the plan for"
          f" this topology has {stack.name!r}. Prepare the specs as they were"
          " when the statistics were recorded."
      )
    unique = _largest_of_records(stats.max_unique_ids_per_partition[stack.name])
    num_partitions = plan.num_shards * plan.global_device_count
    if unique.size % plan.num_shards or unique.size > num_partitions:
      raise ValueError(
          f"Stack {stack.name!r}: the statistics have {unique.size} numbers, and"
          f" {plan.global_device_count} devices with {plan.num_shards}"
          " SparseCores record others. They are good for the topology that they"
          " are from."
      )
    num_sc = plan.num_sc_per_device
    ids = _largest_of_records(stats.max_ids_per_partition[stack.name])
    of_shards = unique.reshape(-1, plan.num_shards)
    # At most: what the busiest SparseCore of a device sends, all of them do.
    distinct = num_sc * float(of_shards.sum(axis=1).mean())
    load = ids.reshape(-1, plan.num_shards).sum(axis=0)
    counts[stack.name] = _Counts(
        needs=needs[stack.name],
        num_ids=num_sc * float(ids.reshape(-1, plan.num_shards).sum(1).mean()),
        distinct_rows=distinct,
        owned_rows=min(distinct, stack.num_rows / plan.global_device_count),
        load=float(load.max() / max(load.mean(), 1e-9)),
    )
  return counts


def _largest_of_records(numbers: Any) -> np.ndarray:
  """[n] of [records, n], as clients that retain their history load them."""
  numbers = np.asarray(numbers)
  return numbers.max(axis=0) if numbers.ndim > 1 else numbers


def _counts_of_shapes(stack: Any, plan: embedding.StackingPlan) -> _Counts:
  """Of a replicated stack, of whose ids there are no statistics."""
  if stack.ids_per_device is None:
    raise ValueError(
        f"Table {stack.name!r} has placement 'tensorcore', of which there are no"
        " statistics, and input_shape of a feature does not say how many ids a"
        " sample has. Give it as (batch, ids per sample), or pass another"
        " workload."
    )
  num_samples = stack.num_samples / plan.global_device_count
  return _Counts(
      needs=None,
      num_ids=stack.ids_per_device,
      distinct_rows=min(stack.ids_per_device, stack.num_rows),
      owned_rows=stack.num_rows,
      load=1.0,
      valency=math.ceil(stack.ids_per_device / num_samples),
  )


def _limits_for(
    features: list[Any],
    counts: Mapping[str, _Counts],
    topology: chips.Topology,
) -> embedding.Limits:
  """Those that AdaptiveLimits sets for a batch that needs as much."""
  rule = _growth.GrowthRule()
  needs = _limits.Limits(tuple((k, x.needs) for k, x in counts.items()))
  least = _limits.Limits.least(counts)
  ceiling = topology.chip.max_unique_ids_per_partition
  bounds = _growth.Bounds(
      _growth.rows_per_sc(features, topology.num_scs),
      topology.num_scs,
      {"max_unique_ids_per_partition": ceiling} if ceiling else {},
  )
  return rule.grown(least, rule.wanted(least, needs, needs), bounds)


def _stack_cost(
    stack: Any,
    counts: _Counts,
    limits: embedding.StackLimits,
    topology: chips.Topology,
    lookup_efficiency: float,
    update_efficiency: float,
) -> StackCost:
  chip, num_devices = topology.chip, topology.num_devices
  row_bytes = stack.num_columns * stack.table_value_bytes
  row_bytes = math.ceil(row_bytes / _GRANULE) * _GRANULE
  slot_bytes = _VALUE_BYTES * (
      (stack.num_slots - stack.num_row_slots) * stack.num_columns
      + stack.num_row_slots
  )
  slot_bytes = math.ceil(slot_bytes / _GRANULE) * _GRANULE
  activation_bytes = (
      stack.num_samples // num_devices * stack.num_columns * _VALUE_BYTES
  )
  cells = limits.coo_cells_per_sc * chip.num_sc
  if chip.is_tpu:
    cells = math.ceil(cells / _TPU_TILE) * _TPU_TILE
  pointers = embedding.compute_row_pointers_size_per_device(
      global_device_count=num_devices, num_sc_per_device=chip.num_sc
  )
  needed_cells = counts.needs.coo_cells_per_sc * chip.num_sc
  asked, owned = counts.distinct_rows, counts.owned_rows
  sent = asked * row_bytes * (num_devices - 1) / num_devices
  network = sent / chip.network_bytes_per_second
  bandwidth = chip.memory_bytes_per_second
  lookup = (
      asked * row_bytes + _CELL_BYTES * needed_cells + activation_bytes
  ) / bandwidth
  update = (
      2 * owned * (row_bytes + slot_bytes)
      + 2 * asked * row_bytes
      + activation_bytes
  ) / bandwidth
  if chip.times:
    lookup_efficiency = update_efficiency = 1.0
    lookup = chip.times.lookup.seconds(
        num_ids=counts.num_ids,
        id_bytes=counts.num_ids * row_bytes,
        new_rows=asked,
        new_bytes=asked * row_bytes,
        sample_bytes=activation_bytes,
    )
    update = chip.times.update.seconds(
        num_ids=counts.num_ids,
        id_bytes=counts.num_ids * stack.num_columns * _VALUE_BYTES,
        new_rows=owned * (1 + stack.num_slots),
        new_bytes=owned * (row_bytes + slot_bytes),
        sample_bytes=activation_bytes,
    )
  bound = lambda memory: "memory" if memory >= network else "network"
  return StackCost(
      name=stack.name,
      num_columns=stack.num_columns,
      table_bytes=stack.num_table_bytes // num_devices,
      slot_bytes=stack.num_slot_bytes // num_devices,
      padding_bytes=stack.num_padding_bytes // num_devices,
      activation_bytes=activation_bytes,
      buffer_bytes=_CELL_BYTES * cells + 4 * pointers,
      num_ids=counts.num_ids,
      distinct_rows=asked,
      owned_rows=owned,
      needs=counts.needs,
      limits=limits,
      num_minibatches=math.ceil(
          counts.needs.max_unique_ids_per_partition
          / limits.max_unique_ids_per_partition
      ),
      load=counts.load,
      lookup_seconds=max(lookup, network) / lookup_efficiency,
      update_seconds=max(update, network) / update_efficiency,
      lookup_bound=bound(lookup),
      update_bound=bound(update),
  )


def _replicated_cost(
    stack: Any,
    counts: _Counts,
    topology: chips.Topology,
    lookup_efficiency: float,
    update_efficiency: float,
) -> StackCost:
  """That of a table that every device has; see lib/nn/step/_one_hot.py."""
  chip, num_devices = topology.chip, topology.num_devices
  num_samples = stack.num_samples // num_devices
  table_bytes = stack.num_table_bytes // num_devices
  slot_bytes = stack.num_slot_bytes // num_devices
  padding_bytes = stack.num_padding_bytes // num_devices
  activation_bytes = num_samples * stack.num_columns * _VALUE_BYTES
  buffer_bytes = _costs.BYTES_PER_ID * num_samples * counts.valency
  # The matrix of gains is written and read, and so is the gradient.
  gain_bytes = 2 * _VALUE_BYTES * num_samples * stack.num_rows
  gradient_bytes = _VALUE_BYTES * stack.num_rows * stack.num_columns
  inputs = buffer_bytes + gain_bytes + activation_bytes
  at_rest = table_bytes + slot_bytes + padding_bytes
  product = (
      2 * num_samples * stack.num_rows * stack.num_columns
  ) / chip.float32_products_per_second
  # Of an all-reduce: each device sends its part of the rows to all, twice.
  sent = 2 * gradient_bytes * (num_devices - 1) / num_devices
  lookup = {
      "memory": (table_bytes + inputs) / chip.memory_bytes_per_second,
      "product": product,
  }
  update = {
      "memory": (2 * at_rest + 2 * gradient_bytes + inputs)
      / chip.memory_bytes_per_second,
      "product": product,
      "network": sent / chip.network_bytes_per_second,
  }
  return StackCost(
      name=stack.name,
      num_columns=stack.num_columns,
      table_bytes=table_bytes,
      slot_bytes=slot_bytes,
      padding_bytes=padding_bytes,
      activation_bytes=activation_bytes,
      buffer_bytes=buffer_bytes,
      num_ids=counts.num_ids,
      distinct_rows=counts.distinct_rows,
      owned_rows=counts.owned_rows,
      needs=None,
      limits=None,
      num_minibatches=1,
      load=counts.load,
      lookup_seconds=max(lookup.values()) / lookup_efficiency,
      update_seconds=max(update.values()) / update_efficiency,
      lookup_bound=max(lookup, key=lookup.get),
      update_bound=max(update, key=update.get),
  )


def _dense(
    dense: Any, num_samples: float, chip: chips.Chip
) -> tuple[int, float | None, float | None]:
  """Bytes, seconds, and the seconds that are beside an update."""
  if dense is None:
    return 0, None, None
  if isinstance(dense, DenseCost):
    peak = _DENSE_EFFICIENCY * chip.flops_per_second
    seconds = num_samples * dense.flops_per_sample / peak
    return dense.weight_bytes, seconds, _WEIGHT_GRADIENT_SHARE * seconds
  if isinstance(dense, jax.stages.Lowered):
    dense = dense.compile()
  if not isinstance(dense, jax.stages.Compiled):
    raise TypeError(
        "dense must be a DenseCost or a step that was lowered or compiled, got"
        f" {type(dense).__name__}."
    )
  if not chip.is_tpu:
    raise ValueError(
        f"A compiled step has estimates of its time on TPU only, not on"
        f" {chip.name}. Pass a DenseCost."
    )
  report = overlap_report.overlap_report(dense)
  cycles = sum(x.cost for x in report.instructions)
  beside = max((x.end - x.start for x in report.calls), default=0)
  per_second = chip.cycles_per_second
  # What the compiler says of arguments may have the tables in it.
  return 0, cycles / per_second, beside / per_second
