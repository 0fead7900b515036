# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How the cost of a model grows with the number of its tables."""

from __future__ import annotations

from collections.abc import Callable
import time

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import turns
from benchmarks import worker_process
from benchmarks.scale import curve
from benchmarks.scale import models

_DIM, _BATCH = 16, 64
_NUM_TABLES = (1, 4, 16, 64, 256, 1024, 4096)
# Plain JAX and tables that are not stacked take minutes to compile beyond it.
_MOST_UNSTACKED = 1024


def _sizes(num_tables: int) -> list[int]:
  return [100 + i % 37 for i in range(num_tables)]


class Worker:
  """The commands. Each is for a process of its own."""

  def ours(self, num_tables: int, is_stacked: bool) -> dict[str, float]:
    """Seconds of what is done once, milliseconds of what every step does."""
    memory.keep_freed_memory()
    rng = np.random.default_rng(0)
    ids = [
        rng.integers(size, size=(_BATCH, 1), dtype=np.int32)
        for size in _sizes(num_tables)
    ]
    clock = _Clock()
    specs = models.features(
        _sizes(num_tables),
        dim=_DIM,
        batch_size=_BATCH,
        valency=1,
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
        limit=_BATCH,
    )
    if is_stacked:
      most = lambda *_: num_tables * _BATCH
      embedding.auto_stack_tables(specs, 1, 1, most, most)
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    seconds = {"plan, s": clock.lap()}
    variables = models.variables(specs)
    seconds["initialize, s"] = clock.lap()

    def convert():
      return embedding.preprocess_sparse_dense_matmul_input(
          ids, None, specs, 1, 1, num_sc_per_device=1
      )[0]

    inputs = convert()
    step = jax.jit(models.train_step(specs), donate_argnums=1)
    clock.lap()
    lowered = step.lower(inputs, variables)
    seconds["trace, s"] = clock.lap()
    compiled = lowered.compile()
    seconds["compile, s"] = clock.lap()
    seconds["convert, ms"] = 1e3 * _quickest(convert)

    def run():
      nonlocal variables
      variables = jax.block_until_ready(compiled(inputs, variables))

    return seconds | {"step, ms": 1e3 * _quickest(run)}

  def plain(self, num_tables: int) -> dict[str, float]:
    """The same model as arrays and gathers: JAX's gradient, dense Adagrad."""
    rng = np.random.default_rng(0)
    sizes = _sizes(num_tables)
    ids = [rng.integers(s, size=_BATCH, dtype=np.int32) for s in sizes]
    clock = _Clock()
    keys = jax.random.split(jax.random.key(0), num_tables)
    tables = [
        jax.random.truncated_normal(key, -2, 2, (size, _DIM))
        for key, size in zip(keys, sizes, strict=True)
    ]
    variables = jax.block_until_ready(
        (tables, [jnp.full_like(table, 0.1) for table in tables])
    )
    seconds = {"initialize, s": clock.lap()}

    def train(ids, variables):
      tables, sums = variables
      activations, pullback = jax.vjp(
          lambda tables: [t[i] for t, i in zip(tables, ids, strict=True)],
          tables,
      )
      (gradients,) = pullback([1e-3 * jnp.tanh(a) for a in activations])
      sums = [s + g * g for s, g in zip(sums, gradients, strict=True)]
      tables = [
          t - 0.1 * g * jax.lax.rsqrt(s)
          for t, g, s in zip(tables, gradients, sums, strict=True)
      ]
      return tables, sums

    clock.lap()
    lowered = jax.jit(train, donate_argnums=1).lower(ids, variables)
    seconds["trace, s"] = clock.lap()
    compiled = lowered.compile()
    seconds["compile, s"] = clock.lap()

    def run():
      nonlocal variables
      variables = jax.block_until_ready(compiled(ids, variables))

    return seconds | {"step, ms": 1e3 * _quickest(run)}


class _Clock:
  """Seconds between laps."""

  def __init__(self):
    self._last = time.perf_counter()

  def lap(self) -> float:
    last, self._last = self._last, time.perf_counter()
    return self._last - last


def _quickest(call: Callable[[], object]) -> float:
  """Wall seconds, of ten calls."""
  call()
  return min(turns.time_calls(call, 1)["wall"] for _ in range(10))


def measure(is_quick: bool) -> list[curve.Curve]:
  """Tables in stacks, tables by themselves, and plain JAX."""
  counts = _NUM_TABLES[1:2] if is_quick else _NUM_TABLES
  few = [n for n in counts if n <= _MOST_UNSTACKED]
  head = (
      f"{_DIM} columns, 100 to 136 rows, Adagrad, a feature each of {_BATCH}"
      " samples with an id; one device. Wall times in a new process for each"
      " row, of steps and conversion the least of ten."
  )
  return [
      curve.Curve(
          name="tables_stacked",
          title="Number of tables, in stacks",
          text=f"{head} `auto_stack_tables` makes one stack of all.",
          x="tables",
          points=[_ask("ours", n, is_stacked=True) for n in counts],
      ),
      curve.Curve(
          name="tables",
          title="Number of tables, each by itself",
          text=f"{head} Every table has a lookup and an update of its own.",
          x="tables",
          points=[_ask("ours", n, is_stacked=False) for n in few],
      ),
      curve.Curve(
          name="tables_plain",
          title="Number of tables in plain JAX",
          text=(
              f"{head} Arrays that are indexed, JAX's gradients and a dense"
              " Adagrad, for comparison; ids need no conversion."
          ),
          x="tables",
          points=[_ask("plain", n) for n in few],
      ),
  ]


def _ask(command: str, num_tables: int, **arguments: bool) -> curve.Point:
  with worker_process.WorkerProcess(__name__) as worker:
    answer = worker.command(command, num_tables=num_tables, **arguments)
  return {"tables": num_tables, **answer}
