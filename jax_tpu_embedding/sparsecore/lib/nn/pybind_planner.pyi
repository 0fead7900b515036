# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

# The structs of cc/planner/plan.h and explain.h, where each field is explained.

from collections.abc import Sequence

class Quantization:
  def __init__(
      self, *, min_value: float, max_value: float, num_buckets: int
  ) -> None: ...

class Table:
  def __init__(
      self,
      *,
      name: str,
      vocabulary_size: int,
      embedding_dim: int,
      combiner: str,
      optimizer_id: int,
      optimizer: str,
      quantization: Quantization | None,
      stack_name: str,
      is_stacked: bool,
  ) -> None: ...

class Feature:
  def __init__(self, *, name: str, table: int, num_samples: int) -> None: ...

class Model:
  def __init__(
      self,
      *,
      global_device_count: int,
      num_sc_per_device: int,
      tables: Sequence[Table],
      features: Sequence[Feature],
  ) -> None: ...

class TablePlacement:
  @property
  def table(self) -> int: ...
  @property
  def padded_vocabulary_size(self) -> int: ...
  @property
  def row_offset_in_shard(self) -> int: ...
  @property
  def shard_rotation(self) -> int: ...

class IdTransform:
  @property
  def row_offset(self) -> int: ...
  @property
  def col_offset(self) -> int: ...
  @property
  def col_shift(self) -> int: ...

class FeaturePlacement:
  @property
  def feature(self) -> int: ...
  @property
  def transform(self) -> IdTransform: ...

class Stack:
  @property
  def name(self) -> str: ...
  @property
  def vocabulary_size(self) -> int: ...
  @property
  def embedding_dim(self) -> int: ...
  @property
  def num_samples(self) -> int: ...
  @property
  def tables(self) -> list[TablePlacement]: ...
  @property
  def features(self) -> list[FeaturePlacement]: ...

class Plan:
  @property
  def stacks(self) -> list[Stack]: ...
  @property
  def warnings(self) -> list[str]: ...

class StackReport:
  @property
  def stack_name(self) -> str: ...
  @property
  def activation_bytes_per_sc(self) -> int: ...
  @property
  def why_apart(self) -> str: ...

def plan_auto_stack(
    model: Model, *, activation_mem_bytes_limit: int, rotation: int | None
) -> Plan: ...
def plan_stack_tables(
    model: Model,
    *,
    table_names: Sequence[str],
    stack_name: str,
    rotation: int | None,
    fail_on_excess_padding: bool,
) -> Plan: ...
def plan_stack_alone(model: Model) -> Plan: ...
def explain_stacks(
    model: Model, stacks: Sequence[tuple[str, int]]
) -> list[StackReport]: ...
def place_tables(
    padded_vocabulary_sizes: Sequence[int], num_shards: int, rotation: int
) -> list[tuple[int, int]]: ...
def first_fit(
    activation_bytes: Sequence[int], limit: int
) -> list[list[int]]: ...
