# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The native calls for one CPU device (cc/ffi), as functions of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
import numpy as np

for _name, _handler in ffi_cpu.registrations().items():
  jax.ffi.register_ffi_target(_name, _handler, platform="cpu")

LOOKUP_TARGET = "jte_lookup_cpu"

Array = native_call.Array


def new_table(table: jax.ShapeDtypeStruct) -> jax.Array:
  """Zeros of that shape and type, in huge pages where the system has them."""
  return jax.ffi.ffi_call("jte_new_table_cpu", table)()


def random_bits(
    key: jax.Array, rows: jax.Array, width: jax.Array, num_columns: int
) -> jax.Array:
  """The bits that jax.random draws for rows of a table, u32[rows, columns].

  Args:
    key: u32[2], of jax.random.key_data.
    rows: numbers of rows of the table, u32[n].
    width: u32[], the columns of the table.
    num_columns: of the result, the first ones of each row.
  """
  bits = jax.ShapeDtypeStruct((rows.shape[0], num_columns), np.uint32)
  return jax.ffi.ffi_call(
      "jte_random_bits_cpu", bits, vmap_method="sequential"
  )(key, rows, width)


def lookup(
    coo: Sequence[Array],
    table: Array,
    params: dict[str, Any],
    *records: jax.Array,
    num_devices: int = 1,
) -> Sequence[Array]:
  """The lookup in [rows, D], or in rows of codes [rows, W].

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    table: of this device.
    params: of the lookup.
    *records: of all devices of one process; see shared_memory.py.
    num_devices: of one process, whose tables are read.
  """
  return native_call.call(
      LOOKUP_TARGET,
      (*coo, table, *records),
      [activations_of(table, params)],
      num_devices=np.int64(num_devices),
      **lookup_attributes(coo, params, num_devices),
  )


def lookup_attributes(
    coo: Sequence[Array], params: dict[str, Any], num_devices: int = 1
) -> dict[str, Any]:
  """What a call that looks up is told of buffers and rows."""
  return dict(
      **_layout(coo, params, num_devices), quantization=_quantization(params)
  )


def small_lookups(
    operations: Sequence[of_stacks.Operation],
) -> Sequence[native_call.Operand]:
  """The lookups in tables [rows, D] or [rows, W], none divided among threads.

  Args:
    operations: lookups with the same lookup_attributes.
  """
  *coo, _ = operations[0].operands
  return native_call.call(
      "jte_small_lookups_cpu",
      [x for operation in operations for x in operation.operands],
      [activations_of(x.operands[-1], x.params) for x in operations],
      stacks=_lines(x.scope for x in operations),
      **lookup_attributes(coo, operations[0].params),
  )


def activations_of(
    table: Array, params: dict[str, Any]
) -> jax.core.ShapedArray:
  """What a lookup in [rows, D], or in rows of codes, writes: f32[samples, D]."""
  num_columns = params.get("int8_columns") or table.shape[1]
  shape = (params["device_batch_size"], num_columns)
  return jax.core.ShapedArray(shape, np.float32)


def unstack_activations(
    operands: Sequence[native_call.Operand], num_runs: int
) -> Sequence[Array]:
  """The activations of features, which have a part of each run of the stack."""
  return native_call.call(
      "jte_unstack_activations_cpu", operands, num_runs=np.int64(num_runs)
  )


def lookup_part(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    device: jax.Array,
    source: jax.Array,
    activations: jax.Array,
    num_devices: int,
) -> jax.Array:
  """`activations` and the rows of this table that are terms of theirs.

  Args:
    coo: buffers of the devices, one after the other, and minibatch count.
    table: of this device.
    params: of the lookup.
    device: the number of this one.
    source: that of the one with the activations; any other number: none.
    activations: f32[samples, D], the terms of the devices before this one.
    num_devices: that have sent their buffers.
  """
  (result,) = native_call.call(
      "jte_lookup_part_cpu",
      (*coo, table, device, source, activations),
      [activations_of(table, params)],
      aliases={len(coo) + 3: 0},
      num_devices=np.int64(num_devices),
      **_layout_of_all(coo, params, num_devices),
      quantization=_quantization(params),
  )
  return result


def update(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    *records: jax.Array,
    num_devices: int = 1,
) -> Sequence[Array]:
  """Table and slots after the update, in place where these are donated.

  Args:
    rule: with its options.
    operands: of the update; but with the parameter `rounding_shards`, see
      reference.update, rounding_seed is u32[2].
    params: of the update.
    *records: of all devices of one process, and the number of this one; see
      shared_memory.py.
    num_devices: of one process, whose entries are read.
  """
  layout_of_batch = _layout(operands.coo, params, num_devices)
  if rule.takes_rounding_seed and "rounding_shards" not in params:
    num_scs = layout_of_batch["num_sc_per_device"]
    params = params | dict(rounding_shards=(num_scs, num_scs))
    operands = operands._replace(
        rounding_seed=native_call.apply(
            lambda seed: jnp.stack([seed, jnp.uint32(0)]),
            operands.rounding_seed,
        )
    )
  return _step_rows(
      "jte_update_cpu",
      (*operands.coo, operands.gradient),
      rule,
      operands,
      params,
      *records,
      num_devices=np.int64(num_devices),
      **layout_of_batch,
  )


