# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What calling a lookup costs, whatever it looks up: a few ids, and a no-op."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding

from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import cases
from benchmarks.lookup import ours_worker

_CASE = cases.Case(
    name="tiny", batch_size=8, valency=1, num_batches=1, num_rows=1024, dim=8
)
_NO_OP = "no-op"
_LOOKUP = "lookup"
_TARGET_MICROSECONDS = 20


class Worker:
  """The commands."""

  def __init__(self):
    specs = ours_worker.make_specs(_CASE, cases.FORWARD)
    (batch,) = cases.make_batches(_CASE)
    self._operands = (
        ours_worker.make_variables(specs),
        jax.device_put(ours_worker.convert(specs, batch)),
    )

    def lookup(variables, inputs):
      return embedding.tpu_sparse_dense_matmul(inputs, variables, specs)[0]

    def no_op(variables, inputs):
      del variables, inputs
      return jnp.zeros((_CASE.batch_size, _CASE.dim))

    self._functions = {
        # With all operands passed, although it does not use them.
        _NO_OP: jax.jit(no_op, keep_unused=True),
        _LOOKUP: jax.jit(lookup),
    }

  def run(self, function: str, calls: int) -> dict[str, float]:
    """Times `calls` calls, each of which waits for the result."""
    call = self._functions[function]
    return turns.time_calls(
        lambda: call(*self._operands).block_until_ready(), calls
    )


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  del quick  # It is small.
  with worker_process.WorkerProcess(__name__) as worker:
    timings = turns.take(
        {name: worker.timed(function=name) for name in (_NO_OP, _LOOKUP)},
        rounds,
    )
  text = f"""## Dispatch of one lookup

A jitted lookup of {_CASE.batch_size} ids in a table of {_CASE.num_rows} x {_CASE.dim}, and a
jitted function that has the same operands and ignores them. Microseconds per
call, quartiles over the rounds; at most {_TARGET_MICROSECONDS} over the no-op.

| time | no-op | lookup | lookup - no-op | |
|---|--:|--:|--:|---|
"""
  for kind in ("wall", "cpu"):
    no_op, lookup = (
        [1e6 * seconds for seconds in getattr(timings[name], kind)]
        for name in (_NO_OP, _LOOKUP)
    )
    low, median, high = turns.quartiles([b - a for a, b in zip(no_op, lookup)])
    verdict = "yes" if median <= _TARGET_MICROSECONDS else "**no**"
    text += (
        f"| {kind} | {turns.median(no_op):.1f} | {turns.median(lookup):.1f}"
        f" | {median:.1f} ({low:.1f} - {high:.1f}) | {verdict} |\n"
    )
  return text
