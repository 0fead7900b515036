# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which operations of an optimizer's step the TPU compiler does not take.

It ends with an internal error, or ends the process, for what is in this table,
each measured by itself: for v5p with libtpu 0.0.42.1 and 0.0.51, and what fails
there for v6e and TPU7x too. What is not in the table is left to the compiler,
and so is lax.erf, which it takes for v6e and TPU7x. docs/how_to/optimizers.md
says it in terms of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features

# Later ones may take more.
NEWEST_MEASURED = (0, 0, 51)

Operation = mlir.ir.OpView


class StepNotTaken(NotImplementedError):
  """A step has what XLA's calls do not take; kernels may."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
  """Operations that not every compiler takes."""

  names: tuple[str, ...] = ()  # none: operations of any name
  instead: str = ""  # what to use
  only_if: Callable[[Operation], bool] = lambda op: True
  # What it takes to compile them; None: no version does.
  feature: libtpu_features.Feature | None = None


def _reduces_columns(op: Operation) -> bool:
  """Whether it makes one number of those of a row."""
  shape = _shape(op.operands[0])
  dimensions = list(mlir.ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
  return shape[-1] > 1 and len(shape) - 1 in dimensions


def _reduces_row_too(op: Operation) -> bool:
  """Whether there would be one number for all rows that are stepped at once."""
  return _reduces_columns(op) and not _shape(op.results[0])


def _reduces_by_other_than_sum_or_max(op: Operation) -> bool:
  body = [inner.name for inner in op.regions[0].blocks[0].operations]
  return _reduces_columns(op) and (
      len(op.results) > 1
      or body[0] not in ("stablehlo.add", "stablehlo.maximum")
  )


def _spreads_a_choice(op: Operation) -> bool:
  """Whether all columns of a row get the same truth value."""
  (operand,), (result,) = op.operands, op.results
  shape = _shape(operand)
  return (
      str(result.type.element_type) == "i1"
      and len(shape) > 0
      and max(shape) == 1 < max(_shape(result))
      and not _is_constant(operand)
  )


def _chooses_by_data(op: Operation) -> bool:
  """Whether a choice of branches is left for the run."""
  return not _is_constant(op.operands[0])


def _has_type(*types: str) -> Callable[[Operation], bool]:
  """Whether an operation has a result of one of the element types."""

  def has_type(op: Operation) -> bool:
    return any(
        isinstance(result.type, mlir.ir.RankedTensorType)
        and str(result.type.element_type) in types
        for result in op.results
    )

  return has_type


def _is_constant(value: mlir.ir.Value) -> bool:
  op = value.owner
  while not isinstance(op, mlir.ir.Block) and op.name == "stablehlo.convert":
    op = op.operands[0].owner
  return not isinstance(op, mlir.ir.Block) and op.name == "stablehlo.constant"


_ROW_BY_COLUMN = "Choose columns with jnp.where and jnp.arange(D) == column."
_SUM_OF_ROW = "Use jnp.sum(x, axis=1, keepdims=True)."

REFUSED = (
    Refused(
        names=(
            "stablehlo.slice",
            "stablehlo.dynamic_slice",
            "stablehlo.gather",
            "stablehlo.scatter",
        ),
        instead=(
            "Every argument, hyperparameters too, is a row to compute with as"
            f" it is. {_ROW_BY_COLUMN}"
        ),
    ),
    Refused(
        names=("stablehlo.reverse", "stablehlo.sort", "chlo.top_k"),
        instead="Columns have to stay where they are.",
    ),
    Refused(
        names=("stablehlo.reduce_window",),  # jnp.cumsum
        instead=_SUM_OF_ROW,
    ),
    Refused(
        names=("stablehlo.dot_general",),
        instead="Use jnp.sum(x * y, axis=1, keepdims=True).",
    ),
    Refused(
        names=("stablehlo.reduce",),
        only_if=_reduces_row_too,
        instead=_SUM_OF_ROW,
    ),
    Refused(
        names=("stablehlo.reduce",),
        only_if=_reduces_by_other_than_sum_or_max,
        instead="Use a sum or a maximum over the columns.",
    ),
    Refused(
        names=("stablehlo.while",),
        instead=(
            "Use a loop of Python, or lax.fori_loop with a number of iterations"
            " that is a Python number, at most 64."
        ),
    ),
    Refused(
        names=("stablehlo.case", "stablehlo.if"),
        only_if=_chooses_by_data,
        instead="Use jnp.where.",
    ),
    Refused(
        only_if=_has_type("f16"),
        instead="Use float32, or lax.reduce_precision to round.",
    ),
    Refused(
        names=("stablehlo.is_finite", "chlo.lgamma"),
        instead="Use jnp.abs(x) < jnp.inf.",
    ),
    Refused(
        names=(
            "stablehlo.count_leading_zeros",
            "stablehlo.optimization_barrier",
            "stablehlo.custom_call",
        ),
        instead="Leave it out.",
    ),
    Refused(
        # For TPU7x it compiles. For v5p the compiler ends the process, and a
        # program that is lowered does not know its chip.
        names=("stablehlo.round_nearest_even",),
        instead="Use jnp.floor(x + 0.5).",
    ),
    Refused(
        names=("stablehlo.broadcast_in_dim",),
        only_if=_spreads_a_choice,
        instead=(
            "Compare rows: jnp.where(jnp.broadcast_to(x, row.shape) > 0, a, b)."
        ),
    ),
    # What a newer compiler takes comes last: there is more to be said of the
    # others.
    Refused(
        names=("stablehlo.reduce",),
        only_if=_reduces_columns,
        feature=libtpu_features.SUM_OVER_COLUMNS,
    ),
    Refused(
        names=("stablehlo.round_nearest_afz",),
        feature=libtpu_features.ROUND_HALF_AWAY,
    ),
    Refused(
        only_if=_has_type("bf16", "i16", "i8"),
        feature=libtpu_features.NARROW_TYPES,
    ),
)
# "Could not find compatible input for dynamic output".
_RESULT = Refused(instead="Compute it from the gradient, the row or a slot.")


def check(
    ctx: mlir.LoweringRuleContext, what: str, function: str, *, num_rows: int
) -> None:
  """Checks the operations of a step, and of the functions that it calls.

  Args:
    ctx: that of the rule.
    what: the update, for messages.
    function: name of the step in the module.
    num_rows: how many of its arguments are not hyperparameters.

  Raises:
    StepNotTaken: for what the compiler does not take.
  """
  operations = _used(calls.operations(ctx, function))
  for refused in REFUSED:
    for op in operations:
      if op.name in (refused.names or (op.name,)) and refused.only_if(op):
        _refuse(what, f"the operation {op.name}", refused)
  _check_results(ctx, what, function, num_rows)


def _used(operations: Sequence[Operation]) -> list[Operation]:
  """Those that the compiler will see: it drops the rest before it looks."""
  used = {}
  for op in reversed(operations):  # users come after what they use
    users = [use.owner for result in op.results for use in result.uses]
    if not len(op.results) or any(user.operation in used for user in users):
      used[op.operation] = op
  return list(used.values())


def _check_results(ctx, what: str, function: str, num_rows: int) -> None:
  """Checks that every result is computed from a row."""
  (block,) = ctx.module_context.symbol_table[function].regions[0].blocks
  of_rows = set(list(block.arguments)[:num_rows])
  *operations, returned = block.operations
  for op in operations:
    if len(op.regions) or not of_rows.isdisjoint(op.operands):
      of_rows.update(op.results)
  for number, value in enumerate(returned.operands[0].owner.operands):
    if value not in of_rows:
      _refuse(
          what,
          f"a result, number {number}, that is the same for all rows",
          _RESULT,
      )


def _refuse(what: str, it_has: str, refused: Refused) -> None:
  if refused.feature is not None:
    try:
      refused.feature.check(what)
    except NotImplementedError as error:
      raise StepNotTaken(str(error)) from None
    return
  version = libtpu_features.installed_version()
  if version is not None and version > NEWEST_MEASURED:
    return
  raise StepNotTaken(
      f"{what}: the step of the optimizer has {it_has}, which the TPU compiler"
      f" (libtpu {libtpu_features.dotted(version or NEWEST_MEASURED)}) does not"
      f" take. {refused.instead} docs/how_to/optimizers.md has a list."
  )


def _shape(value: mlir.ir.Value) -> Sequence[int]:
  return mlir.ir.RankedTensorType(value.type).shape
