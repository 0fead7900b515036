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
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
import numpy as np

Array = native_call.Array

BLOCK_SIZE = lookup_and_update.BLOCK_SIZE
# Rules that a kernel steps rows by: kRules of cc/gpu/step_rows.cu.cc.
STEP_RULES = frozenset(
    (
        "adagrad",
        "adagrad_momentum",
        "adam",
        "f2a",
        "ftrl",
        "laprop",
        "lion",
        "momentum",
        "rowwise_adagrad",
        "sgd",
    )
)


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

  def pack_scratch_bytes(self, num_cells: int, num_row_pointers: int) -> int:
    ...

  def conversion_scratch_bytes(
      self, num_ids: int, num_samples: int, num_blocks: int, num_features: int
  ) -> int:
    ...

  def max_row_blocks(
      self, num_cells: int, block_size: int, num_sources: int
  ) -> int:
    ...

  def max_long_rows(self, num_cells: int, block_size: int) -> int:
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
  counts: Array  # i32[5]


def convert_ids(
    library: Library,
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
) -> Sequence[native_call.Operand]:
  """The buffers of raw ids, by the attributes of the CPU's call."""
  features = params["features"]
  grouped = raw_ids.group_operands(features, operands)
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=params["global_device_count"],
      num_sc_per_device=params["num_sc_per_device"],
  )
  scratch_bytes = library.conversion_scratch_bytes(
      sum(of_feature.ids.size for of_feature in grouped),
      sum(of_feature.num_samples for of_feature in grouped),
      topology.num_sc_per_device * topology.num_scs,
      len(grouped),
  )
  *buffers, _ = native_call.call(
      "jte_convert_ids_cuda",
      operands,
      [*operands[0].ctx.avals_out, _bytes(scratch_bytes)],
      keeps_errors=params.get("keeps_errors", False),
      **cpu_calls.stack_attributes(params),
  )
  return buffers


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


def group_packed_by_sample(
    library: Library, packed: Packed, batch_size: int
) -> SampleGroups:
  """The same of entries that are packed: their rows are those of the answer."""
  num_cells = packed.places.size
  *groups, _ = native_call.call(
      "jte_group_known_by_sample_cuda",
      (packed.places, packed.samples, packed.gains, packed.flaws),
      [
          _ints(batch_size + 1),
          _ints(num_cells),
          jax.core.ShapedArray((num_cells,), np.float32),
          _bytes(library.sample_groups_scratch_bytes(num_cells, 0)),
      ],
  )
  return SampleGroups(*groups, flaws=packed.flaws)


def pool_samples(
    groups: SampleGroups,
    table: Array,
    quantization: tuple[float, float, int] | None,
    int8_columns: int | None = None,
) -> Array:
  """The activations of samples, from rows of a table [rows, D], or of codes."""
  shape = (groups.begins.size - 1, int8_columns or table.shape[1])
  (activations,) = native_call.call(
      "jte_pool_samples_cuda",
      (*groups, table),
      [jax.core.ShapedArray(shape, np.float32)],
      quantization=np.array(quantization or (), np.float64),
  )
  return activations


class RowTerms(NamedTuple):
  """What the gradients of rows are sums of: gain * gradient[sample, :]."""

  groups: RowGroups
  gains: Array  # f32[B]; f32[0]: all are 1
  gradient: Array  # f32[samples, D]
  attributes: dict[str, Any]


class Packed(NamedTuple):
  """As PackedMessages of cc/gpu/pack_messages.h."""

  requests: Array  # i32[G C]
  places: Array  # i32[B]
  samples: Array  # i32[B]
  gains: Array  # f32[B]
  flaws: Array  # i32[2]


