# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A function of rows as a program on the registers of a subcore.

The step of an optimizer is written for arrays [1, D] (lib/core/update_rules.py). It
is traced, and each of its operations runs on every register of its operands. An
array of D numbers is a list of registers, one of a single number is one
register that has it in every lane. Types of 16 bits are float32 here, rounded
after every operation.

What Pallas does not have for these cores, or not in every JAX, is made of what
it has: functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import jaxpr_interpreter
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import float16_bits
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import functions
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import row_registers
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import subcores
import numpy as np

Register = row_registers.Register
NotTaken = subcores.NotTaken
Value = list[Register]  # of D numbers, or one of them

_HALF_TYPES = (jnp.bfloat16, jnp.float16)
# They hold what they hold in other shapes.
_RESHAPES = frozenset(
    ("broadcast_in_dim", "copy", "copy_p", "expand_dims", "reshard", "reshape")
    + ("optimization_barrier", "pvary", "squeeze", "stop_gradient", "transpose")
)
# What Pallas lowers for vector subcores in every JAX of the range.
_OPERATIONS = frozenset(
    ("abs", "add", "add_any", "and", "div", "eq", "exp", "ge", "gt", "le")
    + ("lt", "max", "min", "mul", "ne", "neg", "not", "or", "select_n")
    + ("shift_left", "shift_right_arithmetic", "shift_right_logical", "sub")
    + ("xor",)
)


@dataclasses.dataclass(frozen=True)
class RowProgram:
  """A function that was traced."""

  jaxpr: Any  # closed
  dim: int
  constants: tuple[np.ndarray, ...]  # f32[D] each, which the kernel has to read
  # Whether a column depends on others, or there is a number in the results: the
  # registers of a row are needed at once.
  needs_whole_rows: bool

  def run(
      self,
      arguments: Sequence[Value],
      columns: Sequence[Register],
      constants: Sequence[Value] = (),
  ) -> list[Value]:
    """The results, for a window of the columns.

    Args:
      arguments: registers of each; one for those of a single number.
      columns: i32[lanes], those of each register.
      constants: registers of self.constants.
    """
    by_id = dict(zip(map(id, self._rows()), constants, strict=True))
    window = _Window(self.dim, list(columns))

    def constant(x):
      if id(x) in by_id:
        return by_id[id(x)]
      return _number(x, columns[0])

    return [
        window.spread(value) if _is_row(aval, self.dim) else value
        for aval, value in zip(
            self.jaxpr.out_avals,
            jaxpr_interpreter.evaluate(
                self.jaxpr, arguments, window.bind, constant
            ),
            strict=True,
        )
    ]

  def _rows(self):
    return [x for x in self.jaxpr.consts if np.size(x) > 1]


