# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Custom steps for tests: what is allowed on TPU, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_operands
import numpy as np

_COLUMNS = 16
_SIZES = tpu_operands.Sizes(embedding_dim=_COLUMNS)
_KEPT = dict(axis=1, keepdims=True)

Step = Callable[..., Any]


def custom_program(
    step: Step | None = None,
    *,
    sizes: tpu_operands.Sizes = _SIZES,
    stablehlo: str | None = None,
) -> tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]:
  """The update with a step that has a slot and a hyperparameter, and operands."""

  def update(coo, table, slot, gradient, rate):
    return custom_update.custom_update_p.bind(
        *coo,
        gradient,
        rate,
        table,
        slot,
        num_hyperparameters=1,
        custom_computation_fn=step,
        stablehlo=stablehlo,
        computation_name="mine",
        **tpu_operands.LIMITS,
    )

  rate = jax.ShapeDtypeStruct((), jnp.float32)
  return update, (sizes.coo(), sizes.table, sizes.table, sizes.gradient, rate)


def step_of(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Step:
  """A step that subtracts `function` of gradient and row."""
  return lambda g, w, s, rate: (w - rate * function(g, w), s + g)


def _int(x: jax.Array) -> jax.Array:
  return x.astype(jnp.int32)


def _float(x: jax.Array) -> jax.Array:
  return x.astype(jnp.float32)


def _numbers(g, w):
  g = g + w * 2 - w / 3 + abs(-g) + jnp.sign(g) + jnp.square(w) + g**3
  g = g + jnp.sqrt(w) + lax.rsqrt(g) + jnp.cbrt(g) + jnp.abs(w) ** 0.3
  g = g + jnp.exp(g) + jnp.log(w) + jnp.log1p(w) + jnp.expm1(g) + jnp.exp2(w)
  g = g + jnp.tanh(g) + lax.logistic(w) + jnp.sin(g) + jnp.cos(w) + jnp.tan(w)
  g = g + jnp.arctan2(g, w) + jnp.floor(g) + jnp.ceil(w) + g % w
  return jnp.clip(jnp.maximum(g, jnp.minimum(w, 1)), -1, 1)


def _comparisons(g, w):
  chosen = ((g > w) | (g == w)) & ~(g <= 0) ^ (w != g) & ~jnp.isnan(w)
  return jnp.where(chosen, g, 2 * w) + _float(g < w)


def _integers(g, w):
  i = _int(g)
  i = (i + 3) * _int(w) - i // 5 + jnp.maximum(i, 2) + (i & 7) + (i << 2)
  bits = lax.bitcast_convert_type(w, jnp.uint32)
  bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
  return _float(i) + lax.bitcast_convert_type(bits, jnp.float32)


def _constants(g, w):
  row = np.linspace(1, 2, _COLUMNS, dtype=np.float32)
  return g * row + w * jnp.arange(_COLUMNS, dtype=jnp.float32)


def _constant_computations(g, w):
  noise = jax.random.normal(jax.random.key(0), g.shape)
  return g * jnp.flip(jnp.cumsum(jnp.linspace(0, 1, _COLUMNS))) + w * noise


def _loops(g, w):
  def body(i, x):
    return lax.fori_loop(0, 2, lambda j, y: y * 0.5 + j * w, x) + i * g

  return lax.fori_loop(0, 3, body, g)


def _inner_functions(g, w):
  inner = jax.jit(lambda x: jax.nn.relu(x) + jax.nn.silu(x))
  kept = lax.cond(True, lambda x: x * 2, lambda x: x, inner(w))
  return inner(g) + jax.checkpoint(jnp.tanh)(kept)


def _shapes(g, w):
  return g.T.T + w[0][None] + jnp.zeros_like(w)


def _gradients(g, w):
  return jax.grad(lambda x: jnp.sum(jnp.tanh(x) * w))(g)


# What every compiler takes, also together. (Beside a constant row of floats,
# libtpu 0.0.51 does not take one of booleans.)
ALLOWED = {
    "numbers": _numbers,
    "comparisons": _comparisons,
    "integers": _integers,
    "reduced_precision": lambda g, w: lax.reduce_precision(g * w, 8, 7),
    "constants": _constants,
    "constant_computations": _constant_computations,
    "loops": _loops,
    "inner_functions": _inner_functions,
    "shapes": _shapes,
    "gradients": _gradients,
}


def _sums(g, w):
  deviation = jnp.std(g, **_KEPT)
  return w * jnp.sum(g, **_KEPT) / (1 + jnp.max(g, **_KEPT)) + deviation


def _choice(g, w):
  square = jnp.broadcast_to(jnp.sum(g * g, **_KEPT), g.shape)
  return jnp.where(square > 1, g, w)


def _norm(g, w):
  norm = jnp.linalg.norm(g, axis=1, keepdims=True)
  return w * g / jnp.maximum(norm, 1)


# What newer ones take, libtpu 0.0.51 all of it; words of the error before.
NEWER = {
    "sums": (_sums, "a step with a sum"),
    "norm": (_norm, "a step with a sum"),
    "choice": (_choice, "a step with a sum"),
    "softmax": (lambda g, w: jax.nn.softmax(g, axis=1), "a step with a sum"),
    "bfloat16": (
        lambda g, w: _float(g.astype(jnp.bfloat16) * w.astype(jnp.bfloat16)),
        "bfloat16",
    ),
    "int8": (lambda g, w: _float(g.astype(jnp.int8)), "int8"),
    "round": (lambda g, w: lax.round(g), "lax.round"),
}


# What none takes, or one chip's ends the process for: the operation that the
# error names, and what to do instead.
REFUSED = {
    "column": (lambda g, w: w * g[:, :1], "stablehlo.slice", "jnp.where"),
    "number": (lambda g, w: w * g[0, 3], "stablehlo.slice", "jnp.where"),
    "halves": (
        lambda g, w: jnp.concatenate([g[:, 8:], g[:, :8]], axis=1),
        "stablehlo.slice",
        "jnp.where",
    ),
    "roll": (lambda g, w: jnp.roll(g, 1, axis=1), "stablehlo.slice", ""),
    "set": (lambda g, w: g.at[:, 0].set(0.0), "stablehlo.scatter", "jnp.where"),
    "take": (
        lambda g, w: g[:, np.array([*range(8, 16), *range(8)])],
        "stablehlo.gather",
        "jnp.where",
    ),
    "reverse": (lambda g, w: lax.rev(g, (1,)), "stablehlo.reverse", "stay"),
    "sort": (lambda g, w: jnp.sort(g, axis=1), "stablehlo.sort", "stay"),
    "top_k": (lambda g, w: w * lax.top_k(g, 1)[0], "chlo.top_k", "stay"),
    "cumsum": (
        lambda g, w: jnp.cumsum(g, axis=1),
        "stablehlo.reduce_window",
        "jnp.sum",
    ),
    "dot": (lambda g, w: w * (g @ w.T), "stablehlo.dot_general", "jnp.sum"),
    "sum_to_a_number": (
        lambda g, w: w * jnp.sum(g),
        "stablehlo.reduce",
        "keepdims=True",
    ),
    "norm_to_a_number": (
        lambda g, w: w / jnp.linalg.norm(g),
        "stablehlo.reduce",
        "keepdims=True",
    ),
    "min": (
        lambda g, w: w * jnp.min(g, **_KEPT),
        "stablehlo.reduce",
        "a sum or a maximum",
    ),
    "any": (
        lambda g, w: jnp.where(jnp.any(g > 0, **_KEPT), g, w),
        "stablehlo.reduce",
        "a sum or a maximum",
    ),
    "argmax": (
        lambda g, w: w * _float(jnp.argmax(g, **_KEPT)),
        "stablehlo.reduce",
        "a sum or a maximum",
    ),
    "while": (
        lambda g, w: lax.while_loop(
            lambda x: x[0] < 3, lambda x: (x[0] + 1, x[1] * w), (0, g)
        )[1],
        "stablehlo.while",
        "a loop of Python",
    ),
    "long_loop": (
        lambda g, w: lax.fori_loop(0, 65, lambda i, x: x * 0.5 + w, g),
        "stablehlo.while",
        "at most 64",
    ),
    "cond": (
        lambda g, w: lax.cond(jnp.max(g) > 0, jnp.tanh, jnp.sin, g),
        "stablehlo.(reduce|case)",
        "",
    ),
    "choice": (
        lambda g, w: jnp.where(jnp.sum(g * g, **_KEPT) > 1, g, w),
        "stablehlo.broadcast_in_dim",
        "jnp.broadcast_to",
    ),
    "is_finite": (
        lambda g, w: jnp.where(jnp.isfinite(g), g, w),
        "stablehlo.is_finite",
        "jnp.abs",
    ),
    "round_to_even": (
        lambda g, w: w * jnp.round(g),
        "stablehlo.round_nearest_even",
        "jnp.floor",
    ),
    "leading_zeros": (
        lambda g, w: _float(lax.clz(_int(g))),
        "stablehlo.count_leading_zeros",
        "",
    ),
    "barrier": (
        lambda g, w: lax.optimization_barrier(g) * w,
        "stablehlo.optimization_barrier",
        "Leave it out",
    ),
    "float16": (
        lambda g, w: _float(g.astype(jnp.float16)),
        "stablehlo.convert",
        "float32",
    ),
}
