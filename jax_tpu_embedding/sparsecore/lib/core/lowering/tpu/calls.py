# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How a custom call of the TPU's SparseCores is written in a program.

The configuration is a JSON string, and a key that the compiler does not know
makes it forget the call: "Custom emitter for ... not found".

Source: docs/reference/primitives.md, "On TPU".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import json
from typing import Any

import jax
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
import numpy as np

LOOKUP = "SparseDenseMatmulOp"
LOOKUP_MINIBATCHES = "SparseDenseMatmulWithMinibatchingOp"
LOCAL_LOOKUP = "SparseDenseMatmulLocalOp"
UPDATE = "SparseDenseMatmulGradOpWithOptimizerUpdate"
UPDATE_MINIBATCHES = "SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp"

# Every call that the rules write.
TARGETS = (
    LOOKUP,
    LOOKUP_MINIBATCHES,
    LOCAL_LOOKUP,
    UPDATE,
    UPDATE_MINIBATCHES,
)

Value = mlir.ir.Value


def sparsecore_call(
    ctx: mlir.LoweringRuleContext,
    target: str,
    operands: Sequence[Value],
    *,
    result: mlir.ir.Type,
    config: Mapping[str, Any] | None = None,
    row_function: str | None = None,
) -> Value:
  """Adds one custom call to the program and returns its result.

  Args:
    ctx: that of the rule.
    target: one of TARGETS.
    operands: of the call, in its order.
    result: the type of its result.
    config: the sparse_dense_matmul_config, if the call has one.
    row_function: name of the optimizer's function, if the call has one.
  """
  backend_config = {"device_type": "DEVICE_TYPE_SPARSECORE"}
  if config is not None:
    backend_config = {"sparse_dense_matmul_config": config} | backend_config
  (value,) = jax.ffi.ffi_lowering(
      target,
      result_types=[result],
      api_version=1,  # a string for a configuration
      # Limits may be NumPy's numbers.
      backend_config=json.dumps(backend_config, default=np.generic.item),
      called_computations=[] if row_function is None else [row_function],
      # Tables have the layout that the arguments of the program have.
      skip_ffi_layout_processing=True,
  )(ctx, *operands)
  return value


def type_of(
    ctx: mlir.LoweringRuleContext, aval: jax.core.ShapedArray
) -> mlir.ir.Type:
  """The type of a value in the program."""
  return mlir.aval_to_ir_type(ctx.module_context, aval)


def tuple_type_of(
    ctx: mlir.LoweringRuleContext, avals: Sequence[jax.core.ShapedArray]
) -> mlir.ir.Type:
  """The type of one value that has several in it."""
  return mlir.ir.TupleType.get_tuple([type_of(ctx, aval) for aval in avals])


def tuple_elements(value: Value, count: int) -> list[Value]:
  """The elements of a tuple that a call returned."""
  results = []
  for index in range(count):
    element = stablehlo.GetTupleElementOp(value, index)
    # Without this mark XLA takes what uses the element for dense work.
    element.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(
        {"_xla_compute_type": mlir.ir.StringAttr.get("sparse")}
    )
    results.append(element.result)
  return results


def emit(
    ctx: mlir.LoweringRuleContext,
    function: Callable[..., jax.Array],
    operands: Sequence[Value] = (),
    avals: Sequence[jax.core.ShapedArray] = (),
) -> Value:
  """Adds the operations of `function`, and returns its result."""
  (value,) = mlir.lower_fun(function, multiple_results=False)(
      ctx.replace(avals_in=list(avals), avals_out=None), *operands
  )
  return value


def add_row_function(
    ctx: mlir.LoweringRuleContext,
    name: str,
    function: Callable[..., Sequence[jax.Array]],
    rows: Sequence[jax.core.ShapedArray],
) -> str:
  """Adds a private function with a tuple for a result to the module.

  Args:
    ctx: that of the rule.
    name: of the function.
    function: takes `rows`, and returns a sequence of rows.
    rows: its arguments.

  Returns:
    The name that the function has in the module: another one than `name` if
    that was taken.
  """
  context = ctx.module_context
  results = [
      jax.core.ShapedArray(result.shape, result.dtype)
      for result in jax.eval_shape(function, *rows)
  ]
  function_type = (
      [type_of(ctx, row) for row in rows],
      [tuple_type_of(ctx, results)],
  )
  with mlir.ir.InsertionPoint(context.module.body):
    op = func.FuncOp(name, function_type)
  op.attributes["sym_visibility"] = mlir.ir.StringAttr.get("private")
  # The symbol table changes the name if there is one like it.
  name = mlir.ir.StringAttr(context.symbol_table.insert(op)).value
  with mlir.ir.InsertionPoint(op.add_entry_block()):
    values = mlir.lower_fun(function, multiple_results=True)(
        ctx.replace(avals_in=list(rows), avals_out=None),
        *op.entry_block.arguments,
    )
    func.ReturnOp([stablehlo.TupleOp(values).result])
  return name


def operations(
    ctx: mlir.LoweringRuleContext, function: str
) -> list[mlir.ir.OpView]:
  """The operations of a function and of the functions it calls."""
  symbols = ctx.module_context.symbol_table
  found, seen, waiting = [], set(), [function]

  def visit(op):
    found.append(op.opview)
    if op.name == "func.call":
      waiting.append(mlir.ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
    return mlir.ir.WalkResult.ADVANCE

  while waiting:
    current = waiting.pop()
    if current not in seen:
      seen.add(current)
      symbols[current].operation.walk(visit)
  return found
