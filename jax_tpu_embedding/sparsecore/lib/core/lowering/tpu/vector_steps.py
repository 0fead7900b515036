# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Functions of single numbers, for the TPU compiler, that has them in vectors.

A table without columns has rows f32[1]. The compiler puts many of them into one
vector, and of the operations of a function only those survive it that work
element by element on nothing but its arguments: a constant stays one number,
"Expected instruction to have shape equal to f32[1], actual shape is
f32[<=4096]" (libtpu 0.0.42 to 0.0.51). So shapes are forgotten here, and
constants become arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import jaxpr_interpreter
import numpy as np

# With one number in and one out, these change its shape only.
_RESHAPES = frozenset(
    ("broadcast_in_dim", "expand_dims", "reshape", "squeeze", "copy")
    + ("reduce_max", "reduce_min", "reduce_prod", "reduce_sum")
)
_ELEMENTWISE = frozenset(
    ("abs", "add", "cbrt", "ceil", "clamp", "convert_element_type", "div")
    + ("eq", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow")
    + ("is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min")
    + ("mul", "ne", "neg", "pow", "round", "rsqrt", "select_n", "sign")
    + ("sqrt", "square", "stop_gradient", "sub", "tanh", "and", "or", "not")
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorFunction:
  """`function(*arguments, *constants)`, each of them f32[1]."""

  function: Callable[..., Sequence[jax.Array]]
  constants: tuple[float, ...]


def on_vectors(
    function: Callable[..., Sequence[jax.Array]],
    arguments: Sequence[jax.core.ShapedArray],
) -> VectorFunction:
  """`function`, of arrays with one float32 each, for vectors of them.

  Args:
    function: returns a sequence of such arrays.
    arguments: those of `function`.

  Raises:
    NotImplementedError: if it has an operation that is not element by element.
  """
  program = jax.make_jaxpr(function)(*arguments)
  # By their bits, which tell zero from minus zero.
  position_of = {}

  def collect(*values):
    def constant(number):
      position_of.setdefault(number.tobytes(), len(position_of))
      return jnp.zeros(1, jnp.float32)

    return _evaluate(program, values, constant)

  vector = jax.core.ShapedArray((1,), jnp.float32)
  jax.eval_shape(collect, *[vector] * len(arguments))

  def on_arguments_and_constants(*values):
    constants = values[len(arguments) :]
    return _evaluate(
        program,
        values[: len(arguments)],
        lambda number: constants[position_of[number.tobytes()]],
    )

  return VectorFunction(
      function=on_arguments_and_constants,
      constants=tuple(
          float(np.frombuffer(bits, np.float32)[0]) for bits in position_of
      ),
  )


def _evaluate(
    program: core.ClosedJaxpr,
    arguments: Sequence[Any],
    constant: Callable[[np.float32], Any],
) -> list[Any]:
  """The results of `program`, with `constant` for its constants."""

  def vector_of(value):
    if np.size(value) != 1 or np.result_type(value) != np.float32:
      raise NotImplementedError(
          "On TPU the optimizer of a table without columns may use float32"
          f" numbers only, not {value!r}. Use a table of 8 columns."
      )
    return constant(np.float32(np.reshape(value, ())))

  return jaxpr_interpreter.evaluate(program, arguments, _bind, vector_of)


def _bind(eqn: core.JaxprEqn, operands: Sequence[Any]) -> Any:
  name = eqn.primitive.name
  if name in _RESHAPES:
    (result,) = operands
    return result
  if name in _ELEMENTWISE:
    return eqn.primitive.bind(*operands, **eqn.params)
  raise NotImplementedError(
      "On TPU the optimizer of a table without columns has to work element by"
      f" element; it uses {name}. Use a table of 8 columns."
  )
