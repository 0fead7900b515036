# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The native calls for one GPU (cc/ffi/gpu), as functions of arrays.

A *plan* puts the entries of a batch in the order of samples or of rows. It
depends on ids alone. What moves floats takes a plan, and reads tables and
gradients once.

Every array that a call writes is a result of it, also the scratch memory that
nothing reads: XLA may record a call once and run it often (CUDA graphs), and
only results are then where they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
import numpy as np

Array = native_call.Array

# Terms of a row from one source that are added from left to right; of more, the
# sums of such blocks are added.
BLOCK_SIZE = 512


class Library(Protocol):
  """The module with the handlers: ffi_cuda, or its emulation in tests."""

  def sample_groups_scratch_bytes(
      self, num_cells: int, num_row_pointers: int
  ) -> int:
    ...

  def row_groups_scratch_bytes(
      self, num_cells: int, num_row_pointers: int
  ) -> int:
    ...

  def max_row_blocks(
      self, num_cells: int, block_size: int, num_sources: int
  ) -> int:
    ...

  def max_long_rows(self, num_cells: int, block_size: int) -> int:
    ...

  def is_width_of_rows(self, dim: int) -> bool:
    ...


class SampleGroups(NamedTuple):
  """Sample s has the entries [begins[s], begins[s + 1])."""

  begins: Array  # i32[samples + 1]
  rows: Array  # i32[B]
  gains: Array  # f32[B]
  flaws: Array  # i32[2]: of corrupt buffers, else 0


class RowGroups(NamedTuple):
  """As RowGroups of cc/gpu/group_by_row.h."""

  rows: Array  # i32[B]
  samples: Array  # i32[B]
  starts: Array  # i32[B + 1]
  cells: Array  # i32[B]
  blocks: Array  # i32[blocks, 4]
  long_rows: Array  # i32[long rows, 4]
  counts: Array  # i32[4]


def group_by_sample(
    library: Library,
    coo: Sequence[Array],
    *,
    num_rows: int,
    batch_size: int,
    enable_minibatching: bool,
) -> SampleGroups:
  """The entries of a batch in the order of samples, with the rows they name."""
  num_cells = coo[1].size
  *groups, _ = native_call.call(
      "jte_group_by_sample_cuda",
      coo,
      [
          _ints(batch_size + 1),
          _ints(num_cells),
          jax.core.ShapedArray((num_cells,), np.float32),
          _ints(2),
          _bytes(library.sample_groups_scratch_bytes(num_cells, coo[0].size)),
      ],
      **_layout(coo, num_rows, batch_size, enable_minibatching),
  )
  return SampleGroups(*groups)


def pool_samples(
    groups: SampleGroups,
    table: Array,
    quantization: tuple[float, float, int] | None,
) -> Array:
  """The activations of samples, from rows of a table [rows, D]."""
  shape = (groups.begins.size - 1, table.shape[1])
  (activations,) = native_call.call(
      "jte_pool_samples_cuda",
      (*groups, table),
      [jax.core.ShapedArray(shape, np.float32)],
      quantization=np.array(quantization or (), np.float64),
  )
  return activations


def group_by_row(
    library: Library,
    coo: Sequence[Array],
    *,
    num_rows: int,
    batch_size: int,
    enable_minibatching: bool,
    block_size: int,
) -> RowGroups:
  """The entries of a batch in the order of rows."""
  num_cells = coo[1].size
  layout_of_batch = _layout(coo, num_rows, batch_size, enable_minibatching)
  num_sources = int(layout_of_batch["num_sc_per_device"])
  *groups, _ = native_call.call(
      "jte_group_by_row_cuda",
      coo,
      [
          _ints(num_cells),
          _ints(num_cells),
          _ints(num_cells + 1),
          _ints(num_cells),
          _ints(library.max_row_blocks(num_cells, block_size, num_sources), 4),
          _ints(library.max_long_rows(num_cells, block_size), 4),
          _ints(4),
          _bytes(library.row_groups_scratch_bytes(num_cells, coo[0].size)),
      ],
      **layout_of_batch,
      block_size=np.int64(block_size),
  )
  return RowGroups(*groups)


def step_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    groups: RowGroups,
    params: dict[str, Any],
    *,
    block_size: int,
) -> Sequence[Array]:
  """Table and slots after the update, in place where these are donated.

  Args:
    rule: with its options.
    operands: of the update; but with the parameter `rounding_shards`, see
      reference.update, rounding_seed is u32[2].
    groups: of its buffers.
    params: of the update.
    block_size: that `groups` were made with.
  """
  tables = (operands.table, *operands.slots)
  *_, gains, _ = operands.coo
  num_scs = layout.num_sc_per_device_from_row_pointers(
      operands.coo[0].size, 1, params.get("enable_minibatching", False)
  )
  seed = operands.rounding_seed
  if rule.takes_rounding_seed and "rounding_shards" not in params:
    params = params | dict(rounding_shards=(num_scs, num_scs))
    seed = native_call.apply(lambda x: jnp.stack([x, jnp.uint32(0)]), seed)
  batch = (*groups, gains, operands.gradient)
  has_one_partition = num_scs == 1 and not params.get(
      "enable_minibatching", False
  )
  *results, _ = native_call.call(
      "jte_step_rows_cuda",
      (
          *batch,
          *tables,
          *operands.hyperparameters,
          *(() if seed is None else (seed,)),
      ),
      [
          *[jax.core.ShapedArray(x.shape, x.dtype) for x in tables],
          jax.core.ShapedArray(
              (groups.blocks.shape[0], operands.table.shape[1]), np.float32
          ),
      ],
      aliases={len(batch) + k: k for k in range(len(tables))},
      after_readers=True,
      **cpu_calls.optimizer_attributes(rule, params),
      batch_size_per_sc=np.int64(operands.gradient.shape[0] // num_scs),
      block_size=np.int64(block_size),
      has_one_source=num_scs == 1,
      is_sorted=has_one_partition,
  )
  return results


def _layout(
    coo: Sequence[Array],
    num_rows: int,
    batch_size: int,
    enable_minibatching: bool,
) -> dict[str, Any]:
  """The attributes that say how buffers are laid out."""
  return dict(
      num_rows=np.int64(num_rows),
      batch_size=np.int64(batch_size),
      num_sc_per_device=np.int64(
          layout.num_sc_per_device_from_row_pointers(
              coo[0].size, 1, enable_minibatching
          )
      ),
      enable_minibatching=enable_minibatching,
  )


def _ints(*shape: int) -> jax.core.ShapedArray:
  return jax.core.ShapedArray(shape, np.int32)


def _bytes(num_bytes: int) -> jax.core.ShapedArray:
  return jax.core.ShapedArray((num_bytes,), np.uint8)
