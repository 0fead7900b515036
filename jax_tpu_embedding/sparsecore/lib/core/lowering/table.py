# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How each operation is lowered on each platform.

To add a platform: a module with its rules, and their lines here. What has no
line of its own gets the one for any platform, and so do TPUs that have no
SparseCores. Platforms are named as JAX names
those it lowers for: cuda and rocm. It has no platform "gpu" there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

# Since 0.12 Pallas adds settings to JAX when it is imported, which are part of
# what a traced program is kept by: imported while a step is lowered, as below, it
# would have the next call trace and compile the step again.
import jax.experimental.pallas.tpu  # noqa: F401  pylint: disable=unused-import
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_batch
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_seal
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import gpu
from jax_tpu_embedding.sparsecore.lib.core.lowering import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering import plain
from jax_tpu_embedding.sparsecore.lib.core.lowering import stacking
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cuda_library
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import checks
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import rules

# Operands, parameters of the operation and the devices that it sees -> results.
Rule = Callable[
    [Sequence[Any], dict[str, Any], mesh_axis.Devices], Sequence[Any]
]

_ANY = None

# (operation, platform) -> a function of arrays.
RULES: dict[tuple[str, str | None], Rule] = {
    ("check_batch", _ANY): check_batch.any_platform,
    ("check_batch", "tpu"): check_batch.tpu,
    ("check_seal", _ANY): check_seal.any_platform,
    ("convert_ids", _ANY): plain.convert_ids,
    ("custom_update", _ANY): plain.custom_update,
    ("custom_update", "cpu"): cpu.custom_update,
    ("local_lookup", _ANY): local_lookup.any_platform,
    ("local_lookup", "cpu"): local_lookup.cpu,
    ("lookup", _ANY): plain.lookup,
    ("nan_if_failed", _ANY): check_batch.nan_on_any_platform,
    ("row_gradients", _ANY): plain.row_gradients,
    ("stack_gradients", _ANY): stacking.stack_gradients,
    ("sum_rows", _ANY): plain.sum_rows,
    ("unstack_activations", _ANY): stacking.unstack_activations,
}
# The same, but a function of values of the program; see native_call.py. One that
# returns None leaves an operation of BY_PARTS or OF_STACKS to its parts.
NATIVE_RULES: dict[tuple[str, str | None], Rule] = {
    ("check_batch", "cpu"): check_batch.cpu,
    ("check_seal", "cpu"): check_seal.cpu,
    ("convert_ids", "cpu"): cpu.convert_ids,
    ("lookup", "cpu"): cpu.lookup,
    ("lookup_ids", "cpu"): cpu.lookup_ids,
    ("lookup_ids_of_stacks", "cpu"): cpu.lookup_ids_of_stacks,
    ("lookup_of_stacks", "cpu"): cpu.lookup_of_stacks,
    ("nan_if_failed", "cpu"): check_batch.nan_on_cpu,
    ("row_gradients", "cpu"): cpu.row_gradients,
    ("row_gradients_of_stacks", "cpu"): cpu.row_gradients_of_stacks,
    ("sum_rows", "cpu"): cpu.sum_rows,
    ("unstack_activations", "cpu"): cpu.unstack_activations,
    ("update_of_stacks", "cpu"): cpu.update_of_stacks,
    **{
        (operation, "rocm"): rule for operation, rule in gpu.PLAIN_RULES.items()
    },
    **{
        (operation, "cuda"): cuda_library.where_usable(
            rule, gpu.PLAIN_RULES[operation]
        )
        for operation, rule in gpu.rules(cuda_library.ffi_cuda).items()
    },
}
# Operations that are others, one after the other, where they have no line: their
# primitives say which, and each of these is lowered as it is by itself.
BY_PARTS = frozenset({"lookup_ids"})
# Others on several stacks, which share messages; without a line each by itself.
OF_STACKS = frozenset(
    {
        "lookup_ids_of_stacks",
        "lookup_of_stacks",
        "row_gradients_of_stacks",
        "update_of_stacks",
    }
)
# What JAX takes for a lowering rule: programs of SparseCores have types and
# functions that no JAX program has.
MLIR_RULES: dict[tuple[str, str | None], Callable[..., Any]] = {
    ("custom_update", "tpu"): rules.custom_update,
    ("local_lookup", "tpu"): rules.local_lookup,
    ("lookup", "tpu"): rules.lookup,
}
# What kernels of SparseCores do where calls do not; see tpu_kernels/rules.py.
_BY_KERNELS = {"custom_update", "lookup"}
for _name, _rule in update_rules.UPDATE_RULES.items():
  _key = f"update_{_name}"
  RULES[_key, _ANY] = functools.partial(plain.update, _rule)
  MLIR_RULES[_key, "tpu"] = functools.partial(rules.update, _rule)
  _BY_KERNELS.add(_key)
  if _name in cpu.FUSED_UPDATE_RULES:
    NATIVE_RULES[_key, "cpu"] = functools.partial(cpu.update, _rule)


