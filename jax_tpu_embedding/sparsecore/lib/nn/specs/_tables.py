# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a user declares, tables and features, and what planning adds to it.

TableSpec and FeatureSpec are mutable for one reason: the public API stores
plans on them. Everything that a plan consists of is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any
from typing import Literal
from typing import TypeAlias
from typing import TypeVar
from typing import Union

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import field_checks
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core import optimizer_spec
from jax_tpu_embedding.sparsecore.lib.core import pickles
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
import numpy as np

_T = TypeVar("_T")

# A pytree whose leaves are of one type, of the usual containers.
Nested: TypeAlias = Union[
    _T, Sequence["Nested[_T]"], Mapping[str, "Nested[_T]"]
]

DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = 2 * 1024 * 1024

# What looks a table up: see TableSpec.placement.
PLACEMENTS = ("sparsecore", "tensorcore")

# Called as initializer(key, shape).
CallableTableInitializer = (
    jax.nn.initializers.Initializer | Callable[..., jax.typing.ArrayLike]
)


def default_initializer(
    key: jax.Array,
    shape: Sequence[int],
    dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
  """Rows of length about 1: normal numbers, standard deviation 1 / sqrt(D).

  Has the numbers of jax.nn.initializers.variance_scaling(1.0, "fan_out",
  "truncated_normal"). That one looks at the number of rows as well, though
  nothing depends on it, and so is traced for each size of a table, which takes
  longer than the numbers of a small one; see values/_random_blocks.py.

  A function of the module, so that specs can be compared and pickled.
  """
  dtype = jax.dtypes.canonicalize_dtype(dtype or float)
  # Of normal numbers that are cut off at 2, the standard deviation is this.
  of_cut = jnp.array(0.87962566103423978, dtype)
  deviation = jnp.sqrt(jnp.array(1.0 / shape[-1], dtype)) / of_cut
  return jax.random.truncated_normal(key, -2, 2, shape, dtype) * deviation


@dataclasses.dataclass(frozen=True)
class FeatureIdTransformation:
  """Where the ids and samples of a feature are in its stack.

  Attributes:
    row_offset: its first sample in the stacked global batch.
    col_offset: the table's row_offset_in_shard times the number of shards.
    col_shift: the table's shard_rotation.
  """

  row_offset: int = 0
  col_offset: int = 0
  col_shift: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettingInStack:
  """Where a table is in its stack.

  Attributes:
    stack_name: of the stack.
    padded_vocab_size: rows that the table takes of it.
    padded_embedding_dim: columns of the stack.
    row_offset_in_shard: first row in each shard.
    shard_rotation: the shard that has row 0.
    num_shards: the shards that these numbers are for; None if they were not
      planned. Not compared: the promised fields say where a table is.
  """

  stack_name: str
  padded_vocab_size: int
  padded_embedding_dim: int
  row_offset_in_shard: int = 0
  shard_rotation: int = 0
  num_shards: int | None = dataclasses.field(
      default=None, compare=False, repr=False
  )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
  """Rows are rounded to `num_buckets` levels when they are looked up.

  Attributes:
    min_value: the lowest level.
    max_value: the highest level.
    num_buckets: how many there are.

  Raises:
    ValueError: if there are fewer than two levels, or no finite range.
    TypeError: if the number of levels is not an integer.
  """

  min_value: float
  max_value: float
  num_buckets: int

  def __post_init__(self):
    field_checks.check_integer(
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
  """A stack. A pytree of its fields, so that it can pass through jit.

  Attributes:
    stack_name: names its arrays everywhere.
    stack_vocab_size: rows, padding included.
    stack_embedding_dim: columns, padding included.
    optimizer: of all its tables.
    combiner: of all its tables.
    total_sample_count: samples of all features, in a global batch.
    max_ids_per_partition: ids that one SparseCore may send to another in a
      batch, or in a minibatch.
    max_unique_ids_per_partition: the same for distinct rows.
    activation_mem_bytes_limit: what auto_stack_tables kept the activations of
      one SparseCore below.
    suggested_coo_buffer_size_per_device: COO cells of a device's input buffer;
      None: as many as the limits allow.
    quantization_config: of all its tables.
    dtype: of the table. No leaf of the pytree, as programs depend on it.
    placement: of its tables. No leaf either.
  """

  stack_name: str
  stack_vocab_size: int
  stack_embedding_dim: int
  optimizer: optimizer_spec.OptimizerSpec
  combiner: str
  total_sample_count: int
  max_ids_per_partition: int = 256
  max_unique_ids_per_partition: int = 256
  activation_mem_bytes_limit: int = DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
  suggested_coo_buffer_size_per_device: int | None = None
  quantization_config: QuantizationConfig | None = None
  dtype: np.dtype = dataclasses.field(
      default=np.dtype(np.float32), metadata=dict(static=True)
  )
  placement: str = dataclasses.field(
      default="sparsecore", metadata=dict(static=True)
  )

  @property
  def is_replicated(self) -> bool:
    """Whether each device has all rows."""
    return self.placement == "tensorcore"

  @functools.cached_property  # every batch asks for them
  def partition_limits(self) -> layout.PartitionLimits:
    return layout.PartitionLimits(
        self.max_ids_per_partition, self.max_unique_ids_per_partition
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


class _Stamped:
  """Base of specs whose attributes can be set.

  Attributes:
    _stamp: an object that stands for what the attributes are, for as long as
      none is set; lists in them may still change. Copies have the same one.
  """

  _stamp: object

  def __setattr__(self, name: str, value: Any) -> None:
    # One for the moment when others may see the old value or the new one.
    super().__setattr__("_stamp", object())
    super().__setattr__(name, value)
    super().__setattr__("_stamp", object())

  def __delattr__(self, name: str) -> None:
    super().__delattr__(name)
    super().__setattr__("_stamp", object())


@dataclasses.dataclass(kw_only=True, eq=True, unsafe_hash=True)
class TableSpec(_Stamped, pickles.Pickled):
  """An embedding matrix, [vocabulary_size, embedding_dim].

  Attributes cannot be changed once the table is in a stack.

  Attributes:
    name: unlike that of any other table.
    vocabulary_size: rows; ids are below.
    embedding_dim: columns.
    initializer: called as initializer(key, shape), or without arguments for an
      array that has the whole table. Default: normal, such that rows have about
      length 1.
    optimizer: how rows are updated, such as SGDOptimizerSpec(learning_rate).
    combiner: how the rows of a sample become one: "sum", "mean" (sum / sum of
      weights) or "sqrtn" (sum / root of the sum of squared weights).
    max_ids_per_partition: ids that one SparseCore may send to another in a
      batch. Stacks of several tables have limits of their own.
    max_unique_ids_per_partition: the same for distinct rows.
    suggested_coo_buffer_size_per_device: COO cells of a device's input buffer;
      None: as many as the limits allow.
    quantization_config: rounds rows that are looked up; None: does not.
    dtype: float32, bfloat16 or float16, by name or as a type. Slots,
      activations and gradients are float32.
    placement: "sparsecore", rows are split over devices; or "tensorcore", each
      device has all rows and looks them up by a product with a one-hot matrix,
      which suits tables of up to a few thousand rows. Such a table is in a
      stack of its own.

  Raises:
    ValueError: if a field has a value that no table can have.
    TypeError: if a field has the wrong type.
  """

  name: str
  vocabulary_size: int
  embedding_dim: int
  initializer: CallableTableInitializer = default_initializer
  optimizer: optimizer_spec.OptimizerSpec
  combiner: str = "sum"
  max_ids_per_partition: int = 256
  max_unique_ids_per_partition: int = 256
  suggested_coo_buffer_size_per_device: int | None = None
  quantization_config: QuantizationConfig | None = None
  dtype: np.typing.DTypeLike = np.dtype(np.float32)
  placement: Literal["sparsecore", "tensorcore"] = "sparsecore"

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
      value = _as_table_dtype(f"Table {self.name!r}", value)
    if name in _TABLE_CHECKS:
      owner = "Table" if name == "name" else f"Table {self.name!r}"
      _TABLE_CHECKS[name](owner, name, value)
    super().__setattr__(name, value)

  def is_stacked(self) -> bool:
    return self._stacked_table_spec is not None

  @property
  def is_replicated(self) -> bool:
    """Whether each device has all rows."""
    return self.placement == "tensorcore"

  def num_shards_of(self, num_scs: int) -> int:
    """Into how many shards a job of `num_scs` SparseCores splits the rows."""
    return 1 if self.is_replicated else num_scs

  def _pickled_as(self) -> str:
    return f"Table {self.name!r}"

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
class FeatureSpec(_Stamped):
  """An input column and the table that its ids are looked up in.

  Hashable, and so usable as a static argument of jit, if the shapes are tuples.

  Attributes:
    name: unlike that of any other feature.
    table_spec: the table; features may share one.
    input_shape: (global batch, ids per sample). Ragged input may leave out the
      second.
    output_shape: (global batch, ..., embedding_dim): one vector per entry but
      the last, so (batch, positions, embedding_dim) looks up every position by
      itself. The batch is what stacks are planned for; others can be looked up.
      Sizes but the last may be None where raw ids tell: in layers.
    out_of_range_ids: what to do with ids that are not rows of the table:
      "error"; "drop" them, as if they were not in the sample, and count them;
      "clamp", take the nearest row; or "modulo" vocabulary_size.
    non_finite_weights: what to do with weights that are infinite or NaN:
      "error", also for weights that combiner "mean" or "sqrtn" divides by
      more than float32 can hold; "drop" the id; "clamp" to the largest
      float32, NaN to 0; or "keep" them.

  Raises:
    ValueError: if a field has a value that no feature can have.
    TypeError: if a field has the wrong type.
  """

  name: str
  table_spec: TableSpec
  input_shape: Sequence[int | None]
  output_shape: Sequence[int | None]
  out_of_range_ids: str = "error"
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

  def __post_init__(self):
    check_width(self)

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


def features_of(feature_specs: Nested[FeatureSpec]) -> list[FeatureSpec]:
  """The leaves of a tree of feature specs.

  Raises:
    TypeError: if one is something else, such as a TableSpec.
  """
  features = jax.tree.leaves(feature_specs)
  # Programs may have a class of their own.
  if not all(hasattr(feature, "table_spec") for feature in features):
    path, other = next(
        (path, leaf)
        for path, leaf in jax.tree.leaves_with_path(feature_specs)
        if not hasattr(leaf, "table_spec")
    )
    raise TypeError(
        f"feature_specs{jax.tree_util.keystr(path)} must be a FeatureSpec, got"
        f" {other!r}."
    )
  return features


def check_width(feature: FeatureSpec) -> None:
  """Raises ValueError if activations are wider than rows; fewer columns are fine.

  In the constructor, and once more where specs, whose fields can be set, are
  used.
  """
  table = feature.table_spec
  if feature.output_shape[-1] > table.embedding_dim:
    raise ValueError(
        f"Feature {feature.name!r}: output_shape {tuple(feature.output_shape)}"
        f" is wider than the embedding_dim {table.embedding_dim} of table"
        f" {table.name!r}. End output_shape with {table.embedding_dim}, or make"
        " the table wider."
    )


# Fields of a table that its stack has for all of its tables.
_SHARED_FIELDS = (
    "optimizer",
    "combiner",
    "quantization_config",
    "dtype",
    "placement",
)


def check_is_as_stacked(table: TableSpec) -> None:
  """Raises ValueError if a table has something else than its stack.

  As a copy has, of a spec that was stacked: what its stack has would hold.
  """
  stack = table.stacked_table_spec
  for field in _SHARED_FIELDS:
    values = getattr(table, field), getattr(stack, field)
    if values[0] != values[1]:
      raise ValueError(
          f"Table {table.name!r} has {field} {values[0]!r}, but its stack"
          f" {stack.stack_name!r} has {values[1]!r}." + _how_to_change(field)
      )


def check_planned_for(tables: Iterable[TableSpec], num_shards: int) -> None:
  """Checks that tables were planned for this many shards.

  Where a row is depends on their number: with another one, ids would find the
  rows of other ids.

  Args:
    tables: that are looked up.
    num_shards: SparseCores of the job.

  Raises:
    ValueError: if a table was planned for another number, or for fewer rows.
  """
  for table in tables:
    setting = table.setting_in_stack
    planned = setting.num_shards
    if planned is None:
      continue
    # As of a copy that was given more rows, whose ids would find those of
    # other tables.
    if table.vocabulary_size > setting.padded_vocab_size:
      raise ValueError(
          f"Table {table.name!r} has vocabulary_size {table.vocabulary_size},"
          f" and its plan {setting.padded_vocab_size} rows. Stack or prepare a"
          " new spec: dataclasses.replace(table, _stacked_table_spec=None,"
          " _setting_in_stack=None)."
      )
    # Replicated tables are the same for any number.
    if not table.is_replicated and planned != num_shards:
      raise ValueError(
          f"Table {table.name!r} was prepared for {planned} SparseCores in all,"
          f" and is used with {num_shards}. Pass the same global_device_count"
          " and num_sc_per_device everywhere, or prepare new specs."
      )


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


def _as_table_dtype(owner: str, dtype: Any) -> np.dtype:
  """The type of a table's values.

  Raises:
    ValueError: if `dtype` is another type.
    TypeError: if it is none.
  """
  names = [np.dtype(choice).name for choice in low_precision.TABLE_DTYPES]
  try:
    result = np.dtype(dtype)
  except TypeError as error:
    raise TypeError(
        f"{owner}: dtype must be one of {', '.join(names)}, got {dtype!r}."
    ) from error
  if result.name not in names:
    raise ValueError(
        f"{owner}: dtype must be one of {', '.join(names)}, got {dtype!r}."
    )
  return result


def _check_input_shape(owner: str, field: str, shape: Any) -> None:
  field_checks.check_shape(
      owner, field, shape, may_be_none=lambda unused_axis: True
  )
  if not shape:
    raise ValueError(
        f"{owner}: {field} must be (batch, ids per sample) or (batch,), got"
        f" {shape!r}."
    )


def _check_output_shape(owner: str, field: str, shape: Any) -> None:
  field_checks.check_shape(
      owner, field, shape, may_be_none=lambda axis: axis < len(shape) - 1
  )
  if len(shape) < 2:
    raise ValueError(
        f"{owner}: {field} must be (batch, ..., embedding_dim), got {shape!r}."
    )


_TABLE_CHECKS: Mapping[str, field_checks.Check] = {
    "name": field_checks.check_name,
    "vocabulary_size": field_checks.check_positive,
    "embedding_dim": field_checks.check_count,
    "initializer": field_checks.check_callable,
    "optimizer": field_checks.instance_of(optimizer_spec.OptimizerSpec),
    "combiner": field_checks.one_of(raw_ids.COMBINERS),
    "max_ids_per_partition": field_checks.check_count,
    "max_unique_ids_per_partition": field_checks.check_count,
    "suggested_coo_buffer_size_per_device": field_checks.optional(
        field_checks.check_count
    ),
    "quantization_config": field_checks.optional(
        field_checks.instance_of(QuantizationConfig)
    ),
    "placement": field_checks.one_of(PLACEMENTS),
}
_FEATURE_CHECKS: Mapping[str, field_checks.Check] = {
    "name": field_checks.check_name,
    "table_spec": field_checks.instance_of(TableSpec),
    "input_shape": _check_input_shape,
    "output_shape": _check_output_shape,
    "out_of_range_ids": field_checks.one_of(raw_ids.ID_POLICIES),
    "non_finite_weights": field_checks.one_of(raw_ids.WEIGHT_POLICIES),
}
