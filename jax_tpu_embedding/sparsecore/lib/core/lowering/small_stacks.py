# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Small stacks of one CPU device, which share calls if there are many.

A call of its own costs a stack a millisecond when a step is compiled, and some
microseconds whenever it runs, which is more than a small stack has to do. So
some that a call would be told the same of have one. Larger ones do not: they
would wait for each other's activations and gradients, and for one thread.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

import jax
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering import of_stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import native_call
import numpy as np

# Numbers of the rows and activations of a stack, which a thread has read and
# added up in some ten microseconds. Waking another one takes as long.
_MOST_NUMBERS = 2**15
# XLA compares all results of a call that overwrite operands with each other, in
# several passes. The step of 1,024 tables with Adagrad compiles in 3.2 s of CPU
# time with a call for each, 2.6 with one for 8, 2.9 for 16, 3.1 for 32, 220 for
# all, beside other work.
_STACKS_OF_A_CALL = 8
# Fewer that are alike compile in less than 0.1 s, and profiles tell them apart.
_FEWEST_ALIKE = 64


def look_up(
    operands: Sequence[native_call.Operand], parts: Sequence[of_stacks.Part]
) -> Sequence[mlir.ir.Value] | None:
  """The lookups of all stacks; None if no two of them share a call."""
  operations = of_stacks.read(operands, parts)

  def kind(operation: of_stacks.Operation) -> Hashable | None:
    *coo, table = operation.operands
    if table.ndim != 2:
      return None
    activations = cpu_calls.activations_of(table, operation.params)
    if not _is_small(coo, activations):
      return None
    return _hashable(cpu_calls.lookup_attributes(coo, operation.params))

  return _alike_together(
      operands,
      parts,
      [kind(operation) for operation in operations],
      lambda positions: cpu_calls.small_lookups(
          [operations[k] for k in positions]
      ),
  )


def step(
    operands: Sequence[native_call.Operand],
    parts: Sequence[of_stacks.Part],
    updates: Sequence[stacks.Update],
    fused_rules: Sequence[str],
) -> Sequence[mlir.ir.Value] | None:
  """The updates of all stacks; None if no two of them share a call.

  Args:
    operands: of all stacks.
    parts: of the operation that is being lowered.
    updates: the same.
    fused_rules: names of those that native calls have.
  """

  def kind(update: stacks.Update) -> Hashable | None:
    if (
        update.rule.name not in fused_rules
        or update.rule.takes_rounding_seed
        or not _is_small(update.operands.coo, update.operands.gradient)
    ):
      return None
    return _hashable(
        cpu_calls.update_attributes(
            update.rule, update.operands.coo, update.params
        )
    )

  return _alike_together(
      operands,
      parts,
      [kind(update) for update in updates],
      lambda positions: cpu_calls.small_updates(
          [updates[k] for k in positions]
      ),
  )


def _is_small(
    coo: Sequence[native_call.Array],
    activations: native_call.Array | jax.core.ShapedArray,
) -> bool:
  """Whether a stack is, with its activations, or their gradient."""
  _, embedding_ids, *_ = coo
  num_samples = max(activations.shape[0], 1)
  rows = embedding_ids.size * (activations.size // num_samples)
  return rows + activations.size <= _MOST_NUMBERS


def _hashable(attributes: Mapping[str, Any]) -> Hashable:
  return tuple(
      (name, x.tobytes() if isinstance(x, np.ndarray) else x)
      for name, x in attributes.items()
  )


def _alike_together(
    operands: Sequence[native_call.Operand],
    parts: Sequence[of_stacks.Part],
    kinds: Sequence[Hashable | None],
    together: Callable[[Sequence[int]], Sequence[native_call.Operand]],
) -> Sequence[mlir.ir.Value] | None:
  """The results of all parts; None if no two are of one kind.

  Args:
    operands: of all parts.
    parts: of the operation that is being lowered.
    kinds: of the parts; None for those that are by themselves.
    together: numbers of parts that are of one kind -> their results.
  """
  counts = collections.Counter(kinds)
  by_kind = collections.defaultdict(list)
  for k, kind in enumerate(kinds):
    is_alone = kind is None or counts[kind] < _FEWEST_ALIKE
    by_kind[k if is_alone else (kind,)].append(k)
  calls = [
      positions[first : first + _STACKS_OF_A_CALL]
      for positions in by_kind.values()
      for first in range(0, len(positions), _STACKS_OF_A_CALL)
  ]
  if len(calls) == len(parts):
    return None
  ctx = operands[0].ctx
  operands_of = _cut(operands, [part.num_operands for part in parts])
  avals_of = _cut(ctx.avals_out, [part.num_results for part in parts])
  results = [()] * len(parts)
  for positions in calls:
    if len(positions) == 1:
      (k,) = positions
      results[k] = of_stacks.each_by_itself(
          ctx.replace(
              avals_in=[x.aval for x in operands_of[k]], avals_out=avals_of[k]
          ),
          *[x.value for x in operands_of[k]],
          parts=[parts[k]],
      )
      continue
    operation, _, _ = parts[positions[0]].scope.partition("/")
    with of_stacks.location(ctx, f"{operation}/small_stacks"):
      values = native_call.values_of(together(positions))
    for k, own in zip(
        positions,
        _cut(values, [parts[k].num_results for k in positions]),
        strict=True,
    ):
      results[k] = own
  return list(itertools.chain.from_iterable(results))


def _cut(values: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
  """`values` in pieces of these sizes."""
  rest = iter(values)
  return [list(itertools.islice(rest, size)) for size in sizes]
