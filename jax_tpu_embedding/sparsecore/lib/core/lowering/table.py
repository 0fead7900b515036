# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How each operation is lowered on each platform.

To add a platform: a module with its rules, and their lines here. What has no
line of its own gets the one for any platform.
"""

from __future__ import annotations

import functools
from typing import Any

from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import any_platform
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_seal
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_dimensional
from jax_tpu_embedding.sparsecore.lib.core.lowering import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.lowering import shared_memory
from jax_tpu_embedding.sparsecore.lib.core.lowering import stacking
from jax_tpu_embedding.sparsecore.lib.core.lowering import tpu

_ANY = None


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


def _update(
    rule: update_rules.UpdateRule,
    update: Any,
    lookup: Any,
    in_process: Any = None,
) -> exchange.LoweringRule:
  """`update` with `rule`, over any number of devices."""
  names = rule.operand_names
  return exchange.update(
      functools.partial(update, rule),
      lookup,
      table_operand=lambda unused_params: names.index("table"),
      gradient_operand=names.index("activation_gradient"),
      in_process=in_process,
  )


# (operation, platform) -> lowering rule.
LOWERINGS = {
    ("check_seal", _ANY): check_seal.any_platform,
    ("check_seal", "cpu"): check_seal.cpu,
    ("convert_ids", _ANY): any_platform.convert_ids,
    ("convert_ids", "cpu"): cpu.convert_ids,
    ("custom_update", _ANY): exchange.update(
        any_platform.custom_update,
        any_platform.lookup,
        table_operand=_table_of_custom_update,
        gradient_operand=len(update_rules.COO_OPERANDS),
    ),
    ("custom_update", "tpu"): tpu.custom_update,
    ("local_lookup", _ANY): local_lookup.any_platform,
    ("local_lookup", "cpu"): local_lookup.cpu,
    ("local_lookup", "tpu"): tpu.local_lookup,
    ("lookup", _ANY): one_dimensional.with_columns(
        exchange.lookup(any_platform.lookup), _is_table_of_lookup
    ),
    ("lookup", "cpu"): one_dimensional.with_columns(
        exchange.lookup(cpu.lookup, shared_memory.lookup), _is_table_of_lookup
    ),
    ("lookup", "tpu"): tpu.lookup,
    ("row_gradients", _ANY): functools.partial(
        row_gradients.row_gradients,
        any_platform.lookup,
        functools.partial(row_gradients.sum_rows, any_platform.lookup),
    ),
    ("row_gradients", "cpu"): functools.partial(
        row_gradients.row_gradients,
        cpu.lookup,
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
  LOWERINGS[f"update_{_name}", _ANY] = _update(
      _rule, any_platform.update, any_platform.lookup
  )
  LOWERINGS[f"update_{_name}", "tpu"] = functools.partial(tpu.update, _rule)
for _name in cpu.FUSED_UPDATE_RULES:
  LOWERINGS[f"update_{_name}", "cpu"] = _update(
      update_rules.UPDATE_RULES[_name],
      cpu.update,
      cpu.lookup,
      shared_memory.update,
  )


def install(primitive: core.Primitive, operation: str) -> None:
  """Registers every rule of `operation` for `primitive`."""
  for (name, platform), rule in LOWERINGS.items():
    if name == operation:
      # Not cacheable: JAX would lower one instance by itself and copy it, and
      # the rule of an update looks at what stands before it.
      mlir.register_lowering(
          primitive, rule, platform=platform, cacheable=False
      )
