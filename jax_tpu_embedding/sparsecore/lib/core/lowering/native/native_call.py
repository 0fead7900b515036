# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Native calls, in functions of arrays and in rules that are one such call.

A rule is a function of arrays, and JAX traces it before it lowers it. If the
rule is one native call, that takes 0.25 ms instead of 0.1. So such rules run on
the values of the program themselves, here called `Operand`, and what they need
is here for both: a call, and a jnp function of one operand. What else they do,
over several devices for example, is `traced`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import earlier_readers
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Operand:
  """A value of the program that is being lowered, and what is known of it."""

  ctx: mlir.LoweringRuleContext
  value: mlir.ir.Value
  aval: jax.core.ShapedArray

  @property
  def shape(self) -> tuple[int, ...]:
    return self.aval.shape

  @property
  def dtype(self) -> np.dtype:
    return self.aval.dtype

  @property
  def ndim(self) -> int:
    return self.aval.ndim

  @property
  def size(self) -> int:
    return self.aval.size


Array = jax.Array | Operand


def operands_of(
    ctx: mlir.LoweringRuleContext, values: Sequence[mlir.ir.Value]
) -> list[Operand]:
  """The operands of the operation that is being lowered."""
  return list(map(Operand, [ctx] * len(values), values, ctx.avals_in))


def values_of(
    results: Sequence[Operand | mlir.ir.Value],
) -> list[mlir.ir.Value]:
  """What JAX takes from a lowering rule."""
  return [x.value if isinstance(x, Operand) else x for x in results]


@dataclasses.dataclass(frozen=True, eq=False)  # a parameter has to have a hash
class _Call:
  """What a native call is told beside its operands."""

  target: str
  results: Sequence[jax.core.ShapedArray]
  aliases: Mapping[int, int]
  after_readers: bool
  attributes: Mapping[str, Any]


def call(
    target: str,
    operands: Sequence[Array],
    results: Sequence[jax.core.ShapedArray] | None = None,
    *,
    aliases: Mapping[int, int] | None = None,
    after_readers: bool = False,
    **attributes: Any,
) -> Sequence[Array]:
  """The results of the native call `target`.

  Args:
    target: the name that the handler is registered by.
    operands: of the call.
    results: their shapes and types. None: those of the operation whose rule
      this is, and the operands are Operands.
    aliases: number of an operand -> number of the result that overwrites it.
    after_readers: whether the call gets operands at the end that it ignores:
      what was read from the operands that it overwrites. See
      earlier_readers.py.
    **attributes: of the call.
  """
  if results is None:
    results = operands[0].ctx.avals_out
  native = _Call(target, results, aliases or {}, after_readers, attributes)
  if isinstance(operands[0], Operand):
    ctx = operands[0].ctx
    values = _lower(
        ctx.replace(avals_in=[x.aval for x in operands], avals_out=results),
        *[x.value for x in operands],
        call=native,
    )
    return list(map(Operand, [ctx] * len(results), values, results))
  if after_readers:
    return _call_p.bind(*operands, call=native)
  return jax.ffi.ffi_call(target, results, input_output_aliases=aliases)(
      *operands, **attributes
  )


def apply(function: Callable[[jax.Array], jax.Array], operand: Array) -> Array:
  """`function(operand)`."""
  if not isinstance(operand, Operand):
    return function(operand)
  (result,) = jax.make_jaxpr(function)(operand.aval).out_avals
  (value,) = _lower_function(function, [operand])
  return Operand(operand.ctx, value, result)


def traced(
    function: Callable[..., Sequence[jax.Array]],
    operands: Sequence[Array],
    *args: Any,
) -> Sequence[jax.Array | mlir.ir.Value]:
  """`function(operands, *args)`, of arrays: Operands become such."""
  if not isinstance(operands[0], Operand):
    return function(operands, *args)
  return _lower_function(
      lambda *arrays: list(function(arrays, *args)), operands
  )


def _lower_function(
    function: Callable[..., Any], operands: Sequence[Operand]
) -> Sequence[mlir.ir.Value]:
  """Adds the operations of `function` to the program.

  In it everything varies along the axis. To say so at each step is what
  check_vma asks for; the results are what abstract evaluation says in any case.
  """
  ctx = operands[0].ctx.replace(avals_in=[x.aval for x in operands])
  lower = mlir.lower_fun(lambda *arrays: jax.tree.leaves(function(*arrays)))
  with jax_private.without_check_vma():
    return lower(ctx, *[x.value for x in operands])


def _lower(
    ctx: mlir.LoweringRuleContext, *values: mlir.ir.Value, call: _Call
) -> Sequence[mlir.ir.Value]:
  """Adds the call to the program."""
  if call.after_readers:
    readers = earlier_readers.results_of_earlier_readers(
        [values[k] for k in call.aliases]
    )
    # Of these operands, only the rank matters.
    avals = [
        jax.core.ShapedArray(value.type.shape, np.float32) for value in readers
    ]
    ctx = ctx.replace(avals_in=[*ctx.avals_in, *avals])
    values = (*values, *readers)
  return jax.ffi.ffi_lowering(
      call.target, operand_output_aliases=dict(call.aliases)
  )(ctx, *values, **call.attributes)


_call_p = core.Primitive("native_call_after_readers")
_call_p.multiple_results = True


@_call_p.def_abstract_eval
def _abstract_eval(*operands, call: _Call):
  """What is overwritten stays what it is."""
  results = list(call.results)
  for operand, result in call.aliases.items():
    results[result] = operands[operand]
  return results


# Not cacheable: JAX would lower one instance by itself and copy it, without
# what stands before it.
mlir.register_lowering(_call_p, _lower, cacheable=False)
