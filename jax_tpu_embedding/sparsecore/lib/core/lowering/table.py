# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How each operation is lowered on each platform.

To add a platform: a module with its rules, and their lines here. What has no
line of its own gets the one for any platform.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

from jax._src.interpreters import mlir as mlir_lib
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import any_platform
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_batch
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_seal
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.lowering import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_dimensional
from jax_tpu_embedding.sparsecore.lib.core.lowering import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.lowering import shared_memory
from jax_tpu_embedding.sparsecore.lib.core.lowering import stacking
from jax_tpu_embedding.sparsecore.lib.core.lowering import tpu

_ANY = None
_ANY_STEPS = messages.steps(any_platform.lookup)


def _is_table_of_lookup(operand: int) -> bool:
  return operand == len(update_rules.COO_OPERANDS)


def _table_of_custom_update(params: dict[str, Any]) -> int:
  """Gradient and hyperparameters stand between buffers and table."""
  return (
      len(update_rules.COO_OPERANDS)
      + 1
      + params["num_hyperparameters"]
      + len(params.get("row_options", ()))
  )


def _custom_update(raises: bool = False) -> exchange.LoweringRule:
  """The plain update with a computation, over any number of devices."""
  places = dict(
      table_operand=_table_of_custom_update,
      gradient_operand=len(update_rules.COO_OPERANDS),
  )
  rule = exchange.update(any_platform.custom_update, _ANY_STEPS, **places)
  return check_buffers.update(rule, **places, raises=raises)


def _plain_update(rule: update_rules.UpdateRule) -> exchange.LoweringRule:
  """The plain update with `rule`, over any number of devices."""
  places = _places(rule)
  update = functools.partial(any_platform.update, rule)
  return check_buffers.update(
      exchange.update(update, _ANY_STEPS, **places), **places
  )


def _fused_update(rule: update_rules.UpdateRule) -> exchange.LoweringRule:
  """That of a CPU; it checks buffers itself."""
  return exchange.update(
      functools.partial(cpu.update, rule),
      cpu_messages.STEPS,
      in_process=shared_memory.update,
      **_places(rule),
  )


def _places(rule: update_rules.UpdateRule) -> dict[str, Any]:
  """Where the operands of `rule` are."""
  names = rule.operand_names
  return dict(
      table_operand=lambda unused_params: names.index("table"),
      gradient_operand=names.index("activation_gradient"),
  )


# (operation, platform) -> lowering rule.
LOWERINGS = {
    ("check_batch", _ANY): check_batch.any_platform,
    ("check_batch", "cpu"): check_batch.cpu,
    ("check_batch", "tpu"): check_batch.tpu,
    ("check_seal", _ANY): check_seal.any_platform,
    ("check_seal", "cpu"): check_seal.cpu,
    ("convert_ids", _ANY): any_platform.convert_ids,
    ("convert_ids", "cpu"): cpu.convert_ids,
    ("custom_update", _ANY): _custom_update(),
    ("custom_update", "cpu"): _custom_update(raises=True),
    ("custom_update", "tpu"): tpu.custom_update,
    ("local_lookup", _ANY): local_lookup.any_platform,
    ("local_lookup", "cpu"): local_lookup.cpu,
    ("local_lookup", "tpu"): tpu.local_lookup,
    ("lookup", _ANY): one_dimensional.with_columns(
        check_buffers.lookup(exchange.lookup(any_platform.lookup, _ANY_STEPS)),
        _is_table_of_lookup,
    ),
    ("lookup", "cpu"): one_dimensional.with_columns(
        exchange.lookup(cpu.lookup, cpu_messages.STEPS, shared_memory.lookup),
        _is_table_of_lookup,
    ),
    ("lookup", "tpu"): tpu.lookup,
    ("nan_if_failed", _ANY): check_batch.nan_on_any_platform,
    ("nan_if_failed", "cpu"): check_batch.nan_on_cpu,
    ("row_gradients", _ANY): functools.partial(
        row_gradients.row_gradients,
        _ANY_STEPS,
        functools.partial(row_gradients.sum_rows, any_platform.lookup),
    ),
    ("row_gradients", "cpu"): functools.partial(
        row_gradients.row_gradients,
        cpu_messages.STEPS,
        cpu.sum_rows,
        alone=cpu.row_gradients,
    ),
    ("stack_gradients", _ANY): stacking.stack_gradients,
    ("sum_rows", _ANY): functools.partial(
        row_gradients.sum_rows, any_platform.lookup
    ),
    ("sum_rows", "cpu"): cpu.sum_rows,
    ("unstack_activations", _ANY): stacking.unstack_activations,
}
for _name, _rule in update_rules.UPDATE_RULES.items():
  LOWERINGS[f"update_{_name}", _ANY] = _plain_update(_rule)
  LOWERINGS[f"update_{_name}", "tpu"] = functools.partial(tpu.update, _rule)
for _name in cpu.FUSED_UPDATE_RULES:
  LOWERINGS[f"update_{_name}", "cpu"] = _fused_update(
      update_rules.UPDATE_RULES[_name]
  )


def install(primitive: core.Primitive, operation: str) -> None:
  """Registers every rule of `operation` for `primitive`."""
  rules = {
      platform: rule
      for (name, platform), rule in LOWERINGS.items()
      if name == operation
  }
  # Not cacheable: JAX would lower one instance by itself and copy it, and the
  # rule of an update looks at what stands before it.
  mlir.register_lowering(
      primitive,
      functools.partial(_lower, operation, rules.pop(_ANY), rules),
      cacheable=False,
  )


def _lower(
    operation: str,
    rule_for_others: exchange.LoweringRule,
    rules: dict[str, exchange.LoweringRule],
    ctx: mlir.LoweringRuleContext,
    *operands: mlir.ir.Value,
    **params: Any,
) -> Sequence[mlir.ir.Value]:
  """Lowers for each platform that the program is for with its rule.

  JAX does so by itself for rules that are registered per platform. But for
  several platforms at once, as in jax.export, it adds `avals_out` to a list,
  and for what is not cacheable it passes a tuple (a TypeError in JAX 0.10.2).
  """
  return mlir_lib.lower_per_platform(
      ctx.replace(avals_out=list(ctx.avals_out)),
      operation,
      rules,
      rule_for_others,
      (),
      *operands,
      **params,
  )
