# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether a stored message says what the planner could have planned.

A message may be damaged, or made by hand. One that is believed as it stands can
send ids beyond their stack, or into the rows of another table, without an
error. What the planner demands of a plan: cc/planner/validate.cc.
"""

from __future__ import annotations

import math
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

# The least and the largest value of a number that stands by itself.
_STACK_RANGES = {
    "num_sparsecores": (1, _INT32_MAX // constants.ALIGNMENT),
    "stack_vocab_size": (1, _INT32_MAX),
    "stack_embedding_dim": (1, _INT32_MAX),
    "total_sample_count": (0, 2**40),
    "max_ids_per_partition": (1, _INT32_MAX),
    "max_unique_ids_per_partition": (1, _INT32_MAX),
    "activation_mem_bytes_limit": (0, _INT64_MAX),
    "suggested_coo_buffer_size_per_device": (1, _INT32_MAX),
}

_REMEDY = (
    "The message is damaged, or was not made by create_proto_from_feature_specs."
    " Write it again."
)


def check_message(message: pb.EmbeddingSpecProto) -> None:
  """Checks the numbers of stacks, and of tables and features in them.

  Raises:
    ValueError: if one is out of its range, or contradicts another.
  """
  names = set()
  for stack in message.stacked_table_specs:
    if stack.stack_name in names:
      raise ValueError(f"The message has two stacks {stack.stack_name!r}.")
    names.add(stack.stack_name)
    _check_stack(stack)
    for table in stack.table_specs:
      _check_table(stack, table)
    _check_samples(stack)


def _check_stack(stack: pb.StackedTableSpecProto) -> None:
  owner = f"Stack {stack.stack_name!r}"
  for field, (low, high) in _STACK_RANGES.items():
    descriptor = stack.DESCRIPTOR.fields_by_name[field]
    # An int64 that says nothing is 0 in proto3.
    if descriptor.has_presence and not stack.HasField(field):
      continue
    _check_range(owner, field, getattr(stack, field), low, high)
  # Rows of tables: each in the stack, none in two tables.
  _placement.from_proto(stack)
  _check_multiple(
      owner,
      "stack_embedding_dim",
      stack.stack_embedding_dim,
      constants.ALIGNMENT,
  )


def _check_table(
    stack: pb.StackedTableSpecProto, table: pb.TableSpecProto
) -> None:
  if table.placement == "tensorcore" and (
      stack.num_sparsecores != 1 or len(stack.table_specs) != 1
  ):
    raise ValueError(
        f"Table {table.table_name!r}: its placement is 'tensorcore', and stack"
        f" {stack.stack_name!r} has {stack.num_sparsecores} num_sparsecores and"
        f" {len(stack.table_specs)} tables, expected 1 of each. {_REMEDY}"
    )
  _check_multiple(
      f"Table {table.table_name!r}",
      "padded_vocab_size",
      table.padded_vocab_size,
      constants.ALIGNMENT * stack.num_sparsecores,
  )
  for feature in table.feature_specs:
    owner = f"Feature {feature.feature_name!r} of table {table.table_name!r}"
    expected = {
        "col_offset": table.row_offset_in_shard * stack.num_sparsecores,
        "col_shift": table.shard_rotation,
    }
    for field, value in expected.items():
      if getattr(feature, field) != value:
        raise ValueError(
            f"{owner}: {field} must be {value}, from where the table is in its"
            f" stack, got {getattr(feature, field)}. {_REMEDY}"
        )


def _check_samples(stack: pb.StackedTableSpecProto) -> None:
  """Each feature has samples of its own in the batch of the stack."""
  features = [f for table in stack.table_specs for f in table.feature_specs]
  end = 0
  for feature in sorted(features, key=lambda feature: feature.row_offset):
    owner = f"Feature {feature.feature_name!r} in stack {stack.stack_name!r}"
    _check_range(
        owner,
        "row_offset, behind the samples of other features,",
        feature.row_offset,
        end,
        stack.total_sample_count,
    )
    end = feature.row_offset + math.prod(feature.output_shape[:-1])
    if end > stack.total_sample_count:
      raise ValueError(
          f"{owner}: its samples end at {end}, and the stack's"
          f" total_sample_count is {stack.total_sample_count}. {_REMEDY}"
      )


def _check_range(
    owner: str, field: str, value: Any, low: int, high: int
) -> None:
  if not low <= value <= high:
    raise ValueError(
        f"{owner}: {field} must be in [{low}, {high}], got {value}. {_REMEDY}"
    )


def _check_multiple(owner: str, field: str, value: int, unit: int) -> None:
  if value % unit:
    raise ValueError(
        f"{owner}: {field} must be a multiple of {unit}, got {value}. {_REMEDY}"
    )
