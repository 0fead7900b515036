# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Saving: from the variables of a model to files."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from google.protobuf import json_format
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _table_variables
from jax_tpu_embedding.sparsecore.lib.checkpoint import _tables_json
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_proto_utils
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

CheckpointError = _row_blocks.CheckpointError

# Enough that the disk is never idle, little beside any table.
HOST_BUFFER_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Save:
  """What is to be saved; made and checked before any file is.

  Attributes:
    saved: what tables.json will say.
    source_of: the rows of each variable.
    host_buffer_bytes: rows that may wait to be written; None: all of them.
  """

  saved: _tables_json.SavedTables
  source_of: Mapping[_row_blocks.Variable, _row_blocks.RowSource]
  host_buffer_bytes: int | None = HOST_BUFFER_BYTES

  def __post_init__(self):
    if self.saved.compression not in _zarr_rows.COMPRESSIONS:
      raise ValueError(
          f"compression must be one of {_zarr_rows.COMPRESSIONS}, got"
          f" {self.saved.compression!r}."
      )
    if self.host_buffer_bytes is not None and self.host_buffer_bytes < 0:
      raise ValueError(
          "host_buffer_bytes must be None or at least 0, got"
          f" {self.host_buffer_bytes}."
      )
    _tables_json.check_names(self.saved)

  # To save is to ask for transfers, whatever a program forbids around it.
  @jax.transfer_guard("allow")
  def begin(self, path: str) -> Writing:
    """Reads all rows, and begins to write them to an empty directory.

    When this returns, the variables may change. With several processes it is a
    collective operation.
    """
    directory = _zarr_rows.Directory(path)
    agreement = _agreement.Agreement("checkpoint", [CheckpointError])
    # Reading rows is a collective operation, which all have to finish.
    window = _row_blocks.Window(
        self.host_buffer_bytes, keeps_errors=agreement.count > 1
    )
    with _progress.Progress("saving", self.saved.num_bytes) as progress:
      for variable, source in self.source_of.items():
        array = self.saved.array_format(variable)
        sink = None
        try:
          sink = directory.create_array(
              _tables_json.directory_of(variable),
              array,
              variable,
              with_metadata=agreement.is_first,
          )
        except CheckpointError as error:
          window.keep(error)
        _row_blocks.copy(progress.of(source), sink, array.ranges(), window)
    return Writing(directory, self.saved, window, agreement)


class Writing:
  """Files that are being written."""

  def __init__(
      self,
      directory: _zarr_rows.Directory,
      saved: _tables_json.SavedTables,
      window: _row_blocks.Window,
      agreement: _agreement.Agreement,
  ):
    self._agreement = agreement
    self._directory = directory
    self._saved = saved
    self._window = window

  def finish(self) -> None:
    """Waits for the rows, then writes tables.json: without it there is none.

    Raises:
      CheckpointError: something could not be written, by this process or by
        another one.
    """
    with self._agreement.stage():
      self._window.wait()
      self._directory.sync()
    if self._agreement.is_first:
      _tables_json.write(self._directory, self._saved)


def plan(
    variables: Mapping[str, Any],
    feature_specs: Any,
    *,
    step: int | None = None,
    slots: bool = True,
    host_buffer_bytes: int | None = HOST_BUFFER_BYTES,
    compression: str | None = None,
    num_sc_per_device: int | None = None,
    block_bytes: int = _row_blocks.BLOCK_BYTES,
) -> Save:
  """What to save; arguments as checkpoint.save has them."""
  if step is not None:
    step = _tables_json.as_step(step)
  of_model = _table_variables.TableVariables(
      variables, feature_specs, num_sc_per_device, with_slots=slots
  )
  tables = {}
  for name, table in of_model.tables.items():
    # The cut is that of a checkpoint with slots, whether they are saved or not.
    with_slots = _tables_json.saved_table(
        rows=table.vocabulary_size,
        columns=table.embedding_dim,
        dtype=table.dtype.name,
        slots=_table_variables.slot_columns(table),
        block_bytes=block_bytes,
        updates=of_model.updates(name),
        optimizer=_optimizer(table),
        combiner=table.combiner,
    )
    tables[name] = (
        with_slots if slots else dataclasses.replace(with_slots, slots={})
    )
  saved = _tables_json.SavedTables(
      tables=tables,
      step=step,
      compression=compression,
      embedding_spec=_embedding_spec(feature_specs, of_model),
  )
  return Save(
      saved=saved,
      source_of={
          variable: of_model.rows(variable) for variable in saved.variables()
      },
      host_buffer_bytes=host_buffer_bytes,
  )


def _embedding_spec(
    feature_specs: Any, of_model: _table_variables.TableVariables
) -> dict[str, Any]:
  """How the writer stacked its tables; empty if that cannot be written."""
  tables = embedding.get_table_specs(feature_specs)
  if not all(table.is_stacked() for table in tables.values()):
    return {}
  try:
    message = embedding.create_proto_from_feature_specs(
        feature_specs, of_model.num_shards, 1
    )
  except ValueError:
    # Of an optimizer that has no message. It is information, not state.
    return {}
  return _as_json(message)


def _optimizer(table: embedding_spec.TableSpec) -> dict[str, Any]:
  """An OptimizerSpecProto as JSON; empty if there is none."""
  try:
    return _as_json(
        embedding_proto_utils.optimizer_spec_to_proto(table.optimizer)
    )
  except ValueError:
    return {}


def _as_json(message: Any) -> dict[str, Any]:
  return json_format.MessageToDict(message, preserving_proto_field_name=True)
