# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lowering to the native custom calls for the CPU (cc/ffi)."""

from __future__ import annotations

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import earlier_readers
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
import numpy as np

for _name, _handler in ffi_cpu.registrations().items():
  jax.ffi.register_ffi_target(_name, _handler, platform="cpu")

# The rules that cc/kernels/update_rules.h has too.
FUSED_UPDATE_RULES = (
    "sgd",
    "adagrad",
    "adam",
    "adagrad_momentum",
    "ftrl",
    "laprop",
    "f2a",
    "rowwise_adagrad",
    "momentum",
    "lion",
)

_CONVERT_IDS_TARGET = "jte_convert_ids_cpu"
LOOKUP_TARGET = "jte_lookup_cpu"
_ROW_GRADIENTS_TARGET = "jte_row_gradients_cpu"
_SUM_ROWS_TARGET = "jte_sum_rows_cpu"
_UPDATE_TARGET = "jte_update_cpu"
_UPDATE_RECEIVED_TARGET = "jte_update_received_cpu"


def lookup(
    ctx: mlir.LoweringRuleContext,
    *operands,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    num_devices: int = 1,
    **unused_limits,
):
  """Rule of the lookup.

  Args:
    ctx: of the lowering.
    *operands: of the lookup; for several devices, their records too.
    quantization_config: of the lookup.
    enable_minibatching: which layout the buffers have.
    num_devices: of one process, whose tables are read; see shared_memory.py.
    **unused_limits: of the lookup.
  """
  return jax.ffi.ffi_lowering(LOOKUP_TARGET)(
      ctx,
      *operands,
      num_devices=np.int64(num_devices),
      num_sc_per_device=_num_sc_per_device(
          ctx, enable_minibatching, num_devices
      ),
      enable_minibatching=enable_minibatching,
      quantization=np.array(quantization_config or (), np.float64),
  )


def update(
    rule: update_rules.UpdateRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    rounding_shards: tuple[int, int] | None = None,
    min_value: float | None = None,
    max_value: float | None = None,
    enable_minibatching: bool = False,
    num_devices: int = 1,
    num_senders: int = 0,
    **params,
):
  """Rule of the update with `rule`, in place where the table is donated.

  Args:
    rule: one without options.
    ctx: of the lowering.
    *operands: of the update; but with `rounding_shards`, rounding_seed is
      u32[2]: the seed, and the number of this device's first shard. For several
      devices, their records and the number of this one too; or the rows and
      the gradients that each has sent, in place of COO buffers and gradient.
    row_options: of the update, as are all but one of the others.
    stochastic_rounding: whether there is a rounding_seed.
    rounding_shards: the shards of the table as a whole, and those of this
      device, if the table is one of several that one table was cut into.
    min_value: lower bound of the new rows, if any.
    max_value: upper bound, if any.
    enable_minibatching: which layout the buffers have.
    num_devices: of one process, whose entries are read; see shared_memory.py.
    num_senders: devices that have sent gradients; see cpu_messages.py.
    **params: limits, which are not used, and those of `rule`.
  """
  rule = update_rules.with_options(
      rule, row_options, stochastic_rounding=stochastic_rounding
  )
  num_operands = len(rule.operand_names)
  named = rule.group_operands(operands[:num_operands])
  num_scs = _num_sc_per_device(
      ctx, enable_minibatching, num_senders or num_devices
  )
  if stochastic_rounding and rounding_shards is None:
    rounding_shards = (num_scs, num_scs)
    named = named._replace(rounding_seed=_with_shard_0(ctx, named))
  ordering = earlier_readers.results_of_earlier_readers(
      (named.table, *named.slots)
  )
  if num_senders:
    target, batch = _UPDATE_RECEIVED_TARGET, ()
    of_batch = dict(num_devices=np.int64(num_senders))
  else:
    target, batch = _UPDATE_TARGET, (*named.coo, named.gradient)
    of_batch = dict(
        num_devices=np.int64(num_devices),
        num_sc_per_device=num_scs,
        enable_minibatching=enable_minibatching,
    )
  values = (
      *batch,
      *_of_optimizer(named),
      *operands[num_operands:],
      *ordering,
  )
  call = jax.ffi.ffi_lowering(
      target,
      operand_output_aliases={
          len(batch) + k: k for k in range(1 + len(rule.slots))
      },
  )
  num_shards, num_shards_per_device = rounding_shards or (1, 1)
  return call(
      ctx.replace(avals_in=tuple(map(_aval, values))),
      *values,
      rule=rule.name,
      num_hyperparameters=np.int64(len(rule.hyperparameters)),
      static_params=np.array(
          [params[name] for name in rule.static_params], np.float32
      ),
      row_options=",".join(row_options),
      min_value=np.float32(-np.inf if min_value is None else min_value),
      max_value=np.float32(np.inf if max_value is None else max_value),
      stochastic_rounding=stochastic_rounding,
      rounding_num_shards=np.int64(num_shards),
      rounding_shards_per_device=np.int64(num_shards_per_device),
      **of_batch,
  )


