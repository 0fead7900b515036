# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Specs to and from the wire format, lib/proto/embedding_spec.proto."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import _optimizer_specs
from jax_tpu_embedding.sparsecore.lib.nn import _specs
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb

_OptimizerProto = pb.OptimizerSpecProto

# To add an optimizer to the wire format, give it a type there and a row here.
_OPTIMIZER_CLASSES: dict[int, type[_optimizer_specs.OptimizerSpec]] = {
    _OptimizerProto.SGD: _optimizer_specs.SGDOptimizerSpec,
    _OptimizerProto.ADAGRAD: _optimizer_specs.AdagradOptimizerSpec,
    _OptimizerProto.ADAM: _optimizer_specs.AdamOptimizerSpec,
}


def get_optimizer_class(
    optimizer_type: int,
) -> type[_optimizer_specs.OptimizerSpec] | None:
  """The spec class of a type, or None if it has none."""
  return _OPTIMIZER_CLASSES.get(optimizer_type)


def get_optimizer_type(
    optimizer_class: type[_optimizer_specs.OptimizerSpec],
) -> int:
  """The type of a spec class: CUSTOM for any that has none, subclasses too."""
  for optimizer_type, known_class in _OPTIMIZER_CLASSES.items():
    if optimizer_class is known_class:
      return optimizer_type
  return _OptimizerProto.CUSTOM


def optimizer_spec_to_proto(
    optimizer: _optimizer_specs.OptimizerSpec | None,
) -> _OptimizerProto | None:
  """The message of a spec; None for None.

  A learning rate that is a function is named, by its attribute `tag` if it has
  one. Parameters of an optimizer without a type are left out.
  """
  if optimizer is None:
    return None
  message = _OptimizerProto(type=get_optimizer_type(type(optimizer)))
  rate = optimizer.learning_rate
  if callable(rate):
    message.learning_rate_tag = _tag(rate)
  else:
    message.learning_rate = float(rate)
  if message.type != _OptimizerProto.CUSTOM:
    message.float_params.update(optimizer.get_float_params())
    message.bool_params.update(optimizer.get_bool_params())
  return message


def proto_to_optimizer_spec(
    message: _OptimizerProto | None,
) -> _optimizer_specs.OptimizerSpec:
  """The spec of a message.

  A learning rate that was a function becomes a CallablePlaceholder. Where the
  message does not say which optimizer it was (no message, no type, CUSTOM) the
  result is SGD.

  Raises:
    ValueError: if the message has a type that this version does not know.
  """
  if message is None:
    return _optimizer_specs.SGDOptimizerSpec(learning_rate=0.0)
  if message.WhichOneof("learning_rate_spec") == "learning_rate_tag":
    rate = _optimizer_specs.CallablePlaceholder(message.learning_rate_tag)
  else:
    rate = message.learning_rate
  optimizer_class = get_optimizer_class(message.type)
  if optimizer_class is not None:
    return optimizer_class.from_float_and_bool_params(
        message.float_params, message.bool_params, rate
    )
  if message.type in (
      _OptimizerProto.OPTIMIZER_TYPE_UNSPECIFIED,
      _OptimizerProto.CUSTOM,
  ):
    return _optimizer_specs.SGDOptimizerSpec(learning_rate=rate)
  known = map(_OptimizerProto.OptimizerType.Name, _OPTIMIZER_CLASSES)
  raise ValueError(
      f"Optimizer type {message.type} is not one of those known:"
      f" {', '.join(known)}. The message was written by another version of the"
      " package."
  )


def create_proto_from_feature_specs(
    feature_specs: _specs.Nested[_specs.FeatureSpec],
    global_device_count: int | None,
    num_sparsecore_per_device: int | None = None,
) -> pb.EmbeddingSpecProto:
  """The message of stacked or prepared specs.

  Stacks, and tables in a stack, are in the order in which features first name
  them. Suggested buffer sizes and quantization have no place in the message.

  Args:
    feature_specs: a tree of FeatureSpecs.
    global_device_count: devices of all processes; None: those of this JAX.
    num_sparsecore_per_device: default: those of the first JAX device.

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if the number of SparseCores is unknown or not positive.
  """
  if global_device_count is None:
    global_device_count = jax.device_count()
  num_sparsecores = global_device_count * hardware.resolve_num_sc_per_device(
      num_sparsecore_per_device
  )
  result = pb.EmbeddingSpecProto()
  stacks: dict[str, pb.StackedTableSpecProto] = {}
  tables: dict[str, pb.TableSpecProto] = {}
  for feature in jax.tree.leaves(feature_specs):
    table = feature.table_spec
    stack = table.stacked_table_spec
    if stack.stack_name not in stacks:
      stacks[stack.stack_name] = result.stacked_table_specs.add()
      _write_stack(stack, num_sparsecores, stacks[stack.stack_name])
    if table.name not in tables:
      tables[table.name] = stacks[stack.stack_name].table_specs.add()
      _write_table(table, tables[table.name])
    _write_feature(feature, tables[table.name].feature_specs.add())
  return result


def _write_stack(
    stack: _specs.StackedTableSpec,
    num_sparsecores: int,
    message: pb.StackedTableSpecProto,
) -> None:
  message.stack_name = stack.stack_name
  message.stack_vocab_size = stack.stack_vocab_size
  message.stack_embedding_dim = stack.stack_embedding_dim
  message.total_sample_count = stack.total_sample_count
  message.max_ids_per_partition = stack.max_ids_per_partition
  message.max_unique_ids_per_partition = stack.max_unique_ids_per_partition
  message.num_sparsecores = num_sparsecores
  message.activation_mem_bytes_limit = stack.activation_mem_bytes_limit


def _write_table(table: _specs.TableSpec, message: pb.TableSpecProto) -> None:
  setting = table.setting_in_stack
  message.table_name = table.name
  message.vocab_size = table.vocabulary_size
  message.embedding_dim = table.embedding_dim
  message.padded_vocab_size = setting.padded_vocab_size
  message.padded_embedding_dim = setting.padded_embedding_dim
  message.row_offset_in_shard = setting.row_offset_in_shard
  message.shard_rotation = setting.shard_rotation
  message.combiner = table.combiner
  message.optimizer.CopyFrom(optimizer_spec_to_proto(table.optimizer))


def _write_feature(
    feature: _specs.FeatureSpec, message: pb.FeatureSpecProto
) -> None:
  message.feature_name = feature.name
  message.input_shape.extend(feature.input_shape)
  message.output_shape.extend(feature.output_shape)
  message.row_offset = feature.id_transformation.row_offset
  message.col_offset = feature.id_transformation.col_offset
  message.col_shift = feature.id_transformation.col_shift


def _tag(schedule: Callable[..., Any]) -> str:
  """A name for a learning rate function."""
  tag = getattr(schedule, "tag", None)
  if tag:
    return str(tag)
  name = getattr(schedule, "__qualname__", None) or getattr(
      schedule, "__name__", None
  )
  if name is None or name == "<lambda>":
    return f"{type(schedule).__name__}_{id(schedule)}"
  module = getattr(schedule, "__module__", None)
  return f"{module}.{name}" if module else name
