# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Initializers, some rows at a time, by programs that tables of all sizes share.

The number that jax.random draws for an element is a hash of the key and of the
position of the element, and common initializers compute each element from that
number alone. So any rows can be made without the others, with the same bits, by
a program that knows neither the size of the table nor which rows they are.

`trace` calls an initializer and keeps its operations, if they are such. One that
does anything else, as splitting the key, has no recipe, and is used as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Hashable
import dataclasses
import functools
from typing import Any

import jax
from jax import export
from jax.extend import core
from jax.extend import random as extend_random
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

# Operations on each element, after which rows do not depend on other rows.
_ELEMENTWISE = frozenset(
    {
        "abs",
        "add",
        "and",
        "bitcast_convert_type",
        "clamp",
        "convert_element_type",
        "copy",
        "cos",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "not",
        "or",
        "pow",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    }
)
# Operations that are those of a jaxpr in their parameters.
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call"}
)
# Positions are products of a row and a width, each computed from 16 bits.
_MAX_WIDTH = 2**16


@dataclasses.dataclass(frozen=True)
class _Operation:
  """One step of a recipe; operands and result are numbers of values."""

  primitive: Any
  operands: tuple[int, ...]
  results: tuple[int, ...]
  params: tuple[tuple[str, Any], ...]
  is_of_rows: bool  # whether a result has the rows, rather than one element
  ends_call: bool = False  # whether the initializer itself sees the result


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The operations of an initializer, without its shape and its numbers.

  Hashable: tables with equal recipes are made by one program.

  Attributes:
    operations: in order. Value 0 is the key, then come the `num_scalars`.
    num_scalars: numbers that the initializer has, as its scale.
    constants: scalars inside of the functions that it calls, by value.
    result: the number of the value that is the table.
  """

  operations: tuple[_Operation, ...]
  num_scalars: int
  constants: tuple[tuple[int, bytes, str, tuple[int, ...]], ...]
  result: int

  def rows(
      self,
      scalars: list[jax.Array],
      shape: tuple[int, int],
      draw: Callable[[], jax.Array],
  ) -> jax.Array:
    """f32[n, D], in a program.

    Args:
      scalars: those of `trace`.
      shape: [n, D].
      draw: returns the random bits of these rows, u32[n, D].
    """
    values: dict[int, Any] = dict(enumerate(scalars, 1))
    for number, data, dtype, of_shape in self.constants:
      values[number] = np.frombuffer(data, dtype).reshape(of_shape)
    for operation in self.operations:
      name = operation.primitive.name
      operands = [values[i] for i in operation.operands if i]
      if name == "random_bits":
        results = [draw()]
      elif name == "broadcast_in_dim" and operation.is_of_rows:
        results = [jnp.broadcast_to(jnp.reshape(operands[0], ()), shape)]
      else:
        results = operation.primitive.bind(*operands, **dict(operation.params))
        if not operation.primitive.multiple_results:
          results = [results]
      if operation.ends_call:
        # JAX runs what is called here program by program, without this one
        # reassociating the products of two of them.
        results = jax.lax.optimization_barrier(results)
      values.update(zip(operation.results, results))
    result = jnp.asarray(values[self.result], jnp.float32)
    return jnp.broadcast_to(result, shape)


class _IsOther(Exception):
  """The initializer does something that rows alone cannot."""


@dataclasses.dataclass(frozen=True)
class TracedInitializer:
  """An initializer that was called once, for a key and a shape.

  Attributes:
    initializer: the function.
    shape: what it was called for.
    jaxpr: of (key) -> table; None if it was called for any number of rows.
    recipe: None if rows cannot be made alone.
    scalars: of the recipe.
  """

  initializer: Callable[..., Any]
  shape: tuple[int, int]
  jaxpr: core.ClosedJaxpr | None = None
  recipe: Recipe | None = None
  scalars: tuple[np.ndarray, ...] = ()

  def __call__(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """The initializer, which is not called again for the same shape."""
    if self.jaxpr is None or shape != self.shape:
      return self.initializer(key, shape)
    (table,) = core.jaxpr_as_fun(self.jaxpr)(key)
    return table


def trace(
    initializer: Callable[..., Any], key: jax.Array, shape: tuple[int, int]
) -> TracedInitializer:
  """Calls an initializer for tracers.

  Args:
    initializer: called as initializer(key, shape).
    key: a key of jax.random.key.
    shape: of the table.

  Raises:
    What the initializer raises.
  """
  if _is_of_shape_alone(initializer) and shape[0] > 1 and _has_rows(key, shape):
    traced = _trace_any_rows(initializer, key, shape)
    if traced is not None:
      return traced
  jaxpr = _call(initializer, key, shape)
  recipe, scalars = None, ()
  if _has_rows(key, shape):
    recipe, scalars = _read(jaxpr, shape)
  return TracedInitializer(initializer, shape, jaxpr, recipe, scalars)


# Where jax.nn.initializers are.
_OF_JAX = jax.nn.initializers.normal().__module__


def _is_of_shape_alone(initializer: Callable[..., Any]) -> bool:
  """Whether it is a function that does nothing but make what its shape says."""
  if initializer is _tables.default_initializer:
    return True
  return getattr(initializer, "__module__", None) == _OF_JAX


def _has_rows(key: jax.Array, shape: tuple[int, int]) -> bool:
  """Whether positions of such a table are what jax.random hashes."""
  return (
      jax.random.key_impl(key) == "threefry2x32"
      and jax.config.jax_threefry_partitionable  # else positions are others
      and shape[1] < _MAX_WIDTH
      and shape[0] * shape[1] > 1  # a scalar cannot be told from such a table
  )


def _trace_any_rows(
    initializer: Callable[..., Any], key: jax.Array, shape: tuple[int, int]
) -> TracedInitializer | None:
  """What `trace` returns, if it is the same for any number of rows.

  JAX traces the functions that initializers call once for each shape: for a
  model of a thousand sizes, that takes longer than the numbers. None if the
  number of rows decides about more than the shape, as it does about the scale
  of some.
  """
  try:
    # One jaxpr for tables of the same initializer, unless jax.config changed.
    program = _program_for_any_rows(_Function(initializer), shape[1])
    jaxpr = program.trace(key).jaxpr
  except Exception:  # whatever needs a number, and gets none
    return None
  recipe, scalars = _read_for_any_rows(jaxpr, shape[1])
  if recipe is None:
    return None
  return TracedInitializer(initializer, shape, None, recipe, scalars)


@functools.cache
def _any_rows() -> Any:
  # At least two: some things are otherwise for a single row.
  (rows,) = export.symbolic_shape("rows", constraints=["rows >= 2"])
  return rows


class _Function:
  """A function, equal to another of the same code and the same numbers in it.

  `jax.nn.initializers.normal(0.01)` is a new function for each table, and all
  of them do the same. Only for functions of JAX: those of others may read what
  is not compared, such as globals or `self`.
  """

  def __init__(self, function: Callable[..., Any]):
    self.function = function
    self._parts: tuple[Any, ...] = (function,)
    cells = getattr(function, "__closure__", None) or ()
    values = [cell.cell_contents for cell in cells]
    values += getattr(function, "__defaults__", None) or ()
    is_plain = all(type(x) in _PLAIN for x in values)
    if is_plain and getattr(function, "__kwdefaults__", 0) is None:
      # Their text, since 0.0 is -0.0, and 1 is True, but not here.
      self._parts = function.__code__, *map(repr, values)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Function) and self._parts == other._parts

  def __hash__(self) -> int:
    return hash(self._parts)


_PLAIN = (bool, int, float, str, type(None))


@functools.lru_cache(maxsize=64)
def _program_for_any_rows(initializer: _Function, num_columns: int) -> Any:
  call, shape = initializer.function, (_any_rows(), num_columns)
  return jax.jit(lambda key: jnp.asarray(call(key, shape)))


@functools.lru_cache(maxsize=64)
def _read_for_any_rows(
    jaxpr: core.ClosedJaxpr, num_columns: int
) -> tuple[Recipe | None, tuple[np.ndarray, ...]]:
  return _read(jaxpr, (_any_rows(), num_columns))


def _call(
    initializer: Callable[..., Any], key: jax.Array, shape: tuple[Any, int]
) -> core.ClosedJaxpr:
  return jax.make_jaxpr(lambda key: jnp.asarray(initializer(key, shape)))(key)


def _read(
    jaxpr: core.ClosedJaxpr, shape: tuple[Any, int]
) -> tuple[Recipe | None, tuple[np.ndarray, ...]]:
  """The recipe, if there is one, and its scalars."""
  reader = _Reader(shape)
  try:
    result = reader.read(jaxpr)
  except _IsOther:
    return None, ()
  recipe = Recipe(
      tuple(reader.operations),
      len(reader.scalars),
      tuple(reader.constants),
      result,
  )
  return recipe, tuple(reader.scalars)


class _Reader:
  """Reads one jaxpr, and those it calls."""

  def __init__(self, shape: tuple[int, int]):
    self._shape = shape
    self._num_values = 0
    self._is_of_rows: set[int] = set()
    self.operations: list[_Operation] = []
    self.scalars: list[np.ndarray] = []
    self.constants: list[tuple[int, bytes, str, tuple[int, ...]]] = []

  def read(self, jaxpr: core.ClosedJaxpr) -> int:
    # What the initializer itself multiplies with is an operand, as where JAX
    # runs it operation by operation. Inside of functions, it is a constant.
    lifted = self._lift(jaxpr)
    results = self._read(
        jaxpr.jaxpr,
        [self._scalar(x, lifted) for x in jaxpr.consts],
        [0],
        lifted,
        is_initializer=True,
    )
    (var,), (result,) = jaxpr.jaxpr.outvars, results
    if var.aval.shape != self._shape or var.aval.dtype != np.float32:
      raise _IsOther
    return result

  def _lift(self, jaxpr) -> dict[int, int]:
    """Gives numbers to all scalars of the jaxpr itself, by identity."""
    lifted = {}
    literals = [
        atom
        for eqn in jaxpr.jaxpr.eqns
        for atom in eqn.invars
        if isinstance(atom, core.Literal)
    ]
    literals += [
        atom for atom in jaxpr.jaxpr.outvars if isinstance(atom, core.Literal)
    ]
    for holder, value in (
        *((x, x) for x in jaxpr.consts),
        *((x, np.asarray(x.val, x.aval.dtype)) for x in literals),
    ):
      value = np.asarray(value)
      if value.size != 1:
        raise _IsOther
      if id(holder) not in lifted:
        self.scalars.append(value)
        lifted[id(holder)] = len(self.scalars)
    self._num_values = len(self.scalars)
    return lifted

  def _scalar(self, value: Any, lifted: dict[int, int]) -> int:
    if id(value) in lifted:
      return lifted[id(value)]
    if isinstance(value, core.Literal):
      value = np.asarray(value.val, value.aval.dtype)
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "fiub":
      raise _IsOther
    self._num_values += 1
    self.constants.append(
        (self._num_values, value.tobytes(), value.dtype.str, value.shape)
    )
    return self._num_values

  def _read(
      self, jaxpr, consts, inputs, lifted, is_initializer=False
  ) -> list[int]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs)))

    def number(atom):
      if isinstance(atom, core.Literal):
        return self._scalar(atom, lifted)
      return values[atom]

    for eqn in jaxpr.eqns:
      name = eqn.primitive.name
      operands = [number(atom) for atom in eqn.invars]
      if name in _CALLS:
        called = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        called_consts = [self._scalar(x, {}) for x in called.consts]
        results = self._read(called.jaxpr, called_consts, operands, {})
      else:
        results = [self._add(eqn, operands)]
      if is_initializer and self.operations:
        self.operations[-1] = dataclasses.replace(
            self.operations[-1], ends_call=self.operations[-1].is_of_rows
        )
      values.update(zip(eqn.outvars, results))
    return [number(atom) for atom in jaxpr.outvars]

  def _add(self, eqn, operands: list[int]) -> int:
    name = eqn.primitive.name
    if len(eqn.outvars) != 1:
      raise _IsOther
    out = eqn.outvars[0].aval
    is_of_rows = out.shape == self._shape
    params = dict(eqn.params)
    if name == "random_bits":
      if operands != [0] or not is_of_rows or params["bit_width"] != 32:
        raise _IsOther
      params = {}
    elif 0 in operands or not (is_of_rows or out.size == 1):
      raise _IsOther
    elif name == "broadcast_in_dim":
      if self._is_of_rows & set(operands):
        raise _IsOther
      params = {} if is_of_rows else params
    elif name not in _ELEMENTWISE:
      raise _IsOther
    for value in params.values():
      if not isinstance(value, Hashable):
        raise _IsOther
    self._num_values += 1
    if is_of_rows:
      self._is_of_rows.add(self._num_values)
    self.operations.append(
        _Operation(
            eqn.primitive,
            tuple(operands),
            (self._num_values,),
            tuple(sorted(params.items())),
            is_of_rows,
        )
    )
    return self._num_values


def draw(
    key: jax.Array, rows: jax.Array, width: jax.Array, num_columns: int
) -> jax.Array:
  """The bits that jax.random draws for rows of a table, u32[n, columns].

  Args:
    key: u32[2].
    rows: of the table, u32[n].
    width: the columns of the table, u32[], below 2^16.
    num_columns: of the result, the first ones of each row.
  """
  # What XLA compiles for CPUs takes five times as long.
  return jax.lax.platform_dependent(
      key,
      rows,
      width,
      cpu=functools.partial(cpu_calls.random_bits, num_columns=num_columns),
      default=functools.partial(_draw_in_xla, num_columns=num_columns),
  )


def _draw_in_xla(
    key: jax.Array, rows: jax.Array, width: jax.Array, num_columns: int
) -> jax.Array:
  words = extend_random.threefry2x32_p.bind(
      *key, *_positions(rows, width, num_columns)
  )
  return words[0] ^ words[1]


def _positions(
    rows: jax.Array, width: jax.Array, num_columns: int
) -> tuple[jax.Array, jax.Array]:
  """Of the elements of rows in a table of that width, as JAX counts them.

  Args:
    rows: u32[n].
    width: u32[], below 2^16.
    num_columns: of the result.

  Returns:
    The upper and the lower half of row * width + column, u32[n, columns] each.
  """
  low = (rows & 0xFFFF) * width
  high = (rows >> 16) * width
  lower = low + (high << 16)
  upper = (high >> 16) + (lower < low).astype(jnp.uint32)
  column = jax.lax.broadcasted_iota(jnp.uint32, (rows.shape[0], num_columns), 1)
  lower_of_element = lower[:, None] + column
  carry = (lower_of_element < column).astype(jnp.uint32)
  return upper[:, None] + carry, lower_of_element