def row_gradients(
    ctx: mlir.LoweringRuleContext,
    *operands,
    rows_per_device: int,
    enable_minibatching: bool = False,
    **unused_limits,
):
  """Rule of the gradients of rows, on one device."""
  return jax.ffi.ffi_lowering(_ROW_GRADIENTS_TARGET)(
      ctx,
      *operands,
      rows_per_device=np.int64(rows_per_device),
      num_sc_per_device=_num_sc_per_device(
          ctx, enable_minibatching, num_devices=1
      ),
      enable_minibatching=enable_minibatching,
  )


def sum_rows(ctx: mlir.LoweringRuleContext, *operands):
  """Rule of the sums of rows; as many of them as the result has room for."""
  return jax.ffi.ffi_lowering(_SUM_ROWS_TARGET)(ctx, *operands)


def convert_ids(
    ctx: mlir.LoweringRuleContext,
    *operands,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    features: tuple[raw_ids.Feature, ...],
    feature_stacking_strategy: str,
    keeps_errors: bool = False,
):
  """Rule of the conversion of raw ids.

  One of several devices does not fail by itself, the others would wait for it.
  It hands its error on in the buffers, and the lookup raises it on all of them.
  """
  keeps_errors |= mesh_axis.is_one_of_several_devices(ctx)

  def numbers(field: str) -> np.ndarray:
    return np.array([getattr(f, field) for f in features], np.int64)

  def lines(field: str) -> str:
    return "\n".join(getattr(f, field) for f in features)

  return jax.ffi.ffi_lowering(_CONVERT_IDS_TARGET)(
      ctx,
      *operands,
      combiner=combiner,
      feature_stacking_strategy=feature_stacking_strategy,
      global_device_count=np.int64(global_device_count),
      num_sc_per_device=np.int64(num_sc_per_device),
      feature_names=lines("name"),
      out_of_range_ids=lines("out_of_range_ids"),
      non_finite_weights=lines("non_finite_weights"),
      row_offsets=numbers("row_offset"),
      col_offsets=numbers("col_offset"),
      col_shifts=numbers("col_shift"),
      vocabulary_sizes=numbers("vocabulary_size"),
      is_ragged=numbers("is_ragged"),
      has_weights=numbers("has_weights"),
      keeps_errors=keeps_errors,
  )


def _of_optimizer(operands: update_rules.UpdateOperands) -> tuple:
  """Those of the optimizer: tables, numbers and seed."""
  seed = operands.rounding_seed
  return (
      operands.table,
      *operands.slots,
      *operands.hyperparameters,
      *(() if seed is None else (seed,)),
  )


def _with_shard_0(
    ctx: mlir.LoweringRuleContext, operands: update_rules.UpdateOperands
) -> mlir.ir.Value:
  """The seed u32[] as u32[2]: beside it, the shard that a device begins with."""
  scalar = jax.core.ShapedArray((), np.uint32)
  pair = jax.core.ShapedArray((2,), np.uint32)
  function = mlir.lower_fun(
      lambda seed: jnp.stack([seed, jnp.uint32(0)]), multiple_results=False
  )
  (value,) = function(
      ctx.replace(avals_in=[scalar], avals_out=[pair]), operands.rounding_seed
  )
  return value


def _aval(value: mlir.ir.Value) -> jax.core.ShapedArray:
  """Of an operand of a call: only its rank matters."""
  return jax.core.ShapedArray(value.type.shape, np.float32)


def _num_sc_per_device(
    ctx: mlir.LoweringRuleContext, enable_minibatching: bool, num_devices: int
) -> np.int64:
  return np.int64(
      layout.num_sc_per_device_from_row_pointers(
          ctx.avals_in[0].size, num_devices, enable_minibatching
      )
  )
