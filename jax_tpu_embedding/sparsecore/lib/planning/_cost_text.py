# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The costs of a model as text."""

from __future__ import annotations

from collections.abc import Sequence

from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.planning import _costs
from jax_tpu_embedding.sparsecore.lib.planning import _suggestions

_COLUMNS = (
    "stack",
    "tables MiB",
    "slots MiB",
    "padding MiB",
    "buffers MiB",
    "empty",
    "activations MiB",
    "ids",
    "distinct",
    "load",
    "max_ids",
    "max_unique",
    "passes",
    "lookup ms",
    "by",
    "update ms",
    "by",
)


def describe(costs: _costs.ModelCost) -> str:
  """Memory, times, and what could be better."""
  topology = costs.topology
  gib = lambda x: f"{x / 2**30:.2f} GiB"
  lookup, update = costs.lookup_seconds * 1e3, costs.update_seconds * 1e3
  # What SparseCores have of the bandwidth is between all of it and a quarter.
  band = lambda ms, efficiency: (
      f"{ms:.3f} ms ({ms * efficiency:.3f} at 1.0,"
      f" {ms * efficiency / 0.25:.3f} at 0.25)"
  )
  if costs.is_measured:
    band = lambda ms, _: f"{ms:.3f} ms"
  lines = [
      _source_of_times(costs),
      f"{topology.name}: {topology.num_devices} devices of"
      f" {topology.chip.num_sc} SparseCores, {gib(topology.chip.memory_bytes)}"
      f" each. {costs.workload[0].upper()}{costs.workload[1:]}.",
      "",
      *readable_text.align(
          [_COLUMNS, *(_row(costs, stack) for stack in costs.stacks)]
      ),
      "",
      "Everything is of one device and batch. empty: cells of buffers without"
      " ids. load: entries of the busiest SparseCore over the mean.",
      "",
      f"Memory: {gib(costs.bytes_per_device('off'))} of"
      f" {gib(topology.chip.memory_bytes)}; pipelined"
      f" {gib(costs.bytes_per_device('exact'))} (exact),"
      f" {gib(costs.bytes_per_device('stale'))} (stale)"
      f"{'' if costs.dense_bytes else '; without dense parameters'}.",
      f"Lookup: {band(lookup, costs.efficiency)}",
      f"Update: {band(update, costs.update_efficiency)}",
      f"Host: {costs.host_seconds * 1e3:.3f} ms of a core.",
  ]
  if any(stack.limits is None for stack in costs.stacks):
    lines.append(
        "Stacks without limits are of tables that every device has: looked up by"
        " products, and their gradients are summed over devices."
    )
  if costs.dense_seconds is None:
    lines.append("Dense part: not known; dense= says.")
  else:
    lines.append(
        f"Dense part: {costs.dense_seconds * 1e3:.3f} ms,"
        f" {costs.weight_gradient_seconds * 1e3:.3f} of them beside an update."
    )
    lines.append(
        "Step: "
        + ", ".join(
            f"{costs.step_seconds(mode) * 1e3:.3f} ms ({mode})"
            for mode in ("off", "exact", "stale")
        )
    )
  if suggestions := _suggestions.suggestions(costs):
    lines += ["", *(f"- {line}" for line in suggestions)]
  return "\n".join(lines)


def _row(costs: _costs.ModelCost, stack: _costs.StackCost) -> Sequence[str]:
  mib = lambda x: f"{x / 2**20:.2f}"
  cells = _costs.num_cells(stack, costs.topology)
  empty = max(1 - stack.num_ids / cells, 0)
  limits = stack.limits
  return (
      stack.name,
      mib(stack.table_bytes),
      mib(stack.slot_bytes),
      mib(stack.padding_bytes),
      mib(stack.buffer_bytes),
      f"{empty:.0%}",
      mib(stack.activation_bytes),
      f"{stack.num_ids:.0f}",
      f"{stack.distinct_rows:.0f}",
      f"{stack.load:.2f}",
      str(limits.max_ids_per_partition) if limits else "-",
      str(limits.max_unique_ids_per_partition) if limits else "-",
      str(stack.num_minibatches),
      f"{stack.lookup_seconds * 1e3:.3f}",
      stack.lookup_bound,
      f"{stack.update_seconds * 1e3:.3f}",
      stack.update_bound,
  )


def _source_of_times(costs: _costs.ModelCost) -> str:
  """Where lookups and updates have their seconds from, in a sentence."""
  source = costs.source_of_times.capitalize()
  if costs.is_measured:
    factor = ", times a measured lookup over that" * costs.is_calibrated
    return (
        f"{source}: times follow from lookups and updates of this machine"
        f"{factor}."
    )
  efficiency = "nobody measured on these devices"
  if costs.is_calibrated:
    efficiency = "follows from a measured lookup"
  return (
      f"{source}: times are bounds by bandwidth, divided by an efficiency of"
      f" {costs.efficiency_in_words}, which {efficiency}."
  )
