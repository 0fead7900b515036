# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The steps of messages.py on a GPU, by native calls (cc/gpu).

A message is one array [G C, ...], the blocks of all devices one after the
other: an all-to-all goes from call to call, and XLA copies nothing in between.

Gradients that arrive are G runs of rows, each of which is ascending; they are
sorted by row, equal rows in the order of the devices that sent them.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import gpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import step_rows as reference
import numpy as np


@dataclasses.dataclass(frozen=True)
class Steps:
  """The functions of messages.py, with the calls of `library`."""

  library: gpu_calls.Library

  def pack(
      self,
      coo: Sequence[jax.Array],
      topology: layout.Topology,
      **sizes: Any,
  ) -> tuple[messages.Blocks, gpu_calls.Packed]:
    """messages.pack."""
    packed = gpu_calls.pack(self.library, coo, topology, **sizes)
    return [packed.requests], packed

  def read_rows(
      self, table: jax.Array, wanted: messages.Blocks
  ) -> messages.Blocks:
    """messages.read_rows."""
    (rows,) = wanted
    return [gpu_calls.read_rows(rows, table)]

  def look_up(
      self,
      entries: gpu_calls.Packed,
      fetched: messages.Blocks,
      params: dict[str, Any],
  ) -> jax.Array:
    """messages.look_up."""
    (rows,) = fetched
    groups = gpu_calls.group_packed_by_sample(
        self.library, entries, params["device_batch_size"]
    )
    return gpu_calls.pool_samples(
        groups,
        rows,
        params.get("quantization_config"),
        params.get("int8_columns"),
    )

  def sum_gradients(
      self,
      entries: gpu_calls.Packed,
      gradient: jax.Array,
      unused_block_size: int,
      unused_num_devices: int,
  ) -> messages.Blocks:
    """messages.sum_gradients."""
    num_places = entries.requests.size
    terms = gpu_calls.terms_of_rows(
        self.library,
        entries.places,
        gradient,
        max_row=num_places,
        samples=entries.samples,
        gains=entries.gains,
        block_size=gpu_calls.BLOCK_SIZE,
    )
    _, sums = gpu_calls.sum_rows(terms, num_places, entries.requests)
    return [sums]

  def step_rows(
      self,
      rule: update_rules.UpdateRule,
      operands: update_rules.UpdateOperands,
      wanted: messages.Blocks,
      received: messages.Blocks,
      params: dict[str, Any],
  ) -> Sequence[jax.Array]:
    """messages.step_rows."""
    (rows,), (gradients,) = wanted, received
    terms = gpu_calls.terms_of_rows(
        self.library, rows, gradients, max_row=operands.table.shape[0]
    )
    return step(rule, operands, terms, params)

  def sum_rows(
      self, rows: messages.Blocks, values: messages.Blocks, num_results: int
  ) -> Sequence[jax.Array]:
    """messages.sum_rows."""
    terms = gpu_calls.terms_of_rows(
        self.library,
        jnp.concatenate(rows),
        jnp.concatenate(values),
        min_row=np.iinfo(np.int32).min,
        max_row=constants.PADDING_VALUE,
    )
    return gpu_calls.sum_rows(terms, num_results)


def step(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    terms: gpu_calls.RowTerms,
    params: dict[str, Any],
) -> Sequence[jax.Array]:
  """Table and slots after the step of `rule`, which has its options.

  For rules without a kernel, rows are read, stepped in jnp and written in place.

  Args:
    rule: of UPDATE_RULES, or a custom one.
    operands: of the update.
    terms: of the rows that are stepped.
    params: of the update.
  """
  if rule.name in gpu_calls.STEP_RULES:
    return gpu_calls.step_rows(rule, operands, terms, params)
  num_table_rows = operands.table.shape[0]
  num_rows = min(terms.groups.rows.size, num_table_rows)
  rows, gradients = gpu_calls.sum_rows(terms, num_rows)
  seed, row_ids = lookup_and_update.seed_and_row_ids(
      operands,
      rows,
      layout.num_sc_per_device_from_row_pointers(
          operands.coo[0].size, 1, params.get("enable_minibatching", False)
      )
      if "rounding_shards" not in params
      else 1,
      params.get("rounding_shards"),
  )
  variables = (operands.table, *operands.slots)
  # A row that is none has the values of one that is.
  read = jnp.minimum(rows, num_table_rows - 1)
  new = reference.new_rows(
      rule,
      operands._replace(rounding_seed=seed),
      tuple(gpu_calls.read_rows(read, x) for x in variables),
      gradients,
      row_ids=row_ids,
      min_value=params.get("min_value"),
      max_value=params.get("max_value"),
      **{name: params[name] for name in rule.static_params},
  )
  is_skipped = reference.is_skipped(rule, gradients)
  written = jnp.where(is_skipped, constants.PADDING_VALUE, rows)
  return [
      gpu_calls.write_rows(written, values, x)
      for values, x in zip(new, variables, strict=True)
  ]
