# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the library uses of JAX that JAX makes no promise about.

No other module imports `jax._src`, or reads an attribute that no page of JAX's
documentation has, but for lib/pallas/jax_versions.py, which is for kernels. So this is the one file to mend when a release of JAX changes
such a name, and jax_private_test.py says which, every night with the newest
JAX. A public name that appears in JAX replaces the line here.

`jax.extend` and `jax.interpreters` are meant for libraries that define
primitives, and are imported where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

import jax
from jax._src import config
from jax._src import core as core_lib
from jax._src import debugging
from jax._src import distributed
from jax._src import effects as effects_lib
from jax._src import mesh as mesh_lib
from jax._src import xla_metadata_lib
from jax._src.interpreters import mlir as mlir_lib
from jax._src.interpreters import pxla
from jax._src.state import types as state_types
from jax.extend import core
from jax.interpreters import mlir
from jax.interpreters import partial_eval
import numpy as np


def lower_per_platform(
    ctx: mlir.LoweringRuleContext,
    description: str,
    rules: Mapping[str, Callable[..., Any]],
    rule_for_others: Callable[..., Any],
    *operands: mlir.ir.Value,
    **params: Any,
) -> Sequence[mlir.ir.Value]:
  """Lowers for each platform that the program is for with its rule.

  `mlir.register_lowering(..., platform=)` is the public way. For several
  platforms at once, as in jax.export, it adds `avals_out` to a list, and for a
  primitive that is not cacheable it passes a tuple: a TypeError in JAX 0.10.2.

  Args:
    ctx: of the lowering.
    description: of the primitive, for errors.
    rules: platform -> lowering rule.
    rule_for_others: the rule for any other platform.
    *operands: of the primitive.
    **params: of the primitive.
  """
  return mlir_lib.lower_per_platform(
      ctx.replace(avals_out=list(ctx.avals_out)),
      description,
      dict(rules),
      rule_for_others,
      (),  # effects
      *operands,
      **params,
  )


def add_module(
    ctx: mlir.LoweringRuleContext, name: str, module: mlir.ir.Module
) -> str:
  """Adds `module` to the one that is lowered; the name of its `main` there.

  jax.export does this for programs that it has exported itself, and the public
  API has nothing for a module from elsewhere (JAX 0.10.2 to 0.12).
  """
  context = ctx.module_context
  return mlir_lib.merge_mlir_modules(
      context.module, name, module, dst_symtab=context.symbol_table
  )


def axis_context(ctx: mlir.LoweringRuleContext) -> Any:
  """Where an operation stands: mesh and manual axes, or number of devices.

  Tracing has jax.sharding.get_abstract_mesh(); a lowering rule has nothing
  public, and runs when that mesh is no longer set (JAX 0.10.2 to 0.12).

  Returns:
    mlir.SPMDAxisContext with `mesh` and `manual_axes` under jax.shard_map, and
    otherwise something without `mesh` that has `num_devices`.
  """
  return ctx.module_context.axis_context


def metadata_of_operation(
    ctx: mlir.LoweringRuleContext,
) -> Mapping[str, Any] | None:
  """What set_xla_metadata said around an operation when it was traced.

  jax.experimental.xla_metadata can only write (JAX 0.10.2 to 0.12).
  """
  return ctx.jaxpr_eqn_ctx.xla_metadata


def current_metadata() -> Mapping[str, Any] | None:
  """What set_xla_metadata says around the operations that are traced now.

  jax.experimental.xla_metadata can only write (JAX 0.10.2 to 0.12).
  """
  return xla_metadata_lib.current_xla_metadata()


def varies_over(x: jax.core.ShapedArray) -> frozenset[str]:
  """The mesh axes along which `x` differs, as shard_map's check_vma knows them.

  `jax.typeof(x).vma` was the name until JAX 0.10; the documentation has no name
  for what came after it.
  """
  return frozenset(x.mat.varying)


def vary_over(
    x: jax.core.ShapedArray, axes: frozenset[str]
) -> jax.core.ShapedArray:
  """`x`, as a result on the current mesh that differs along `axes`.

  jax.lax.pcast does so for arrays, and nothing for the shapes that an abstract
  evaluation returns (JAX 0.10.2 to 0.12).
  """
  mesh = jax.sharding.get_abstract_mesh()
  spec = jax.sharding.PartitionSpec(*[None] * x.ndim)
  return x.update(
      sharding=jax.sharding.NamedSharding(mesh, spec),
      manual_axis_type=x.mat.update(varying=axes),
  )


def is_vma_checked() -> bool:
  """Whether the surrounding shard_map has check_vma; see `varies_over`.

  It is an argument of jax.shard_map, and cannot be asked for (JAX 0.10.2 to
  0.12).
  """
  return config._check_vma.value  # pylint: disable=protected-access


def without_check_vma() -> contextlib.AbstractContextManager[None]:
  """For what a lowering rule traces, in which every step may mix axes.

  Like `is_vma_checked`, an argument of jax.shard_map only.
  """
  return config._check_vma(False)  # pylint: disable=protected-access


def concrete_mesh() -> jax.sharding.Mesh | None:
  """The mesh of jax.set_mesh, with its devices; None or empty if there is none.

  jax.sharding.get_mesh() raises in traced code, and get_abstract_mesh() does
  not know whether all devices are in this process (JAX 0.10.2 to 0.12).
  """
  return mesh_lib.get_concrete_mesh()