def trace(
    function: Callable[..., Sequence[jax.Array]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    dim: int,
) -> RowProgram:
  """`function` of arrays of `shapes`, which have D numbers or one.

  Raises:
    NotTaken: if it has an operation that does not run on registers.
  """
  jaxpr = jax.make_jaxpr(function)(*shapes)
  program = RowProgram(
      jaxpr=jaxpr,
      dim=dim,
      constants=tuple(
          _constant_row(x, dim) for x in jaxpr.consts if np.size(x) > 1
      ),
      needs_whole_rows=_mixes_columns(jaxpr, dim)
      or not all(_is_row(aval, dim) for aval in jaxpr.out_avals),
  )
  # Runs it once for one register a row, to see what it has.
  row = lambda aval: [
      jnp.zeros((functions.LANES_TO_TRY,), _held(aval.dtype))
      for _ in range(2 if _is_row(aval, dim) else 1)
  ]
  try_columns = [jnp.arange(functions.LANES_TO_TRY)] * 2
  jax.eval_shape(
      lambda: program.run(
          [row(aval) for aval in jaxpr.in_avals],
          try_columns,
          [row(jax.ShapeDtypeStruct((dim,), jnp.float32))]
          * len(program.constants),
      )
  )
  return program


def _constant_row(x, dim):
  if np.size(x) != dim or jnp.dtype(x.dtype) != jnp.float32:
    raise NotTaken(
        f"A step has a constant {jnp.dtype(x.dtype).name}{list(np.shape(x))}."
        f" Rows of {dim} float32 can be."
    )
  return np.asarray(x).reshape(dim)


def _is_row(aval: Any, dim: int) -> bool:
  """Whether it has D numbers; else it has one."""
  size = math.prod(aval.shape)
  if size == 1 and dim != 1:
    return False
  if size == dim:
    return True
  raise NotTaken(
      f"A step has an array of shape {tuple(aval.shape)}, which is neither a"
      f" row of {dim} numbers nor a number."
  )


def _mixes_columns(jaxpr: Any, dim: int) -> bool:
  jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
  for eqn in jaxpr.eqns:
    before = [v.aval for v in eqn.invars if math.prod(v.aval.shape) == dim]
    after = [v.aval for v in eqn.outvars if math.prod(v.aval.shape) != dim]
    if before and after:
      return True
    for parameter in eqn.params.values():
      parts = parameter if isinstance(parameter, (tuple, list)) else [parameter]
      for part in parts:
        if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
          if _mixes_columns(part, dim):
            return True
  return False


def _number(x: Any, like: Register) -> Value:
  """A constant number; that of a program may be one of Python."""
  x = np.reshape(x, ())
  dtype = jax.dtypes.canonicalize_dtype(x.dtype)
  return [jnp.full_like(like, x.astype(dtype), _held(dtype))]


def _held(dtype: Any) -> Any:
  """The type of the registers of a type."""
  dtype = jnp.dtype(dtype)
  if dtype in map(jnp.dtype, _HALF_TYPES):
    return jnp.dtype(jnp.float32)
  if dtype == jnp.uint16:
    return jnp.dtype(jnp.uint32)
  if dtype in map(jnp.dtype, (jnp.float32, jnp.int32, jnp.uint32, jnp.bool_)):
    return dtype
  raise NotTaken(
      f"A step has numbers {dtype.name}. Registers are float32, int32 or uint32."
  )


class _Window:
  """The columns that are computed at once."""

  def __init__(self, dim: int, columns: list[Register]):
    self._dim = dim
    self._columns = columns
    # Of a register with square roots, by its id: itself, and 1 / itself.
    self._inverses: dict[int, tuple[Register, Register]] = {}

  def spread(self, value: Value) -> Value:
    """As many registers as a row has."""
    if len(value) == len(self._columns):
      return value
    (register,) = value
    return [register] * len(self._columns)

  def bind(self, eqn: core.JaxprEqn, operands: Sequence[Value]) -> Any:
    """What one operation makes of registers."""
    name = eqn.primitive.name
    out = [v.aval for v in eqn.outvars]
    held = [_held(aval.dtype) for aval in out]
    if name in _RESHAPES:
      results = list(operands)
      if not eqn.primitive.multiple_results:
        results = operands[0]
        _is_row(out[0], self._dim)
      return results
    if name in ("scan", "while", "cond"):
      return getattr(self, f"_{name}")(eqn, operands)
    if name == "iota":
      columns = [c.astype(held[0]) for c in self._columns]
      shape, axis = eqn.params["shape"], eqn.params["dimension"]
      if shape[axis] != self._dim or not _is_row(out[0], self._dim):
        raise NotTaken(f"A step counts along an array of shape {shape}.")
      return columns
    if name.startswith("reduce_") and name in functions.REDUCTIONS:
      return self._reduce(eqn, operands[0], functions.REDUCTIONS[name])
    if name in ("argmax", "argmin"):
      return self._index_of_extreme(eqn, operands[0])
    if name == "slice":
      return self._column(eqn, operands[0])
    if name == "dot_general":
      return self._dot(eqn, *operands)
    return self._elementwise(eqn, name, operands)

  def _elementwise(self, eqn, name, operands):
    """On each register by itself."""
    (out,) = (v.aval for v in eqn.outvars)
    _is_row(out, self._dim)
    if name == "sqrt":
      function = self._sqrt
    elif name == "div" and id(operands[1][0]) in self._inverses:
      function = self._divide_by_root
    elif name in functions.FUNCTIONS:
      function = functools.partial(functions.FUNCTIONS[name], eqn)
    elif name in _OPERATIONS:
      function = functools.partial(eqn.primitive.bind, **eqn.params)
    else:
      raise NotTaken(
          f"A step has the operation {name}, which does not run on the"
          " registers of SparseCores."
      )
    size = max(map(len, operands))
    spread = [list(x) if len(x) == size else list(x) * size for x in operands]
    results = [function(*registers) for registers in zip(*spread, strict=True)]
    if out.dtype in _HALF_TYPES:
      results = [float16_bits.round_to(x, out.dtype) for x in results]
    return results

  def _sqrt(self, x):
    root = functions.sqrt(x)
    self._inverses[id(root)] = root, functions.inverse_sqrt(x)
    return root

  def _divide_by_root(self, x, root):
    """A product, which takes fewer instructions than the quotient."""
    return x * self._inverses[id(root)][1]

  # --- What needs all columns ---

  def _whole(self, value, neutral):
    """Registers of a row, with a number in place of columns that are none."""
    registers = self.spread(value)
    if self._dim % registers[0].size == 0:
      return registers
    neutral = jnp.asarray(neutral, registers[0].dtype)
    return [
        jnp.where(c < self._dim, x, jnp.full_like(x, neutral))
        for c, x in zip(self._columns, registers, strict=True)
    ]

  def _reduce(self, eqn, value, reduction):
    aval = eqn.invars[0].aval
    _is_row(eqn.outvars[0].aval, self._dim)
    if not _is_row(aval, self._dim) or _is_row(eqn.outvars[0].aval, self._dim):
      return value
    is_bool = aval.dtype == jnp.bool_
    if is_bool:
      value = [functions.as_numbers(x) for x in value]
    registers = self._whole(value, reduction.neutral_of(value[0].dtype))
    together = functools.reduce(reduction.combine, registers)
    number = reduction.of_lanes(together)
    result = jnp.full_like(together, number)
    return [result > 0 if is_bool else result]

  def _index_of_extreme(self, eqn, value):
    """The first column of the largest, or smallest, number."""
    name = {"argmax": "reduce_max", "argmin": "reduce_min"}[eqn.primitive.name]
    reduction = functions.REDUCTIONS[name]
    registers = self._whole(value, reduction.neutral_of(value[0].dtype))
    if not _is_row(eqn.invars[0].aval, self._dim):
      return [jnp.zeros_like(self._columns[0])]
    extreme = reduction.of_lanes(functools.reduce(reduction.combine, registers))
    first = functions.REDUCTIONS["reduce_min"]
    places = [
        jnp.where(x == extreme, c, jnp.full_like(c, self._dim))
        for c, x in zip(self._columns, registers, strict=True)
    ]
    number = first.of_lanes(functools.reduce(first.combine, places))
    return [jnp.full_like(places[0], number).astype(eqn.params["index_dtype"])]

  def _column(self, eqn, value):
    """One column, which is a number."""
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    if before.shape == after.shape or not _is_row(before, self._dim):
      return value
    if _is_row(after, self._dim):
      return value
    (column,) = (
        start
        for start, size in zip(eqn.params["start_indices"], before.shape)
        if size == self._dim
    )
    total = functions.REDUCTIONS["reduce_sum"]
    chosen = [
        jnp.where(c == column, x, jnp.zeros_like(x))
        for c, x in zip(self._columns, self.spread(value), strict=True)
    ]
    number = total.of_lanes(functools.reduce(total.combine, chosen))
    return [jnp.full_like(chosen[0], number)]

  def _dot(self, eqn, x, y):
    """The sum of products of two rows."""
    (out,) = (v.aval for v in eqn.outvars)
    if _is_row(out, self._dim) or not _is_row(eqn.invars[0].aval, self._dim):
      raise NotTaken(
          "A step has a product of matrices. Rows can be multiplied."
      )
    total = functions.REDUCTIONS["reduce_sum"]
    products = [
        a * b for a, b in zip(self.spread(x), self.spread(y), strict=True)
    ]
    together = functools.reduce(total.combine, self._whole(products, 0))
    return [jnp.full_like(together, total.of_lanes(together))]

  # --- Control ---

  def _carry(self, avals, values):
    """In a loop every value has as many registers as it can come to have."""
    return [
        self.spread(value) if _is_row(aval, self._dim) else value
        for aval, value in zip(avals, values, strict=True)
    ]

  def _inner(self, jaxpr, arguments):
    def constant(x):
      if np.size(x) > 1:
        raise NotTaken("A step has a constant row inside a loop.")
      return _number(x, self._columns[0])

    return jaxpr_interpreter.evaluate(jaxpr, arguments, self.bind, constant)

  def _scan(self, eqn, operands):
    num_consts, num_carry = jax_private.num_consts_and_carry(eqn.params)
    if len(operands) > num_consts + num_carry or len(eqn.outvars) > num_carry:
      raise NotTaken("A step has a loop over the elements of an array.")
    consts = list(operands[:num_consts])
    avals = [v.aval for v in eqn.outvars]

    def body(_, carry):
      results = self._inner(eqn.params["jaxpr"], [*consts, *carry])
      return self._carry(avals, results)

    carry = self._carry(avals, operands[num_consts:])
    return jax.lax.fori_loop(0, eqn.params["length"], body, carry)

  def _while(self, eqn, operands):
    params = eqn.params
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = list(operands[:of_cond])
    body_consts = list(operands[of_cond : of_cond + of_body])
    avals = [v.aval for v in eqn.outvars]

    def goes_on(carry):
      ((condition,),) = self._inner(
          params["cond_jaxpr"], [*cond_consts, *carry]
      )
      return functions.as_numbers(condition)[0] > 0

    def body(carry):
      results = self._inner(params["body_jaxpr"], [*body_consts, *carry])
      return self._carry(avals, results)

    carry = self._carry(avals, operands[of_cond + of_body :])
    return jax.lax.while_loop(goes_on, body, carry)

  def _cond(self, eqn, operands):
    """Both branches are computed: there is nothing in them that may not be."""
    (index,), *arguments = operands
    avals = [v.aval for v in eqn.outvars]
    branches = [
        self._carry(avals, self._inner(branch, arguments))
        for branch in eqn.params["branches"]
    ]
    if index.dtype == jnp.bool_:
      index = functions.as_numbers(index)
    results = branches[-1]
    for number, branch in reversed(list(enumerate(branches[:-1]))):
      results = [
          [
              jnp.where(index <= number, x, y)
              for x, y in zip(chosen, other, strict=True)
          ]
          for chosen, other in zip(branch, results, strict=True)
      ]
    return results
