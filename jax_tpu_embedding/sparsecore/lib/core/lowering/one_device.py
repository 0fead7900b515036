# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A lowering rule for one device as a JAX operation.

So what happens around the rule, in a program for several devices, is plain jnp.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import sharding_impls
from jax.extend import core
from jax.interpreters import mlir

# Lowers one operation: called with its context, operands and parameters.
LoweringRule = Callable[..., Any]

_call_p = core.Primitive("on_one_device")
_call_p.multiple_results = True
_call_p.def_abstract_eval(
    lambda *unused_operands, rule, avals_out, params: avals_out
)


def call(
    rule: LoweringRule,
    avals_out: Sequence[jax.core.ShapedArray],
    *operands: jax.Array,
    **params: Any,
) -> list[jax.Array]:
  """What `rule` computes from `operands`, as if there were no other device."""
  return _call_p.bind(
      *operands,
      rule=rule,
      avals_out=tuple(avals_out),
      params=tuple(params.items()),
  )


def context(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
  """`ctx` without the other devices, which a rule for one need not know."""
  alone = sharding_impls.ShardingContext(num_devices=1)
  return ctx.replace(
      module_context=ctx.module_context.replace(axis_context=alone)
  )


def _lower(ctx, *operands, rule, avals_out, params):
  del avals_out
  return rule(context(ctx), *operands, **dict(params))


# Not cacheable: the rule of an update looks at what stands before it.
mlir.register_lowering(_call_p, _lower, cacheable=False)
