# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What several GPUs do for one lookup and update, by one of them in turn.

All kernels of the exchange run, on the messages that devices would send each
other; only who sends is not tried. A device has one SparseCore.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import gpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls


def lookup_and_update(
    library: gpu_calls.Library,
    rule: update_rules.UpdateRule,
    params: dict[str, Any],
    num_devices: int,
) -> Callable[[update_rules.UpdateOperands], Sequence[jax.Array]]:
  """A function of the operands of an update on one device.

  Args:
    library: with the handlers.
    rule: of the update.
    params: of the update, without minibatches and stochastic rounding.
    num_devices: which take the place of as many SparseCores of that device.

  Returns:
    The function, of which activations, table and slots after the update are the
    results; they have the bits of the one device.
  """
  steps = gpu_messages.Steps(library)
  rule = plain.with_options(rule, params)
  topology = layout.Topology(
      local_device_count=1, global_device_count=num_devices, num_sc_per_device=1
  )

  def parts(array: jax.Array) -> Sequence[jax.Array]:
    return jnp.split(array, num_devices)

  def exchange(sent: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Block q of each to q, as an all-to-all does."""
    return [jnp.concatenate(blocks) for blocks in zip(*map(parts, sent))]

  def run(operands):
    *of_cells, num_minibatches = operands.coo
    coos = [(*coo, num_minibatches) for coo in zip(*map(parts, of_cells))]
    gradients = parts(operands.gradient)
    tables = parts(operands.table)
    slots = list(zip(*map(parts, operands.slots))) or [()] * num_devices
    batch_size = gradients[0].shape[0]
    capacity = messages.capacity(
        topology,
        num_cells=coos[0][1].size,
        rows_per_device=tables[0].shape[0],
        max_unique_ids_per_partition=params["max_unique_ids_per_partition"],
        enable_minibatching=False,
    )
    requests, entries = zip(
        *[
            steps.pack(
                coo,
                topology,
                block_size=capacity,
                rows_per_device=tables[0].shape[0],
                batch_size=batch_size,
                enable_minibatching=False,
            )
            for coo in coos
        ]
    )
    wanted = exchange([x for (x,) in requests])
    rows = [steps.read_rows(t, [w])[0] for t, w in zip(tables, wanted)]
    activations = [
        steps.look_up(entry, [fetched], dict(device_batch_size=batch_size))
        for entry, fetched in zip(entries, exchange(rows))
    ]
    sums = [
        steps.sum_gradients(entry, gradient, capacity, num_devices)[0]
        for entry, gradient in zip(entries, gradients)
    ]
    updated = [
        steps.step_rows(
            rule,
            operands._replace(coo=coo, table=table, slots=of_table),
            [of_device],
            [received],
            params,
        )
        for coo, table, of_table, of_device, received in zip(
            coos, tables, slots, wanted, exchange(sums)
        )
    ]
    return [jnp.concatenate(x) for x in (activations, *zip(*updated))]

  return run
