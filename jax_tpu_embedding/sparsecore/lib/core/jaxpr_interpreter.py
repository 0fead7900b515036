# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs a program of JAX operation by operation, each in another way.

The functions that a program calls are taken for parts of it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from jax.extend import core

_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2")
    + ("custom_jvp_call", "custom_vjp_call")
)


def evaluate(
    program: core.Jaxpr | core.ClosedJaxpr,
    arguments: Sequence[Any],
    bind: Callable[[core.JaxprEqn, Sequence[Any]], Any],
    constant: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
  """The results of a program.

  Args:
    program: as jax.make_jaxpr returns it, or a part of one.
    arguments: one for each of the program's.
    bind: called with an operation and its operands; what it returns takes the
      place of its result, or of the sequence of its results.
    constant: called with each constant; its result takes the constant's place.
  """
  jaxpr = getattr(program, "jaxpr", program)
  constants = map(constant, getattr(program, "consts", ()))
  values = dict(zip(jaxpr.constvars, constants, strict=True))
  values.update(zip(jaxpr.invars, arguments, strict=True))

  def read(atom):
    return values[atom] if isinstance(atom, core.Var) else constant(atom.val)

  for eqn in jaxpr.eqns:
    operands = list(map(read, eqn.invars))
    if eqn.primitive.name in _CALLS:
      called = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
      results = evaluate(called, operands, bind, constant)
    else:
      results = bind(eqn, operands)
      if not eqn.primitive.multiple_results:
        results = [results]
    values.update(zip(eqn.outvars, results, strict=True))
  return list(map(read, jaxpr.outvars))
