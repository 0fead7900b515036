# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The tables of a message, planned for other devices; what fits the plan."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.wire import _spec_from_proto
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2 as pb

_FLOAT_BYTES = 4


def plan(
    message: pb.EmbeddingSpecProto,
    num_devices: int,
    num_sc_per_device: int,
    batch_size: int | None = None,
) -> tuple[pb.EmbeddingSpecProto, dict[str, embedding_spec.TableSpec]]:
  """The message and the tables of `message`, for other devices.

  A message that says what optimizer and combiner tables have is planned anew,
  as auto_stack_tables does: other tables may be stacked together than before.
  One of the first version does not; its stacks keep their tables.

  Args:
    message: as create_proto_from_feature_specs made it.
    num_devices: of the job.
    num_sc_per_device: SparseCores of each.
    batch_size: of the job; None: as it was.

  Raises:
    ValueError: a stack of a message of the first version has activations that
      do not fit.
  """
  tables = [
      t for stack in message.stacked_table_specs for t in stack.table_specs
  ]
  if any(t.combiner and t.HasField("optimizer") for t in tables):
    return _plan_anew(message, num_devices, num_sc_per_device, batch_size)
  return _keep_stacks(message, num_devices, num_sc_per_device)


def _plan_anew(message, num_devices, num_sc_per_device, batch_size):
  """As auto_stack_tables plans the features of the message."""
  features = collections.OrderedDict()
  limit = None
  for stack in message.stacked_table_specs:
    if limit is None and stack.HasField("activation_mem_bytes_limit"):
      limit = stack.activation_mem_bytes_limit
    for table in stack.table_specs:
      spec = _unplanned(table)
      for feature in table.feature_specs:
        name = feature.feature_name
        features[name] = embedding_spec.FeatureSpec(
            name=name,
            table_spec=spec,
            input_shape=_with_batch(
                _spec_from_proto.input_shape_from_proto(feature.input_shape),
                batch_size,
            ),
            output_shape=_with_batch(feature.output_shape, batch_size),
            **{
                field: getattr(feature, field)
                for field in ("out_of_range_ids", "non_finite_weights")
                if getattr(feature, field)
            },
        )
      if not table.feature_specs:
        name = f"feature_{spec.name}"
        batch = batch_size or stack.total_sample_count
        features[name] = embedding_spec.FeatureSpec(
            name=name,
            table_spec=spec,
            input_shape=(batch, 1),
            output_shape=(batch, spec.embedding_dim),
        )
  embedding.auto_stack_tables(
      features,
      num_devices,
      num_sc_per_device,
      activation_mem_bytes_limit=limit,
  )
  return (
      embedding.create_proto_from_feature_specs(
          features, num_devices, num_sc_per_device
      ),
      embedding.get_table_specs(features),
  )


def _unplanned(table: pb.TableSpecProto) -> embedding_spec.TableSpec:
  """The table of a message as its user declared it."""
  quantization = None
  if table.HasField("quantization"):
    quantization = embedding_spec.QuantizationConfig(
        min_value=table.quantization.min_value,
        max_value=table.quantization.max_value,
        num_buckets=table.quantization.num_buckets,
    )
  optimizer = embedding_proto_utils.proto_to_optimizer_spec(
      table.optimizer if table.HasField("optimizer") else None
  )
  return embedding_spec.TableSpec(
      name=table.table_name,
      vocabulary_size=table.vocab_size,
      embedding_dim=table.embedding_dim,
      optimizer=optimizer,
      combiner=table.combiner or "mean",
      quantization_config=quantization,
      **{
          field: getattr(table, field)
          for field in (
              "dtype",
              "max_ids_per_partition",
              "max_unique_ids_per_partition",
              "placement",
          )
          if getattr(table, field)
      },
  )


def _with_batch(shape, batch_size: int | None) -> tuple[int | None, ...]:
  first, *others = shape
  return (batch_size or first, *others)


def _keep_stacks(message, num_devices, num_sc_per_device):
  """The same stacks, laid out for other shards."""
  num_scs = num_devices * num_sc_per_device
  result = pb.EmbeddingSpecProto()
  result.CopyFrom(message)
  specs = {}
  for stack in result.stacked_table_specs:
    _check_activations(stack, num_scs)
    # Messages list tables in the order of features.
    order = sorted(
        stack.table_specs, key=lambda table: table.row_offset_in_shard
    )
    unplanned = {table.table_name: _unplanned(table) for table in order}
    dims, rows = table_stacking.round_up_dim_and_vocab_size(unplanned, num_scs)
    stack.stack_embedding_dim = max(dims.values())
    stack.stack_vocab_size = sum(rows.values())
    stack.num_sparsecores = num_scs
    settings = table_stacking.compute_table_to_setting_in_stack(
        stack.stack_name,
        list(unplanned),
        stack.stack_embedding_dim,
        rows,
        num_scs,
        num_sc_per_device,
    )
    for table in stack.table_specs:
      setting = settings[table.table_name]
      table.padded_vocab_size = setting.padded_vocab_size
      table.padded_embedding_dim = setting.padded_embedding_dim
      table.row_offset_in_shard = setting.row_offset_in_shard
      table.shard_rotation = setting.shard_rotation
      spec = unplanned[table.table_name]
      specs[table.table_name] = embedding_spec.TableSpec(
          **{
              field: getattr(spec, field)
              for field in (
                  "name",
                  "vocabulary_size",
                  "embedding_dim",
                  "optimizer",
                  "combiner",
                  "dtype",
              )
          },
          _setting_in_stack=dataclasses.replace(setting, num_shards=num_scs),
          _stacked_table_spec=embedding_spec.StackedTableSpec(
              stack_name=stack.stack_name,
              stack_vocab_size=stack.stack_vocab_size,
              stack_embedding_dim=stack.stack_embedding_dim,
              optimizer=spec.optimizer,
              combiner=spec.combiner,
              total_sample_count=stack.total_sample_count,
              max_ids_per_partition=stack.max_ids_per_partition,
              max_unique_ids_per_partition=stack.max_unique_ids_per_partition,
              dtype=spec.dtype,
          ),
      )
  return result, specs


