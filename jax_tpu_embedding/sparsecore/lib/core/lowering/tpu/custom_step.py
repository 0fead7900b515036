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
from jax_tpu_embedding.sparsecore.lib.core import jaxpr_interpreter

# Of iterations: each of them is compiled.
MAX_LOOP_LENGTH = 64


def plain_step(
    function: Callable[..., Sequence[jax.Array]],
) -> Callable[..., list[jax.Array]]:
  """`function` of arrays, in such operations."""

  def plain(*arrays):
    program = jax.make_jaxpr(function)(*arrays)
    return jaxpr_interpreter.evaluate(program, arrays, _bind)

  return plain


def _bind(eqn: core.JaxprEqn, operands: Sequence[Any]) -> Any:
  name, params = eqn.primitive.name, eqn.params
  is_constant = not any(isinstance(x, jax.core.Tracer) for x in operands)
  if is_constant and not eqn.effects:
    with jax.ensure_compile_time_eval():
      return eqn.primitive.bind(*operands, **params)
  if name == "scan" and params["length"] <= MAX_LOOP_LENGTH:
    return _iterate(params, operands)
  return eqn.primitive.bind(*operands, **params)


def _iterate(params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
  """What lax.scan returns, and lax.fori_loop if its bounds are known."""
  num_consts, num_carry = jax_private.num_consts_and_carry(params)
  consts = operands[:num_consts]
  carry = operands[num_consts : num_consts + num_carry]
  sequences = operands[num_consts + num_carry :]
  order = range(params["length"])
  outputs = {}
  for i in reversed(order) if params["reverse"] else order:
    elements = [values[i] for values in sequences]
    results = jaxpr_interpreter.evaluate(
        params["jaxpr"], (*consts, *carry, *elements), _bind
    )
    carry, outputs[i] = results[:num_carry], results[num_carry:]
  stacked = zip(*(outputs[i] for i in order), strict=True)
  return [*carry, *map(jax.numpy.stack, stacked)]
