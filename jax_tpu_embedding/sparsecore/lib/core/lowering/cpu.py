# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lowering to the native custom calls for the CPU (cc/ffi)."""

from __future__ import annotations

import jax
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import any_platform
from jax_tpu_embedding.sparsecore.lib.core.lowering import earlier_readers
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_device
import numpy as np

for _name, _handler in ffi_cpu.registrations().items():
  jax.ffi.register_ffi_target(_name, _handler, platform="cpu")

# The rules that cc/kernels/update_rules.h has too.
FUSED_UPDATE_RULES = ("sgd", "adagrad", "adam")

_CONVERT_IDS_TARGET = "jte_convert_ids_cpu"
LOOKUP_TARGET = "jte_lookup_cpu"
_UPDATE_TARGET = "jte_update_cpu"


def lookup(
    ctx: mlir.LoweringRuleContext,
    *operands,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    **params,
):
  """Rule of the lookup; with quantization that of every platform."""
  if quantization_config is not None:
    return any_platform.lookup(
        ctx,
        *operands,
        quantization_config=quantization_config,
        enable_minibatching=enable_minibatching,
        **params,
    )
  return jax.ffi.ffi_lowering(LOOKUP_TARGET)(
      ctx,
      *operands,
      num_sc_per_device=_num_sc_per_device(ctx, enable_minibatching),
      enable_minibatching=enable_minibatching,
  )


def update(
    rule: update_rules.UpdateRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
    min_value: float | None = None,
    max_value: float | None = None,
    enable_minibatching: bool = False,
    **unused_limits,
):
  """Rule of the update with `rule`, in place where the table is donated."""
  named = rule.group_operands(operands)
  ordering = earlier_readers.results_of_earlier_readers(
      (named.table, *named.slots)
  )
  values = (*_in_call_order(named), *ordering)
  avals = (
      *_in_call_order(rule.group_operands(ctx.avals_in)),
      *map(_aval, ordering),
  )
  first_table = len(named.coo) + 1
  call = jax.ffi.ffi_lowering(
      _UPDATE_TARGET,
      operand_output_aliases={
          first_table + k: k for k in range(1 + len(rule.slots))
      },
  )
  return call(
      ctx.replace(avals_in=avals),
      *values,
      rule=rule.name,
      num_hyperparameters=np.int64(len(rule.hyperparameters)),
      min_value=np.float32(-np.inf if min_value is None else min_value),
      max_value=np.float32(np.inf if max_value is None else max_value),
      num_sc_per_device=_num_sc_per_device(ctx, enable_minibatching),
      enable_minibatching=enable_minibatching,
  )


def convert_ids(
    ctx: mlir.LoweringRuleContext,
    *operands,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    features: tuple[raw_ids.Feature, ...],
    feature_stacking_strategy: str,
):
  """Rule of the conversion of raw ids."""

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
  )


def _in_call_order(operands: update_rules.UpdateOperands) -> tuple:
  """Those of a fixed number first, then tables and hyperparameters."""
  return (
      *operands.coo,
      operands.gradient,
      operands.table,
      *operands.slots,
      *operands.hyperparameters,
  )


def _aval(value: mlir.ir.Value) -> jax.core.ShapedArray:
  """Of a value that is passed on as it is: only its rank matters."""
  return jax.core.ShapedArray(value.type.shape, np.float32)


def _num_sc_per_device(
    ctx: mlir.LoweringRuleContext, enable_minibatching: bool
) -> np.int64:
  return np.int64(
      local_device.num_sc_per_device(
          ctx,
          num_row_pointers=ctx.avals_in[0].size,
          enable_minibatching=enable_minibatching,
      )
  )