def _check_activations(stack: pb.StackedTableSpecProto, num_scs: int) -> None:
  if len(stack.table_specs) < 2:
    return
  needed = (
      -(-stack.total_sample_count // num_scs)
      * stack.stack_embedding_dim
      * _FLOAT_BYTES
  )
  limit = embedding_spec.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
  if stack.HasField("activation_mem_bytes_limit"):
    limit = stack.activation_mem_bytes_limit
  if needed > limit:
    raise ValueError(
        f"Stack {stack.stack_name!r}: its activations take {needed} bytes on"
        f" each of {num_scs} SparseCores, and the limit is {limit}. Its message"
        " is of the first version, by which tables cannot be planned anew."
        " Pass target_feature_specs with a plan for these devices."
    )


def check_same_tables(
    saved: _tables_json.SavedTables,
    placements: Sequence[_placement.StackPlacement],
) -> None:
  """Raises ValueError unless stacks have the tables of a checkpoint."""
  planned = {
      table.name: (table.vocabulary_size, table.embedding_dim)
      for placement in placements
      for table in placement.tables
  }
  there = {
      name: (table.rows, table.columns) for name, table in saved.tables.items()
  }
  differing = sorted(
      name
      for name in {*planned, *there}
      if planned.get(name) != there.get(name)
  )
  if differing:
    raise ValueError(
        "The tables of the checkpoint and of the specs differ: "
        + "; ".join(
            f"{name!r}: {_shape(there.get(name))} in the checkpoint,"
            f" {_shape(planned.get(name))} in the specs"
            for name in differing
        )
        + ". Convert to the logical layout, and restore with a policy."
    )
  for placement in placements:
    tables = {
        table.name: saved.tables[table.name] for table in placement.tables
    }
    widest = max(tables.values(), key=lambda table: table.columns)
    kinds = {
        # Tables of one column do not tell whether a row has one number of a
        # slot, or each column.
        name: (
            table.dtype,
            tuple(table.slots),
            _slots_of_rows(widest if table.columns == 1 else table),
        )
        for name, table in tables.items()
    }
    if len(set(kinds.values())) > 1:
      described = "; ".join(
          f"{name!r}: {_kind(table.dtype, table.slots)}"
          for name, table in tables.items()
      )
      raise ValueError(
          f"Stack {placement.name!r}: its tables have different types or slots"
          f" in the checkpoint, {described}. Tables of different types or"
          " optimizers cannot be stacked together: pass feature_specs with"
          " these tables in stacks of their own."
      )


def _slots_of_rows(table: _tables_json.SavedTable) -> frozenset[str]:
  """The slots of which a row has one number."""
  return frozenset(
      slot for slot, columns in table.slots.items() if columns < table.columns
  )


def check_same_kinds(
    saved: _tables_json.SavedTables,
    specs: Mapping[str, embedding_spec.TableSpec],
) -> None:
  """Checks types and slots, which a stacked checkpoint has as they are."""
  differing = []
  for name, table in saved.tables.items():
    dtype = specs[name].dtype.name
    slots = _table_variables.slot_columns(specs[name])
    # A checkpoint may have been saved without slots.
    if table.dtype != dtype or (table.slots and dict(table.slots) != slots):
      differing.append(
          f"{name!r}: {_kind(table.dtype, table.slots)} in the checkpoint,"
          f" {_kind(dtype, slots)} in the specs"
      )
  if differing:
    raise ValueError(
        "The types or slots of tables in the checkpoint and of the specs"
        f" differ: {'; '.join(differing)}. Pass specs as those that it was"
        " saved with, or convert to the logical layout: checkpoint.restore"
        " converts types, and with RestorePolicy(slots='reset') begins with new"
        " slots."
    )


def _kind(dtype: str, slots: Mapping[str, int]) -> str:
  of_slots = (f"{slot} ({columns} columns)" for slot, columns in slots.items())
  return f"{dtype}, slots {', '.join(of_slots) or 'none'}"


def _shape(shape: tuple[int, int] | None) -> str:
  return "none" if shape is None else f"{shape[0]} x {shape[1]}"
