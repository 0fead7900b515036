# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Prepared specs from the wire format, lib/proto/embedding_spec.proto."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.wire import _message_checks
from jax_tpu_embedding.sparsecore.lib.nn.wire import _optimizers_as_proto
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb


def feature_specs_from_proto(
    message: pb.EmbeddingSpecProto,
    *,
    initializers: Mapping[str, _tables.CallableTableInitializer] | None = None,
    callables: Mapping[str, Callable[..., Any]] | None = None,
    trust_programs: bool = False,
) -> list[_tables.FeatureSpec]:
  """The specs that a message was made from, with their plan.

  Args:
    message: as create_proto_from_feature_specs made it, or an earlier version.
    initializers: table name -> initializer, which a message cannot hold.
      Others have the default of TableSpec.
    callables: see proto_to_optimizer_spec.
    trust_programs: whether custom optimizers may run the programs that the
      message holds; see proto_to_optimizer_spec.

  Returns:
    The features in the order of the leaves of the tree that was written. Their
    shapes are tuples. Features of one table share its spec.

  Raises:
    ValueError: if the message does not describe valid specs, or `initializers`
      has a table that it does not have.
  """
  tables = table_specs_from_proto(
      message,
      initializers=initializers,
      callables=callables,
      trust_programs=trust_programs,
  )
  features: list[tuple[int, _tables.FeatureSpec]] = []
  names = set()
  for _, table in _tables_of(message):
    for feature in table.feature_specs:
      if feature.feature_name in names:
        raise ValueError(
            f"The message has two features {feature.feature_name!r}."
        )
      names.add(feature.feature_name)
      position = (
          feature.position if feature.HasField("position") else len(features)
      )
      spec = _feature(feature, tables[table.table_name])
      features.append((position, spec))
  return [spec for _, spec in sorted(features, key=lambda pair: pair[0])]


def table_specs_from_proto(
    message: pb.EmbeddingSpecProto,
    *,
    initializers: Mapping[str, _tables.CallableTableInitializer] | None = None,
    callables: Mapping[str, Callable[..., Any]] | None = None,
    trust_programs: bool = False,
) -> dict[str, _tables.TableSpec]:
  """The tables of a message by name, in its order, with their plan.

  Arguments and errors are those of feature_specs_from_proto.
  """
  initializers = initializers or {}
  known = [table.table_name for _, table in _tables_of(message)]
  unknown = sorted(set(initializers) - set(known))
  if unknown:
    raise ValueError(
        f"initializers has the tables {unknown}, which the message does not"
        f" have. It has {sorted(known)}."
    )
  _message_checks.check_message(message)
  tables = {}
  for stack, table in _tables_of(message):
    if table.table_name in tables:
      raise ValueError(f"The message has two tables {table.table_name!r}.")
    tables[table.table_name] = _table(
        table,
        stack,
        initializers.get(table.table_name, _tables.default_initializer),
        callables,
        trust_programs,
    )
  return tables


def _tables_of(
    message: pb.EmbeddingSpecProto,
) -> Iterator[tuple[pb.StackedTableSpecProto, pb.TableSpecProto]]:
  for stack in message.stacked_table_specs:
    for table in stack.table_specs:
      yield stack, table


def _table(
    message: pb.TableSpecProto,
    stack: pb.StackedTableSpecProto,
    initializer: _tables.CallableTableInitializer,
    callables: Mapping[str, Callable[..., Any]] | None,
    trust_programs: bool,
) -> _tables.TableSpec:
  table = _tables.TableSpec(
      name=message.table_name,
      vocabulary_size=message.vocab_size,
      embedding_dim=message.embedding_dim,
      initializer=initializer,
      optimizer=_optimizers_as_proto.proto_to_optimizer_spec(
          message.optimizer if message.HasField("optimizer") else None,
          callables,
          trust_programs=trust_programs,
      ),
      suggested_coo_buffer_size_per_device=_optional(
          message, "suggested_coo_buffer_size_per_device"
      ),
      quantization_config=_quantization(message),
      _setting_in_stack=_tables.TableSettingInStack(
          stack_name=stack.stack_name,
          padded_vocab_size=message.padded_vocab_size,
          padded_embedding_dim=message.padded_embedding_dim,
          row_offset_in_shard=message.row_offset_in_shard,
          shard_rotation=message.shard_rotation,
          num_shards=stack.num_sparsecores,
      ),
      **_unless_default(
          message,
          "combiner",
          "dtype",
          "max_ids_per_partition",
          "max_unique_ids_per_partition",
          "placement",
      ),
  )
  table.stacked_table_spec = _stack(stack, table)
  return table


def _stack(
    message: pb.StackedTableSpecProto, table: _tables.TableSpec
) -> _tables.StackedTableSpec:
  limit = _optional(message, "activation_mem_bytes_limit")
  return _tables.StackedTableSpec(
      stack_name=message.stack_name,
      stack_vocab_size=message.stack_vocab_size,
      stack_embedding_dim=message.stack_embedding_dim,
      optimizer=table.optimizer,
      combiner=table.combiner,
      total_sample_count=message.total_sample_count,
      max_ids_per_partition=message.max_ids_per_partition,
      max_unique_ids_per_partition=message.max_unique_ids_per_partition,
      activation_mem_bytes_limit=(
          _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT if limit is None else limit
      ),
      suggested_coo_buffer_size_per_device=_optional(
          message, "suggested_coo_buffer_size_per_device"
      ),
      quantization_config=table.quantization_config,
      dtype=table.dtype,
      placement=table.placement,
  )


def _feature(
    message: pb.FeatureSpecProto, table: _tables.TableSpec
) -> _tables.FeatureSpec:
  return _tables.FeatureSpec(
      name=message.feature_name,
      table_spec=table,
      input_shape=input_shape_from_proto(message.input_shape),
      output_shape=tuple(message.output_shape),
      _id_transformation=_tables.FeatureIdTransformation(
          row_offset=message.row_offset,
          col_offset=message.col_offset,
          col_shift=message.col_shift,
      ),
      **_unless_default(message, "out_of_range_ids", "non_finite_weights"),
  )


def input_shape_from_proto(shape: Sequence[int]) -> tuple[int | None, ...]:
  """The input_shape of a message as that of a spec."""
  return tuple(None if size == -1 else size for size in shape)


def _quantization(
    message: pb.TableSpecProto,
) -> _tables.QuantizationConfig | None:
  if not message.HasField("quantization"):
    return None
  quantization = message.quantization
  return _tables.QuantizationConfig(
      min_value=quantization.min_value,
      max_value=quantization.max_value,
      num_buckets=quantization.num_buckets,
  )


def _optional(message: Any, field: str) -> int | None:
  return getattr(message, field) if message.HasField(field) else None


def _unless_default(message: Any, *fields: str) -> dict[str, Any]:
  """The fields that the message says; 0 and "" stand for the spec's default."""
  return {f: getattr(message, f) for f in fields if getattr(message, f)}
