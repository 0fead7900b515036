# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A caller's step without what the TPU compiler need not see.

Constants are computed here, by JAX, whatever it takes; functions inside of the
step are part of it; and short loops are written out, since the compiler takes
no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax_tpu_embedding.sparsecore.lib.core import jax_private

# Of iterations: each of them is compiled.
MAX_LOOP_LENGTH = 64

_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2")
    + ("custom_jvp_call", "custom_vjp_call")
)


def plain_step(
    function: Callable[..., Sequence[jax.Array]],
) -> Callable[..., list[jax.Array]]:
  """`function` of arrays, in such operations."""

  def plain(*arrays):
    program = jax.make_jaxpr(function)(*arrays)
    return _evaluate(program.jaxpr, program.consts, arrays)

  return plain


def _evaluate(
    jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]
) -> list[Any]:
  values = dict(zip(jaxpr.constvars, consts, strict=True))
  values.update(zip(jaxpr.invars, arguments, strict=True))

  def read(atom):
    return values[atom] if isinstance(atom, core.Var) else atom.val

  for eqn in jaxpr.eqns:
    operands = list(map(read, eqn.invars))
    results = _results(eqn, operands)
    if not eqn.primitive.multiple_results:
      results = [results]
    values.update(zip(eqn.outvars, results, strict=True))
  return list(map(read, jaxpr.outvars))


def _results(eqn: core.JaxprEqn, operands: Sequence[Any]) -> Any:
  name, params = eqn.primitive.name, eqn.params
  if name in _CALLS:
    inner = params["jaxpr" if "jaxpr" in params else "call_jaxpr"]
    return _evaluate(*_jaxpr_and_consts(inner), operands)
  is_constant = not any(isinstance(x, jax.core.Tracer) for x in operands)
  if is_constant and not eqn.effects:
    with jax.ensure_compile_time_eval():
      return eqn.primitive.bind(*operands, **params)
  if name == "scan" and params["length"] <= MAX_LOOP_LENGTH:
    return _iterate(params, operands)
  return eqn.primitive.bind(*operands, **params)


def _jaxpr_and_consts(
    jaxpr: core.Jaxpr | core.ClosedJaxpr,
) -> tuple[core.Jaxpr, Sequence[Any]]:
  return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _iterate(params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
  """What lax.scan returns, and lax.fori_loop if its bounds are known."""
  num_consts, num_carry = jax_private.num_consts_and_carry(params)
  consts = operands[:num_consts]
  carry = operands[num_consts : num_consts + num_carry]
  sequences = operands[num_consts + num_carry :]
  body, body_consts = _jaxpr_and_consts(params["jaxpr"])
  order = range(params["length"])
  outputs = {}
  for i in reversed(order) if params["reverse"] else order:
    elements = [values[i] for values in sequences]
    results = _evaluate(body, body_consts, (*consts, *carry, *elements))
    carry, outputs[i] = results[:num_carry], results[num_carry:]
  stacked = zip(*(outputs[i] for i in order), strict=True)
  return [*carry, *map(jax.numpy.stack, stacked)]
