# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The stacks and tables of a plan, as values that a report is made of."""

from __future__ import annotations

import dataclasses

_BYTES_PER_SLOT_VALUE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableInPlan:
  """A table, where it is in its stack, and who uses it."""

  name: str
  vocabulary_size: int
  embedding_dim: int
  padded_vocabulary_size: int
  padded_embedding_dim: int
  row_offset_in_shard: int
  shard_rotation: int
  feature_names: tuple[str, ...]

  @property
  def num_values(self) -> int:
    return self.vocabulary_size * self.embedding_dim

  @property
  def num_padded_values(self) -> int:
    return self.padded_vocabulary_size * self.padded_embedding_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackInPlan:
  """A stack. Bytes are those of the table and its slots, on all devices."""

  name: str
  num_rows: int
  num_columns: int
  num_slots: int
  num_row_slots: int  # those of them with one number per row
  table_value_bytes: int  # of one value of the table; slots have 4
  tables: tuple[TableInPlan, ...]  # in the order of their rows
  num_samples: int  # of all features, in a global batch
  activation_bytes_per_sc: int
  activation_mem_bytes_limit: int
  max_ids_per_partition: int
  max_unique_ids_per_partition: int
  coo_buffer_size_per_device: int
  # Of a batch, on average; None if a feature's input_shape does not say.
  ids_per_device: int | None
  why_apart: str  # what keeps it from being part of another stack
  is_replicated: bool = False  # whether each device has all rows
  num_devices: int = 1

  @property
  def num_copies(self) -> int:
    return self.num_devices if self.is_replicated else 1

  @property
  def num_bytes(self) -> int:
    num_values = self.num_copies * self.num_rows * self.num_columns
    return num_values * self.table_value_bytes + self._slot_bytes(
        self.num_copies * self.num_rows, num_values
    )

  @property
  def num_table_bytes(self) -> int:
    """Of the table, without padding."""
    return self._num_values * self.table_value_bytes

  @property
  def num_slot_bytes(self) -> int:
    """Of the slots, without padding."""
    num_rows = sum(table.vocabulary_size for table in self.tables)
    return self._slot_bytes(self.num_copies * num_rows, self._num_values)

  @property
  def num_padding_bytes(self) -> int:
    return self.num_bytes - self.num_table_bytes - self.num_slot_bytes

  @property
  def _num_values(self) -> int:
    return self.num_copies * sum(table.num_values for table in self.tables)

  def _slot_bytes(self, num_rows: int, num_values: int) -> int:
    num_full = self.num_slots - self.num_row_slots
    return _BYTES_PER_SLOT_VALUE * (
        num_full * num_values + self.num_row_slots * num_rows
    )