def update_attributes(
    rule: update_rules.UpdateRule,
    coo: Sequence[Array],
    params: dict[str, Any],
) -> dict[str, Any]:
  """What a call that steps `rule` on one device is told."""
  return dict(**optimizer_attributes(rule, params), **_layout(coo, params))


def small_updates(
    updates: Sequence[stacks.Update],
) -> Sequence[native_call.Operand]:
  """Tables and slots after the updates, none divided among threads.

  Args:
    updates: with the same update_attributes, and none that rounds at random.
  """
  first = updates[0]
  operands, tables, aliases = [], [], {}
  for update in updates:
    own = _operands_of_step(
        (*update.operands.coo, update.operands.gradient), update.operands
    )
    own_tables = (update.operands.table, *update.operands.slots)
    place = len(operands) + len(update.operands.coo) + 1
    aliases |= {place + k: len(tables) + k for k in range(len(own_tables))}
    operands += own
    tables += own_tables
  return native_call.call(
      "jte_small_updates_cpu",
      operands,
      [x.aval for x in tables],
      aliases=aliases,
      after_readers=True,
      num_stacks=np.int64(len(updates)),
      stacks=_lines(update.scope for update in updates),
      **update_attributes(first.rule, first.operands.coo, first.params),
  )


def update_batches(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    device: jax.Array,
    num_devices: int,
) -> Sequence[jax.Array]:
  """As `update`, from buffers and gradients of all devices.

  Args:
    rule: with its options.
    operands: of the update; row pointers, ids, samples, gains and gradient of
      the devices, one after the other, and the rest of this one.
    params: of the update.
    device: the number of this one.
    num_devices: that have sent theirs.
  """
  return _step_rows(
      "jte_update_batches_cpu",
      (*operands.coo, operands.gradient, device),
      rule,
      operands,
      params,
      num_devices=np.int64(num_devices),
      **_layout_of_all(operands.coo, params, num_devices),
  )


def update_received(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    rows: Sequence[jax.Array],
    gradients: Sequence[jax.Array],
) -> Sequence[jax.Array]:
  """As `update`, from the rows and gradients that each device has sent."""
  return _step_rows(
      "jte_update_received_cpu",
      (),
      rule,
      operands,
      params,
      *rows,
      *gradients,
      num_devices=np.int64(len(rows)),
  )


def _step_rows(
    target: str,
    batch: Sequence[Array],
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    *others: jax.Array,
    **attributes: Any,
) -> Sequence[Array]:
  """A call that steps `rule`; the operands of the optimizer follow `batch`."""
  tables = (operands.table, *operands.slots)
  return native_call.call(
      target,
      (*_operands_of_step(batch, operands), *others),
      [jax.core.ShapedArray(x.shape, x.dtype) for x in tables],
      aliases={len(batch) + k: k for k in range(len(tables))},
      after_readers=True,
      **optimizer_attributes(rule, params),
      **attributes,
  )


def _operands_of_step(
    batch: Sequence[Array], operands: update_rules.UpdateOperands
) -> Sequence[Array]:
  """`batch` and the operands of the optimizer."""
  seed = operands.rounding_seed
  return (
      *batch,
      operands.table,
      *operands.slots,
      *operands.hyperparameters,
      *(() if seed is None else (seed,)),
  )


def optimizer_attributes(
    rule: update_rules.UpdateRule, params: dict[str, Any]
) -> dict[str, Any]:
  """What a call that steps `rule`, with its options, is told of it."""
  num_shards, num_shards_per_device = params.get("rounding_shards", (1, 1))
  min_value, max_value = params.get("min_value"), params.get("max_value")
  return dict(
      rule=rule.name,
      num_hyperparameters=np.int64(len(rule.hyperparameters)),
      static_params=np.array(
          [params[name] for name in rule.static_params], np.float32
      ),
      row_options=",".join(params.get("row_options", ())),
      min_value=np.float32(-np.inf if min_value is None else min_value),
      max_value=np.float32(np.inf if max_value is None else max_value),
      stochastic_rounding=rule.takes_rounding_seed,
      rounding_num_shards=np.int64(num_shards),
      rounding_shards_per_device=np.int64(num_shards_per_device),
  )


