# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Prepared feature specs to the wire format, lib/proto/embedding_spec.proto.

A message holds all of the specs but the functions in them: initializers, which
a reader brings by the name of their table, and functions of optimizers, which
it brings by their tags. The other direction is in _spec_from_proto.py.
"""

from __future__ import annotations

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.wire import _callable_tags
from jax_tpu_embedding.sparsecore.lib.nn.wire import _optimizers_as_proto
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb


def create_proto_from_feature_specs(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int | None,
    num_sparsecore_per_device: int | None = None,
) -> pb.EmbeddingSpecProto:
  """The message of stacked or prepared specs.

  Stacks, and tables in a stack, are in the order in which features first name
  them.

  Args:
    feature_specs: a tree of FeatureSpecs.
    global_device_count: devices of all processes; None: those of this JAX.
    num_sparsecore_per_device: default: those of the first JAX device.

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if the number of SparseCores is unknown, not positive, or not
      the one that the specs were prepared for; or if two features have one
      name, tables or stacks of one name differ, a table differs from its stack,
      or an optimizer cannot be written.
  """
  if global_device_count is None:
    global_device_count = jax.device_count()
  num_sparsecores = global_device_count * hardware.resolve_num_sc_per_device(
      num_sparsecore_per_device
  )
  tags = _callable_tags.CallableTags()
  # By name, in the order of features.
  stacks: dict[str, pb.StackedTableSpecProto] = {}
  tables: dict[str, pb.TableSpecProto] = {}
  features: dict[str, list[pb.FeatureSpecProto]] = {}  # by table
  members: dict[str, list[str]] = {}  # table names by stack
  feature_names = set()
  for position, feature in enumerate(_tables.features_of(feature_specs)):
    if feature.name in feature_names:
      raise ValueError(
          f"Feature spec {feature.name} is already defined. Rename one of the"
          " two."
      )
    feature_names.add(feature.name)
    table = feature.table_spec
    stack = table.stacked_table_spec
    num_shards = table.num_shards_of(num_sparsecores)
    _check_planned_alike(table, num_shards)
    _put(stacks, "Stack", stack.stack_name, _stack(stack, num_shards))
    if _put(tables, "Table", table.name, _table(table, tags)):
      members.setdefault(stack.stack_name, []).append(table.name)
    features.setdefault(table.name, []).append(_feature(feature, position))

  names = [name for stack in stacks for name in members[stack]]
  _drop_positions([f for name in names for f in features[name]])
  for name, table in tables.items():
    table.feature_specs.extend(features[name])
  for name, stack in stacks.items():
    stack.table_specs.extend(tables[member] for member in members[name])
  return pb.EmbeddingSpecProto(stacked_table_specs=stacks.values())


def _put(known, kind: str, name: str, message) -> bool:
  """Adds a message by its name, if it is new; returns whether it is."""
  if name not in known:
    known[name] = message
    return True
  if known[name] != message:
    raise ValueError(
        f"{kind} {name!r} has two specs that differ:\n{known[name]}and"
        f"\n{message}Give the features one spec, or two names."
    )
  return False


def _check_planned_alike(
    table: _tables.TableSpec, num_sparsecores: int
) -> None:
  """Checks that the message can say of both what it says once."""
  planned = table.setting_in_stack.num_shards
  if planned not in (None, num_sparsecores):
    raise ValueError(
        f"Table {table.name!r} was prepared for {planned} SparseCores in all,"
        f" not for {num_sparsecores}. Pass the same global_device_count and"
        " number of SparseCores per device as when preparing."
    )
  _tables.check_is_as_stacked(table)


def _stack(
    stack: _tables.StackedTableSpec, num_sparsecores: int
) -> pb.StackedTableSpecProto:
  return pb.StackedTableSpecProto(
      stack_name=stack.stack_name,
      stack_vocab_size=stack.stack_vocab_size,
      stack_embedding_dim=stack.stack_embedding_dim,
      total_sample_count=stack.total_sample_count,
      max_ids_per_partition=stack.max_ids_per_partition,
      max_unique_ids_per_partition=stack.max_unique_ids_per_partition,
      num_sparsecores=num_sparsecores,
      activation_mem_bytes_limit=stack.activation_mem_bytes_limit,
      suggested_coo_buffer_size_per_device=(
          stack.suggested_coo_buffer_size_per_device
      ),
  )


def _table(
    table: _tables.TableSpec, tags: _callable_tags.CallableTags
) -> pb.TableSpecProto:
  setting = table.setting_in_stack
  quantization = table.quantization_config
  message = pb.TableSpecProto(
      table_name=table.name,
      vocab_size=table.vocabulary_size,
      embedding_dim=table.embedding_dim,
      padded_vocab_size=setting.padded_vocab_size,
      padded_embedding_dim=setting.padded_embedding_dim,
      row_offset_in_shard=setting.row_offset_in_shard,
      shard_rotation=setting.shard_rotation,
      combiner=table.combiner,
      optimizer=_optimizers_as_proto.optimizer_spec_to_proto(
          table.optimizer, tags
      ),
      suggested_coo_buffer_size_per_device=(
          table.suggested_coo_buffer_size_per_device
      ),
      quantization=None
      if quantization is None
      else pb.QuantizationProto(
          min_value=quantization.min_value,
          max_value=quantization.max_value,
          num_buckets=quantization.num_buckets,
      ),
  )
  if table.dtype != _tables.TableSpec.dtype:
    message.dtype = table.dtype.name
  if table.placement != _tables.TableSpec.placement:
    message.placement = table.placement
  for field in ("max_ids_per_partition", "max_unique_ids_per_partition"):
    limit = getattr(table, field)
    if limit != getattr(_tables.TableSpec, field):
      setattr(message, field, limit)
  return message


def _feature(
    feature: _tables.FeatureSpec, position: int
) -> pb.FeatureSpecProto:
  transformation = feature.id_transformation
  message = pb.FeatureSpecProto(
      feature_name=feature.name,
      # Not 0: whoever multiplies sizes is to notice one that is not given.
      input_shape=[
          -1 if size is None else size for size in feature.input_shape
      ],
      output_shape=feature.output_shape,
      row_offset=transformation.row_offset,
      col_offset=transformation.col_offset,
      col_shift=transformation.col_shift,
      position=position,
  )
  for field in ("out_of_range_ids", "non_finite_weights"):
    policy = getattr(feature, field)
    if policy != getattr(_tables.FeatureSpec, field):
      setattr(message, field, policy)
  return message


def _drop_positions(features: list[pb.FeatureSpecProto]) -> None:
  """Removes positions that are those in the message."""
  if [f.position for f in features] == list(range(len(features))):
    for feature in features:
      feature.ClearField("position")
