# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What has to run before a table may be updated in place.

XLA lets an update overwrite its operand only if every other use of the operand
is known to come before it. Between a lookup and an update of one table there is
often nothing that says so (the gradient of a sum does not depend on the
activations), and XLA then copies the table: at 16 M rows, a thousand times the
cost of the update. An operand of the update that it ignores, the result of the
lookup, says so.

An optimization barrier does not: XLA:CPU removes barriers before it decides
about copies (tried with jaxlib 0.10.2).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import math
from typing import Any

import jax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

# The names of what as_one_reader returns, but for a number that JAX appends.
_ONE_READER = "jte_one_reader"


def as_one_reader(function: Callable[..., Any]) -> Callable[..., Any]:
  """`function`, jitted, for rules that trace it.

  None of its results may be there before it has read all of its operands: then
  an update of one of them waits for one result. It would for each result, and
  the lookups of many stacks are one such function, whose results are as many.
  """
  function.__name__ = function.__qualname__ = _ONE_READER
  return jax.jit(function)


def results_of_earlier_readers(
    tables: Sequence[mlir.ir.Value],
) -> list[mlir.ir.Value]:
  """Results of the operations lowered so far that read one of `tables`.

  Of a custom call one result, if it has any in memory of its own. Else all
  results in the block that is being lowered that are smaller than the table
  that was read. A larger one may be the table itself in another shape, and
  keeping that until the update is what forces a copy; its readers count as
  readers of the table.

  Not seen are readers outside of the block: those in the caller, when the
  update is in a nested `jax.jit`.
  """
  block = mlir.ir.InsertionPoint.current.block
  # Keyed by operation and number, in order of discovery; with whether it may be
  # a table. A slot may have one number per row: activations can be larger.
  results = {}
  # Whose result is known to be no table, whichever table was read. Many tables
  # may have one such reader.
  done = set()
  values = [(table, _num_elements(table)) for table in tables]
  while values:
    value, limit = values.pop()
    for use in value.uses:
      reader = _enclosing_operation(use.owner, block)
      if reader is None or reader in done:
        continue
      for number, result, is_new in _last_results(reader):
        if (reader, number) in results:
          continue
        may_be_table = not is_new and _num_elements(result) >= limit
        results[reader, number] = (result, may_be_table)
        if is_new:
          done.add(reader)
        if may_be_table:
          values.append((result, limit))
  return [
      result for result, may_be_table in results.values() if not may_be_table
  ]


def _enclosing_operation(
    user: mlir.ir.OpView, block: mlir.ir.Block
) -> mlir.ir.Operation | None:
  """The operation of `block` that is `user` or has it in a region, if any."""
  operation = user.operation
  while operation is not None and operation.block != block:
    operation = operation.parent
  return operation


def _last_results(
    reader: mlir.ir.Operation,
) -> list[tuple[int, mlir.ir.Value, bool]]:
  """Results of `reader` after which it has read all.

  Each with its number, and whether it is known to be in memory of its own.
  """
  results = list(enumerate(reader.results))
  smallest = lambda numbered: min(numbered, key=lambda x: _num_elements(x[1]))
  if reader.name == "func.call":
    if mlir.ir.FlatSymbolRefAttr(reader.attributes["callee"]).value.startswith(
        _ONE_READER
    ):
      return [(*smallest(results), False)]
  if reader.name == "stablehlo.custom_call":
    # All of its results are there at once.
    overwriting = _overwriting_results(reader)
    new = [x for x in results if x[0] not in overwriting]
    if new:
      return [(*smallest(new), True)]
  return [(number, result, False) for number, result in results]


def _overwriting_results(call: mlir.ir.Operation) -> set[int]:
  """The numbers of the results of a custom call that overwrite operands."""
  if "output_operand_aliases" not in call.attributes:
    return set()
  return {
      # A result that is the only one has no number.
      next(iter(stablehlo.OutputOperandAlias(alias).output_tuple_indices), 0)
      for alias in call.attributes["output_operand_aliases"]
  }


def _num_elements(value: mlir.ir.Value) -> float:
  """Elements of a tensor; infinity for anything else, such as a token."""
  if not isinstance(value.type, mlir.ir.RankedTensorType):
    return math.inf
  return math.prod(value.type.shape)