def num_consts_and_carry(scan_params: Mapping[str, Any]) -> tuple[int, int]:
  """How many operands of a scan are the same, and change, in all iterations.

  JAX promises nothing about the parameters of its primitives; this one changed
  in 0.12.
  """
  if "ft_in" not in scan_params:  # before JAX 0.12
    return scan_params["num_consts"], scan_params["num_carry"]
  consts, carry, _ = scan_params["ft_in"].unpack()
  return len(consts.vals), len(carry.vals)


def never_recompute(primitive: core.Primitive) -> None:
  """Makes jax.checkpoint save the result of a primitive, whatever its policy.

  Policies know names of values (jax.ad_checkpoint.checkpoint_name) and
  primitives, and are the caller's; a library cannot ask for this (JAX 0.10.2 to
  0.12).

  Args:
    primitive: of one operand and one result.
  """

  def only_forward(unused_saveable, is_unknown, is_here, eqn):
    # Of the two passes, the forward pass alone has the equation. There the
    # result is known, and not made anew in the backward pass. So if that needs
    # it, JAX saves it.
    if any(is_unknown):
      operands = [x for x, here in zip(eqn.invars, is_here) if not here]
      return None, eqn, [True], [True], operands
    return eqn, None, [False], [False], []

  partial_eval.partial_eval_jaxpr_custom_rules[primitive] = only_forward


def has_one_operation(function: Callable[..., Any]) -> None:
  """Says to jax_debug_nans that a function to be jitted is one operation.

  It looks for the operation that made a NaN by calling the function without
  jit; then a primitive's own call, which is jitted, would come again for ever.

  Args:
    function: without jit.
  """
  function._apply_primitive = True  # pylint: disable=protected-access


class _KeptEffect(effects_lib.Effect):
  """Of an operation that no pass may leave out."""


def kept_effect() -> Any:
  """What an abstract evaluation returns for operations that must stay.

  `def_effectful_abstract_eval` takes a set of it. JAX keeps such operations
  although nothing uses their results, in the backward passes of custom_vjp and
  jax.checkpoint too, and in loops. There is no public effect of this kind (JAX
  0.10.2 to 0.12).
  """
  for allowed in (
      effects_lib.control_flow_allowed_effects,
      effects_lib.custom_derivatives_allowed_effects,
      effects_lib.remat_allowed_effects,
  ):
    allowed.add_type(_KeptEffect)
  return _KeptEffect()


def written_operands(eqn: core.JaxprEqn) -> list[int]:
  """Positions of the jax.Refs that an equation, or a program in it, writes.

  Equations say so by effects, whose classes have no public names (JAX 0.10.2 to
  0.12).
  """
  written = [
      effect.input
      for effect in eqn.effects
      if isinstance(effect, (state_types.WriteEffect, state_types.AccumEffect))
  ]
  return [i for i, x in enumerate(eqn.invars) if any(x is w for w in written)]


def may_run_twice(eqn: core.JaxprEqn) -> bool:
  """Whether results of an equation are those of its operands, each time.

  Not of io_callback and the like, nor of what reads a jax.Ref. What prints may,
  and a call with a jax.Ref of its own. As above, by classes of effects.
  """
  allowed = [debugging.DebugEffect, debugging.OrderedDebugEffect]
  atoms = [*eqn.invars, *eqn.outvars]
  if not any(isinstance(x.aval, state_types.AbstractRef) for x in atoms):
    allowed.append(core_lib.InternalMutableArrayEffect)
  return all(isinstance(x, tuple(allowed)) for x in eqn.effects)


def put(x: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
  """jax.device_put(x, sharding), in a quarter of the time for a small array.

  device_put goes through 40 us of Python on a Xeon, and make_array_from_callback
  and the like call it; what it calls in the end has no public name. A jitted
  function takes arguments as quickly, but copies them (JAX 0.10.2 to 0.12).

  Args:
    x: of a type that devices have. It shares its memory with the result where
      that of device_put would.
    sharding: over devices of this process alone.
  """
  places = sharding.devices_indices_map(x.shape)
  aval = jax.core.ShapedArray(x.shape, x.dtype)
  return pxla.batched_device_put(
      core_lib.update_aval_with_sharding(aval, sharding),
      sharding,
      [x[place] for place in places.values()],
      list(places),
  )


def place_in_job() -> tuple[int, int]:
  """This process's index in the job of jax.distributed, and how many there are.

  jax.process_index() and jax.process_count() make the devices, whose number
  some programs choose by what this says.
  """
  state = distributed.global_state
  return state.process_id, state.num_processes


def coordinator_of_job() -> str:
  """The address of JAX's coordination service, "host:port", at process 0."""
  return distributed.global_state.coordinator_address


def tell_job(key: str, value: str) -> None:
  """Lets all processes of jax.distributed know something, once per key.

  No operation of devices: for threads in the background.
  """
  distributed.global_state.client.key_value_set(key, value)


def ask_job(key: str, timeout_seconds: float) -> str:
  """Waits for what a process tells under a key.

  Raises:
    TimeoutError: nobody did.
  """
  client = distributed.global_state.client
  try:
    return client.blocking_key_value_get(key, int(timeout_seconds * 1000))
  except jax.errors.JaxRuntimeError as error:
    if "DEADLINE_EXCEEDED" not in str(error):
      raise
    raise TimeoutError(f"Nobody told {key!r}.") from error


def forget_in_job(key: str) -> None:
  """Removes what was told under a key, which nobody asks for any more."""
  distributed.global_state.client.key_value_delete(key)
