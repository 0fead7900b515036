# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from collections.abc import Sequence
import enum
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
import numpy as np
from numpy import typing as npt

MinibatchingNode = minibatching_node.MinibatchingNode

class ShardingStrategy(enum.Enum):
  MOD = ...

MOD: ShardingStrategy

class FeatureStackingStrategy(enum.Enum):
  SPLIT_THEN_STACK = ...
  STACK_THEN_SPLIT = ...

# Keys are names of stacks.
class SparseDenseMatmulInputStats:
  @property
  def max_ids_per_partition(self) -> dict[str, npt.NDArray[np.int32]]: ...
  @property
  def max_unique_ids_per_partition(self) -> dict[str, npt.NDArray[np.int32]]: ...
  @property
  def required_buffer_sizes(self) -> dict[str, npt.NDArray[np.int32]]: ...
  @property
  def dropped_id_count(self) -> dict[str, int]: ...
  @property
  def minibatch_alignment(self) -> dict[str, npt.NDArray[np.int32]]: ...

class AllReduceInterface:
  def any_of(self, sync_key: int, value: bool) -> bool: ...
  def bitwise_or(self, sync_key: int, value: int) -> int: ...

class OutputPool:
  def __init__(self, *, max_bytes: int | None = None) -> None: ...
  @staticmethod
  def of_process() -> OutputPool: ...
  def empty(
      self, shape: Sequence[int], dtype: npt.DTypeLike
  ) -> npt.NDArray[Any]: ...
  def clear(self) -> None: ...
  @property
  def max_bytes(self) -> int | None: ...
  @max_bytes.setter
  def max_bytes(self, value: int | None) -> None: ...
  @property
  def allocated_bytes(self) -> int: ...
  @property
  def idle_bytes(self) -> int: ...
  @property
  def num_allocated(self) -> int: ...
  @property
  def num_reused(self) -> int: ...

class FeatureSpecs:
  def __init__(self, feature_specs: list[Any]) -> None: ...

# Row pointers, ids, samples and gains of each stack; minibatches; statistics.
_Converted = tuple[
    dict[str, npt.NDArray[np.int32]],
    dict[str, npt.NDArray[np.int32]],
    dict[str, npt.NDArray[np.int32]],
    dict[str, npt.NDArray[np.float32]],
    int,
    SparseDenseMatmulInputStats,
]

def preprocess_sparse_dense_matmul_input(
    features: list[Any],
    feature_weights: list[Any] | None,
    feature_specs: list[Any] | FeatureSpecs,
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int,
    sharding_strategy: ShardingStrategy = ...,
    has_leading_dimension: bool = False,
    allow_id_dropping: bool = False,
    batch_number: int = 0,
    enable_minibatching: bool = False,
    all_reduce_interface: AllReduceInterface | None = None,
    feature_stacking_strategy: FeatureStackingStrategy = ...,
    num_threads: int | None = None,
    output_pool: OutputPool | None = None,
) -> _Converted: ...
def preprocess_sparse_dense_matmul_sparse_coo_input(
    indices: list[Any],
    values: list[Any],
    dense_shapes: list[Any],
    feature_specs: list[Any] | FeatureSpecs,
    local_device_count: int,
    global_device_count: int,
    *,
    num_sc_per_device: int,
    sharding_strategy: ShardingStrategy = ...,
    has_leading_dimension: bool = False,
    allow_id_dropping: bool = False,
    batch_number: int = 0,
    enable_minibatching: bool = False,
    all_reduce_interface: AllReduceInterface | None = None,
    feature_stacking_strategy: FeatureStackingStrategy = ...,
    num_threads: int | None = None,
    output_pool: OutputPool | None = None,
) -> _Converted: ...
def count_prepared_numbers(
    features: list[Any],
    feature_weights: list[Any] | None,
    feature_specs: list[Any],
) -> int: ...
def compute_row_pointers_size_per_device(
    global_device_count: int,
    num_sc_per_device: int,
    enable_minibatching: bool = False,
) -> int: ...
def compute_theoretical_max_coo_buffer_size(
    max_ids_per_partition: int,
    global_device_count: int,
    num_sc_per_device: int,
    enable_minibatching: bool = False,
) -> int: ...
def compute_coo_buffer_size_per_device(
    feature_specs: list[Any],
    global_device_count: int,
    num_sc_per_device: int,
    enable_minibatching: bool = False,
) -> dict[str, int]: ...
def num_schedulable_cpus() -> int: ...