def terms_of_batch(
    library: Library,
    coo: Sequence[Array],
    gradient: Array,
    *,
    num_rows: int,
    enable_minibatching: bool,
) -> RowTerms:
  """The entries of a batch in the order of rows.

  Args:
    library: with the handlers.
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    gradient: f32[samples, D].
    num_rows: of the table.
    enable_minibatching: which layout the buffers have.
  """
  num_cells = coo[1].size
  batch_size = gradient.shape[0]
  layout_of_batch = _layout(coo, num_rows, batch_size, enable_minibatching)
  num_sources = int(layout_of_batch["num_sc_per_device"])
  *groups, _ = native_call.call(
      "jte_group_by_row_cuda",
      coo,
      _row_groups(library, num_cells, num_sources, coo[0].size, BLOCK_SIZE),
      **layout_of_batch,
      block_size=np.int64(BLOCK_SIZE),
  )
  return RowTerms(
      groups=RowGroups(*groups),
      gains=coo[3],
      gradient=gradient,
      attributes=dict(
          batch_size_per_sc=np.int64(batch_size // num_sources),
          block_size=np.int64(BLOCK_SIZE),
          has_one_source=num_sources == 1,
          is_sorted=num_sources == 1 and not enable_minibatching,
      ),
  )


def terms_of_rows(
    library: Library,
    rows: jax.Array,
    values: jax.Array,
    *,
    min_row: int = 0,
    max_row: int,
    samples: jax.Array | None = None,
    gains: jax.Array | None = None,
    block_size: int = 0,
) -> RowTerms:
  """The terms of rows that come in any order, once or several times.

  Args:
    library: with the handlers.
    rows: i32[n]; those that are not in [min_row, max_row) are none.
    values: f32[samples, D].
    min_row: the first row.
    max_row: one behind the last.
    samples: i32[n]; of each row. None: the i-th row has value i.
    gains: f32[n]; None: all are 1.
    block_size: of rows with more terms. 0: all are added from left to right, as
      are sums of sources.
  """
  *groups, _ = native_call.call(
      "jte_group_rows_cuda",
      (rows, jnp.zeros(0, jnp.int32) if samples is None else samples),
      _row_groups(library, rows.size, 1, 0, block_size),
      min_row=np.int64(min_row),
      max_row=np.int64(max_row),
      block_size=np.int64(block_size),
  )
  return RowTerms(
      groups=RowGroups(*groups),
      gains=jnp.zeros(0, jnp.float32) if gains is None else gains,
      gradient=values,
      attributes=dict(
          batch_size_per_sc=np.int64(values.shape[0]),
          block_size=np.int64(block_size),
          has_one_source=True,
          is_sorted=False,
      ),
  )


def sum_rows(
    terms: RowTerms, num_results: int, requests: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """Rows i32[n] and their gradients f32[n, D]; PADDING_VALUE and zeros for none.

  Args:
    terms: of the rows.
    num_results: n. If there are more rows, their gradients are NaN.
    requests: i32[n]; rows are places in it. None: they follow each other.
  """
  dim = terms.gradient.shape[1]
  rows, sums, _ = native_call.call(
      "jte_sum_rows_cuda",
      (
          *terms.groups,
          terms.gains,
          terms.gradient,
          jnp.zeros(0, jnp.int32) if requests is None else requests,
      ),
      [
          _ints(num_results),
          jax.core.ShapedArray((num_results, dim), np.float32),
          _block_sums(terms),
      ],
      **terms.attributes,
  )
  return rows, sums


def step_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    terms: RowTerms,
    params: dict[str, Any],
) -> Sequence[Array]:
  """Table and slots after the update, in place where these are donated.

  Args:
    rule: with its options.
    operands: of the update; but with the parameter `rounding_shards`, see
      reference.update, rounding_seed is u32[2].
    terms: of the rows that the batch names.
    params: of the update.
  """
  tables = (operands.table, *operands.slots)
  seed = operands.rounding_seed
  if rule.takes_rounding_seed and "rounding_shards" not in params:
    num_scs = layout.num_sc_per_device_from_row_pointers(
        operands.coo[0].size, 1, params.get("enable_minibatching", False)
    )
    params = params | dict(rounding_shards=(num_scs, num_scs))
    seed = native_call.apply(lambda x: jnp.stack([x, jnp.uint32(0)]), seed)
  batch = (*terms.groups, terms.gains, terms.gradient)
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
          _block_sums(terms),
      ],
      aliases={len(batch) + k: k for k in range(len(tables))},
      after_readers=True,
      **cpu_calls.optimizer_attributes(rule, params),
      **terms.attributes,
  )
  return results


def read_rows(rows: Array, table: Array) -> Array:
  """table[rows, :]; NaN for rows that the table does not have.

  Args:
    rows: i32[n].
    table: [rows, D]; or i32[rows, W], rows of codes, of which NaN are as well.
  """
  (values,) = native_call.call(
      "jte_read_rows_cuda",
      (rows, table),
      [jax.core.ShapedArray((rows.size, table.shape[1]), table.dtype)],
  )
  return values


def write_rows(rows: Array, values: Array, table: Array) -> Array:
  """The table with table[rows, :] = values, in place where it is donated.

  Args:
    rows: i32[n], no row twice; those that the table does not have are none.
    values: [n, D], of the type of the table.
    table: [rows, D].
  """
  (result,) = native_call.call(
      "jte_write_rows_cuda",
      (rows, values, table),
      [jax.core.ShapedArray(table.shape, table.dtype)],
      aliases={2: 0},
      after_readers=True,
  )
  return result


def pack(
    library: Library,
    coo: Sequence[Array],
    topology: layout.Topology,
    *,
    block_size: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> Packed:
  """What to ask of every device, `block_size` rows each; see messages.pack."""
  num_cells = coo[1].size
  num_devices = topology.global_device_count
  *packed, _ = native_call.call(
      "jte_pack_messages_cuda",
      coo,
      [
          _ints(num_devices * block_size),
          _ints(num_cells),
          _ints(num_cells),
          jax.core.ShapedArray((num_cells,), np.float32),
          _ints(2),
          _bytes(library.pack_scratch_bytes(num_cells, coo[0].size)),
      ],
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
      num_sc_per_device=np.int64(topology.num_sc_per_device),
      enable_minibatching=enable_minibatching,
      num_devices=np.int64(num_devices),
  )
  return Packed(*packed)


def _row_groups(
    library: Library,
    num_cells: int,
    num_sources: int,
    num_row_pointers: int,
    block_size: int,
) -> Sequence[jax.core.ShapedArray]:
  """Those of RowGroups, and scratch memory."""
  return [
      _ints(num_cells),
      _ints(num_cells),
      _ints(num_cells + 1),
      _ints(num_cells),
      _ints(library.max_row_blocks(num_cells, block_size, num_sources), 4),
      _ints(library.max_long_rows(num_cells, block_size), 4),
      _ints(5),
      _bytes(library.row_groups_scratch_bytes(num_cells, num_row_pointers)),
  ]


def _block_sums(terms: RowTerms) -> jax.core.ShapedArray:
  shape = (terms.groups.blocks.shape[0], terms.gradient.shape[1])
  return jax.core.ShapedArray(shape, np.float32)


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