def row_gradients(
    operands: Sequence[native_call.Operand], params: dict[str, Any]
) -> Sequence[native_call.Operand]:
  """The gradients of rows, on one device that has all of them."""
  return native_call.call(
      "jte_row_gradients_cpu",
      operands,
      rows_per_device=np.int64(params["rows_per_device"]),
      **_layout(operands, params),
  )


def sum_rows(terms: Sequence[Array], num_rows: int) -> Sequence[Array]:
  """The sums of rows and values by turns; there is room for `num_rows`."""
  return native_call.call(
      "jte_sum_rows_cpu",
      terms,
      [
          jax.core.ShapedArray((num_rows,), np.int32),
          jax.core.ShapedArray((num_rows, terms[1].shape[1]), np.float32),
      ],
  )


def convert_ids(
    operands: Sequence[native_call.Operand],
    params: dict[str, Any],
    *,
    keeps_errors: bool,
) -> Sequence[native_call.Operand]:
  """The buffers of raw ids; with `keeps_errors`, what is wrong is in them."""
  return native_call.call(
      "jte_convert_ids_cpu",
      operands,
      keeps_errors=keeps_errors,
      **stack_attributes(params),
  )


def lookup_ids(
    operands: Sequence[Array], params: dict[str, Any]
) -> Sequence[Array]:
  """The lookup from ids in [rows, D] or [rows, W], on one device with all rows.

  Args:
    operands: the table, one minibatch and the ids.
    params: of the lookup from ids.
  """
  return native_call.call(
      "jte_lookup_ids_cpu",
      operands,
      [activations_of(operands[0], params)],
      **_lookup_ids_attributes(params),
  )


def lookup_ids_of_devices(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    records: jax.Array,
    device: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """The same in the tables of all devices of one process.

  Args:
    operands: the table of this device, one minibatch and its ids.
    params: of the lookup from ids.
    records: of all devices; see shared_memory.py.
    device: the number of this one.

  Returns:
    The activations; and this device's record u32[words], which says what is
    wrong with its ids, if anything is.
  """
  table, num_minibatches, *ids = operands
  return native_call.call(
      "jte_lookup_ids_of_devices_cpu",
      (table, num_minibatches, records, device, *ids),
      [
          activations_of(table, params),
          jax.core.ShapedArray(records.shape[1:], records.dtype),
      ],
      **_lookup_ids_attributes(params),
  )


def _lookup_ids_attributes(params: dict[str, Any]) -> dict[str, Any]:
  return dict(
      keeps_errors=params["keeps_errors"],
      quantization=_quantization(params),
      **stack_attributes(params),
  )


def _quantization(params: dict[str, Any]) -> np.ndarray:
  return np.array(params.get("quantization_config") or (), np.float64)


def stack_attributes(params: dict[str, Any]) -> dict[str, Any]:
  """The attributes that say what raw ids mean."""
  features: tuple[raw_ids.Feature, ...] = params["features"]

  def numbers(field: str) -> np.ndarray:
    return np.array([getattr(f, field) for f in features], np.int64)

  def lines(field: str) -> str:
    return _lines(getattr(f, field) for f in features)

  return dict(
      combiner=params["combiner"],
      feature_stacking_strategy=params["feature_stacking_strategy"],
      global_device_count=np.int64(params["global_device_count"]),
      num_sc_per_device=np.int64(params["num_sc_per_device"]),
      # Of names, only messages have a use.
      feature_names=lines("name"),
      out_of_range_ids=lines("out_of_range_ids"),
      non_finite_weights=lines("non_finite_weights"),
      row_offsets=numbers("row_offset"),
      col_offsets=numbers("col_offset"),
      col_shifts=numbers("col_shift"),
      vocabulary_sizes=numbers("vocabulary_size"),
      is_ragged=numbers("is_ragged"),
      has_weights=numbers("has_weights"),
  )


def _lines(names: Iterable[str]) -> str:
  """The names, a line for each."""
  return "\n".join(name.replace("\n", "\\n") for name in names)


def _layout(
    coo: Sequence[Array], params: dict[str, Any], num_devices: int = 1
) -> dict[str, Any]:
  """The attributes that say how buffers are laid out."""
  return _layout_of(coo[0].size, params, num_devices)


def _layout_of_all(
    coo: Sequence[Array], params: dict[str, Any], num_devices: int
) -> dict[str, Any]:
  """The same of buffers of the devices, one after the other."""
  return _layout_of(coo[0].size // num_devices, params, num_devices)


def _layout_of(
    num_row_pointers: int, params: dict[str, Any], num_devices: int
) -> dict[str, Any]:
  enable_minibatching = params.get("enable_minibatching", False)
  return dict(
      num_sc_per_device=np.int64(
          layout.num_sc_per_device_from_row_pointers(
              num_row_pointers, num_devices, enable_minibatching
          )
      ),
      enable_minibatching=enable_minibatching,
  )
