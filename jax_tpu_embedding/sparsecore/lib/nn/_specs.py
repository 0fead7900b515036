# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a user declares, tables and features, and what planning adds to it.

TableSpec and FeatureSpec are mutable for one reason: the public API stores
plans on them. Everything that a plan consists of is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
from typing import Any
from typing import TypeVar
from typing import Union

import jax
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.nn import _optimizer_spec
from jax_tpu_embedding.sparsecore.lib.nn import _spec_checks
import numpy as np

_T = TypeVar("_T")

# Any pytree with leaves of one type; these are the common ones.
Nested = Union[_T, Sequence[_T], Mapping[str, _T]]

DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = 2 * 1024 * 1024

# Called as initializer(key, shape).
CallableTableInitializer = (
    jax.nn.initializers.Initializer | Callable[..., jax.typing.ArrayLike]
)

# Rows of length about 1: standard deviation 1 / sqrt(columns), by the shape
# that the initializer is asked for. One object, so that specs without an
# initializer are equal.
DEFAULT_INITIALIZER: CallableTableInitializer = (
    jax.nn.initializers.variance_scaling(
        1.0, mode="fan_out", distribution="truncated_normal"
    )
)


@dataclasses.dataclass(frozen=True)
class FeatureIdTransformation:
  """Where the ids and samples of a feature are in its stack."""

  row_offset: int = 0  # first sample in the stacked global batch
  col_offset: int = 0  # row_offset_in_shard * number of shards
  col_shift: int = 0  # shard rotation


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettingInStack:
  """Where a table is in its stack."""

  stack_name: str
  padded_vocab_size: int
  padded_embedding_dim: int
  row_offset_in_shard: int = 0
  shard_rotation: int = 0
  # The shards that the numbers above are for; None if they were not planned.
  # Not compared: the promised fields say where a table is.
  num_shards: int | None = dataclasses.field(
      default=None, compare=False, repr=False
  )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
  """Rows are rounded to `num_buckets` levels when they are looked up.

  Raises:
    ValueError: if there are fewer than two levels, or no finite range.
    TypeError: if the number of levels is not an integer.
  """

  min_value: float
  max_value: float
  num_buckets: int

  def __post_init__(self):
    _spec_checks.check_integer(
        "QuantizationConfig", "num_buckets", self.num_buckets
    )
    if self.num_buckets < 2:
      raise ValueError(
          "QuantizationConfig: num_buckets must be at least 2, got"
          f" {self.num_buckets}."
      )
    # Not "min >= max": that would let NaN pass.
    if not self.min_value < self.max_value:
      raise ValueError(
          "QuantizationConfig: min_value must be less than max_value, got"
          f" {self.min_value} and {self.max_value}."
      )
    if math.isinf(self.max_value - self.min_value):
      raise ValueError(
          "QuantizationConfig: min_value and max_value must be finite, got"
          f" {self.min_value} and {self.max_value}."
      )

  def as_tuple(self) -> tuple[float, float, int]:
    return self.min_value, self.max_value, self.num_buckets


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedTableSpec:
  """A stack. A pytree of its fields, so that it can pass through jit."""

  stack_name: str
  stack_vocab_size: int  # rows, padding included
  stack_embedding_dim: int  # columns, padding included
  optimizer: _optimizer_spec.OptimizerSpec
  combiner: str
  total_sample_count: int  # of all features, in a global batch
  max_ids_per_partition: int = 256
  max_unique_ids_per_partition: int = 256
  activation_mem_bytes_limit: int = DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
  suggested_coo_buffer_size_per_device: int | None = None
  quantization_config: QuantizationConfig | None = None
  # Of the table. No leaf of the pytree, as the programs depend on it.
  dtype: np.dtype = dataclasses.field(
      default=np.dtype(np.float32), metadata=dict(static=True)
  )

  def replace(self, **changes: Any) -> StackedTableSpec:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)


# The attributes of a TableSpec that can be set when it is stacked.
_PLAN_ATTRIBUTES = frozenset(
    (
        "_stacked_table_spec",
        "_setting_in_stack",
        "stacked_table_spec",
        "setting_in_stack",
    )
)
# Those that belong to the stack once there is one.
_BUFFER_ATTRIBUTES = frozenset(
    (
        "max_ids_per_partition",
        "max_unique_ids_per_partition",
        "suggested_coo_buffer_size_per_device",
    )
)