def install(
    primitive: core.Primitive,
    operation: str,
    parts: Callable[..., Any] | None = None,
) -> None:
  """Registers every rule of `operation` for `primitive`.

  Args:
    primitive: is lowered by them.
    operation: a key of the rules.
    parts: what JAX takes for a lowering rule, for any platform, of an operation
      of BY_PARTS or OF_STACKS.
  """
  rules = lowering_rules(operation, parts)

  def lower(ctx, *values, **params):
    return jax_private.lower_per_platform(
        ctx, operation, rules, rules[_ANY], *values, **params
    )

  # Not cacheable: JAX would lower one instance by itself and copy it, and the
  # rule of an update looks at what stands before it.
  mlir.register_lowering(primitive, lower, cacheable=False)
  of_stacks.install(primitive, operation, lower)


def lowering_rules(
    operation: str, parts: Callable[..., Any] | None = None
) -> dict[str | None, Callable[..., Any]]:
  """Platform -> what JAX takes for a lowering rule of `operation`.

  Args:
    operation: a key of the rules.
    parts: see `install`.

  Raises:
    ValueError: if a rule is for a platform that no program is lowered for.
  """
  by_platform = {
      platform: as_lowering_rule(rule)
      for rules, as_lowering_rule in (
          (RULES, lowering_rule),
          (
              NATIVE_RULES,
              functools.partial(_native_lowering_rule, otherwise=parts),
          ),
          (MLIR_RULES, lambda rule: rule),
      )
      for (name, platform), rule in rules.items()
      if name == operation
  }
  if parts is not None:
    by_platform[_ANY] = parts
  if "gpu" in by_platform:
    raise ValueError(
        f"lowering/table.py has a rule of {operation!r} for platform 'gpu',"
        " which JAX lowers no program for. Write 'cuda' or 'rocm', or a line"
        " for each."
    )
  if "tpu" in by_platform:
    by_platform["tpu"] = _on_tpu(
        operation, by_platform["tpu"], by_platform[_ANY]
    )
  if operation in _BY_KERNELS:
    by_platform["cpu"] = _on_cpu(
        operation, by_platform.get("cpu", by_platform[_ANY])
    )
  elif operation in OF_STACKS and parts is not None:
    by_platform["cpu"] = _on_cpu(operation, by_platform["cpu"], parts)
  return by_platform


def _on_cpu(
    operation: str,
    native: Callable[..., Any],
    parts: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
  """The rule of CPUs, where kernels are emulated if they are asked for.

  `parts` is the rule of an operation of which each part is to be emulated.
  """

  def lower(ctx, *values, **params):
    if not jax_private.metadata_of_operation(ctx):
      return native(ctx, *values, **params)
    # As in _on_tpu.
    # pylint: disable=g-import-not-at-top
    from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
    from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import rules as kernel_rules

    chosen = native
    if choice.asks_for_emulation(ctx):
      chosen = parts or kernel_rules.lowering_rule(operation, emulated=True)
    return chosen(ctx, *values, **params)

  return lower


def _on_tpu(
    operation: str,
    calls: Callable[..., Any],
    plain_rule: Callable[..., Any],
) -> Callable[..., Any]:
  """The rule of TPUs, which may have no SparseCores."""

  def lower(ctx, *values, **params):
    if operation in _BY_KERNELS:
      # Not at the top: our kernels are for TPUs only.
      # pylint: disable=g-import-not-at-top
      from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import choice
      from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu_kernels import rules as kernel_rules

      chosen = choice.lowering_rule(
          operation,
          dict(
              calls=calls,
              kernels=kernel_rules.lowering_rule(operation),
              plain=plain_rule,
          ),
      )
      return chosen(ctx, *values, **params)
    device = checks.tpu_of(ctx)
    chosen = calls
    if device is not None and hardware.is_tpu_without_sparsecores(device):
      chosen = plain_rule
    return chosen(ctx, *values, **params)

  return lower


def lowering_rule(rule: Rule) -> Callable[..., Any]:
  """What JAX takes for a lowering rule, of a function of arrays."""

  def lower(ctx, *values, **params):
    return native_call.traced(
        rule,
        native_call.operands_of(ctx, values),
        params,
        mesh_axis.devices_of(ctx),
    )

  return lower


def _native_lowering_rule(
    rule: Rule, otherwise: Callable[..., Any] | None
) -> Callable[..., Any]:
  """The same, of a function of values of the program."""

  def lower(ctx, *values, **params):
    operands = native_call.operands_of(ctx, values)
    results = rule(operands, params, mesh_axis.devices_of(ctx))
    if results is None:
      return otherwise(ctx, *values, **params)
    return native_call.values_of(results)

  return lower