@dataclasses.dataclass(kw_only=True, eq=True, unsafe_hash=True)
class TableSpec:
  """An embedding matrix, [vocabulary_size, embedding_dim].

  Attributes cannot be changed once the table is in a stack.

  Raises:
    ValueError: if a field has a value that no table can have.
    TypeError: if a field has the wrong type.
  """

  name: str
  vocabulary_size: int
  embedding_dim: int
  # Default: normal, such that rows have about length 1.
  initializer: CallableTableInitializer = DEFAULT_INITIALIZER
  optimizer: _optimizer_spec.OptimizerSpec
  # How the rows of a sample become one: sum, mean (sum / sum of weights) or
  # sqrtn (sum / root of the sum of squared weights).
  combiner: str = "sum"
  # Ids, and distinct rows, that one SparseCore may send to another in a batch.
  max_ids_per_partition: int = 256
  max_unique_ids_per_partition: int = 256
  # COO cells of a device's input buffer; default: as many as the limits allow.
  suggested_coo_buffer_size_per_device: int | None = None
  quantization_config: QuantizationConfig | None = None
  # float32, bfloat16 or float16, by name or as a type. Slots, activations and
  # gradients are float32.
  dtype: np.typing.DTypeLike = np.dtype(np.float32)

  # The plan's part, once there is a plan.
  _stacked_table_spec: StackedTableSpec | None = dataclasses.field(
      default=None, compare=False
  )
  _setting_in_stack: TableSettingInStack | None = dataclasses.field(
      default=None, compare=False
  )

  # Whether the constructor is done; until then every field may be set.
  _initialized: bool = dataclasses.field(
      default=False, init=False, compare=False, repr=False
  )

  def __post_init__(self):
    if self._setting_in_stack is None:
      self._setting_in_stack = TableSettingInStack(
          stack_name=self.name,
          padded_vocab_size=self.vocabulary_size,
          padded_embedding_dim=self.embedding_dim,
      )
    self._initialized = True

  def __setattr__(self, name: str, value: Any) -> None:
    if self._initialized and self.is_stacked() and name not in _PLAN_ATTRIBUTES:
      raise AttributeError(
          f"Table {self.name!r} is stacked, so {name} cannot be set."
          + _how_to_change(name)
      )
    # Here, and not in the constructor only: fields can be set later.
    if name == "dtype":
      value = _spec_checks.as_table_dtype(f"Table {self.name!r}", value)
    if name in _TABLE_CHECKS:
      owner = "Table" if name == "name" else f"Table {self.name!r}"
      _TABLE_CHECKS[name](owner, name, value)
    super().__setattr__(name, value)

  def is_stacked(self) -> bool:
    return self._stacked_table_spec is not None

  @property
  def setting_in_stack(self) -> TableSettingInStack:
    if self._setting_in_stack is None:
      raise AssertionError(f"Table {self.name} has no setting_in_stack.")
    return self._setting_in_stack

  @setting_in_stack.setter
  def setting_in_stack(self, setting: TableSettingInStack) -> None:
    self._setting_in_stack = setting

  @property
  def stacked_table_spec(self) -> StackedTableSpec:
    if self._stacked_table_spec is None:
      raise AssertionError(
          f"Table {self.name} is not stacked. Call"
          " embedding.prepare_feature_specs_for_training first."
      )
    return self._stacked_table_spec

  @stacked_table_spec.setter
  def stacked_table_spec(self, stack: StackedTableSpec) -> None:
    self._stacked_table_spec = stack


@dataclasses.dataclass(kw_only=True, eq=True, unsafe_hash=True)
class FeatureSpec:
  """An input column and the table that its ids are looked up in.

  Hashable, and so usable as a static argument of jit, if the shapes are tuples.

  Raises:
    ValueError: if a field has a value that no feature can have.
    TypeError: if a field has the wrong type.
  """

  name: str
  table_spec: TableSpec
  # [global batch, ids per sample]; ragged input may leave out the second.
  input_shape: Sequence[int | None]
  # [global batch, ..., embedding_dim]: one sample per entry but the last, so
  # [batch, positions, embedding_dim] looks up every position by itself. Sizes
  # but the last may be None where raw ids tell: in layers.
  output_shape: Sequence[int | None]
  # What to do with ids that are not rows of the table: raise an error; drop
  # them, as if they were not in the sample, and count them; take the nearest
  # row; or take the id modulo vocabulary_size.
  out_of_range_ids: str = "error"
  # What to do with weights that are infinite or NaN: raise an error; drop the
  # id; clamp to the largest float32, NaN to 0; or keep them.
  non_finite_weights: str = "error"

  # The plan's part, once there is a plan.
  _id_transformation: FeatureIdTransformation | None = dataclasses.field(
      default=None, compare=False
  )

  def __setattr__(self, name: str, value: Any) -> None:
    if name in _FEATURE_CHECKS:
      owner = "Feature" if name == "name" else f"Feature {self.name!r}"
      _FEATURE_CHECKS[name](owner, name, value)
    super().__setattr__(name, value)

  @property
  def id_transformation(self) -> FeatureIdTransformation:
    if self._id_transformation is None:
      raise AssertionError(
          f"Feature {self.name} has no id_transformation. Call"
          " embedding.prepare_feature_specs_for_training first."
      )
    return self._id_transformation

  @id_transformation.setter
  def id_transformation(self, transformation: FeatureIdTransformation) -> None:
    self._id_transformation = transformation


def _how_to_change(name: str) -> str:
  if name in _BUFFER_ATTRIBUTES:
    return (
        " Call embedding.update_preprocessing_parameters, which changes the"
        " stack."
    )
  return (
      f" Make a new spec with dataclasses.replace(table, {name}=...,"
      " _stacked_table_spec=None, _setting_in_stack=None) and prepare the"
      " features that use it again."
  )


_TABLE_CHECKS: Mapping[str, _spec_checks.Check] = {
    "name": _spec_checks.check_name,
    "vocabulary_size": _spec_checks.check_positive,
    "embedding_dim": _spec_checks.check_count,
    "initializer": _spec_checks.check_callable,
    "optimizer": _spec_checks.instance_of(_optimizer_spec.OptimizerSpec),
    "combiner": _spec_checks.one_of(raw_ids.COMBINERS),
    "max_ids_per_partition": _spec_checks.check_count,
    "max_unique_ids_per_partition": _spec_checks.check_count,
    "suggested_coo_buffer_size_per_device": _spec_checks.optional(
        _spec_checks.check_count
    ),
    "quantization_config": _spec_checks.optional(
        _spec_checks.instance_of(QuantizationConfig)
    ),
}
_FEATURE_CHECKS: Mapping[str, _spec_checks.Check] = {
    "name": _spec_checks.check_name,
    "table_spec": _spec_checks.instance_of(TableSpec),
    "input_shape": _spec_checks.check_input_shape,
    "output_shape": _spec_checks.check_output_shape,
    "out_of_range_ids": _spec_checks.one_of(raw_ids.ID_POLICIES),
    "non_finite_weights": _spec_checks.one_of(raw_ids.WEIGHT_POLICIES),
}
