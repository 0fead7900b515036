# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""Does the time of an update follow the size of the table? It must not.

Grows the table at a fixed batch and measures one jitted update with donated
tables; beside it, in the same run, the least that such an update has to move
(touch_rows.cc), and the same update without donation, which has to copy.

  bazel run //benchmarks/update_scaling -- \
      --output=benchmarks/update_scaling/RESULTS.md
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import ctypes
import dataclasses
import os
import pathlib
import platform
import statistics
import time

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

from benchmarks import machine

_ROWS = flags.DEFINE_list(
    "rows", [str(2**20 * n) for n in (1, 2, 4, 8, 16)], "Sizes of the table."
)
_RULES = flags.DEFINE_list("rules", ["sgd", "adagrad"], "Optimizers.")
_WIDTH = flags.DEFINE_integer("width", 32, "Columns of the table.")
_BATCH = flags.DEFINE_integer("batch", 16384, "Samples per step.")
_VALENCY = flags.DEFINE_integer("valency", 20, "Ids per sample.")
_REPEATS = flags.DEFINE_integer("repeats", 31, "Timed steps per measurement.")
_OUTPUT = flags.DEFINE_string(
    "output", None, "Write the results to this file, from the workspace."
)

# Any number that leaves the values finite.
_HYPERPARAMETER = np.float32(0.01)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  """One partition: `num_entries` distinct rows, ascending."""

  operands: tuple[jax.Array, ...]  # of the update, up to the table
  rows: np.ndarray  # i32[num_entries]
  samples: np.ndarray  # i32[num_entries]
  gradient: jax.Array  # f32[batch, width]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
  """Of one step, in ms: medians, and the quartiles of the wall time."""

  cpu: float
  wall: float
  wall_quartiles: tuple[float, float]


def _make_batch(id_limit: int, batch_size: int, valency: int, width: int):
  """A batch of random distinct rows below `id_limit`."""
  rng = np.random.default_rng(0)
  num_entries = batch_size * valency
  rows = rng.choice(id_limit, num_entries, replace=False).astype(np.int32)
  rows.sort()
  samples = rng.permutation(np.repeat(np.arange(batch_size), valency))
  samples = samples.astype(np.int32)
  row_pointers = np.full(8, -(-num_entries // 8) * 8, np.int32)
  row_pointers[0] = num_entries
  pad = (0, row_pointers[-1] - num_entries)
  return Batch(
      operands=tuple(
          map(
              jnp.asarray,
              (
                  row_pointers,
                  np.pad(rows, pad),
                  np.pad(samples, pad),
                  np.ones(row_pointers[-1], np.float32),
                  np.int32(1),
              ),
          )
      ),
      rows=rows,
      samples=samples,
      gradient=jnp.full((batch_size, width), 1e-3),
  )


def _measure(step: Callable[[], None], repeats: int) -> Timing:
  cpu, wall = [], []
  for _ in range(repeats + 2):
    cpu_start, wall_start = time.process_time(), time.perf_counter()
    step()
    wall.append(1e3 * (time.perf_counter() - wall_start))
    cpu.append(1e3 * (time.process_time() - cpu_start))
  cpu, wall = cpu[2:], wall[2:]  # The first two warm up.
  low, _, high = statistics.quantiles(wall, n=4)
  return Timing(
      cpu=statistics.median(cpu),
      wall=statistics.median(wall),
      wall_quartiles=(low, high),
  )


def _measure_update(
    rule: update_rules.UpdateRule,
    batch: Batch,
    tables: list[jax.Array],
    *,
    donate: bool,
    repeats: int,
) -> Timing:
  """Leaves the updated tables in `tables`, if they are donated."""

  def function(tables, operands, gradient):
    results = update.UPDATE_PRIMITIVES[rule.name].bind(
        *operands,
        *tables,
        gradient,
        *[_HYPERPARAMETER] * len(rule.hyperparameters),
        max_ids_per_partition=batch.rows.size,
        max_unique_ids_per_partition=batch.rows.size,
    )
    return list(results) if rule.slots else [results]

  jitted = jax.jit(function, donate_argnums=0 if donate else ())

  def step():
    results = jitted(list(tables), batch.operands, batch.gradient)
    jax.block_until_ready(results)
    if donate:
      tables[:] = results

  return _measure(step, repeats)


def _measure_limit(
    batch: Batch, tables: Sequence[jax.Array], repeats: int
) -> Timing:
  library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("touch_rows.so")))
  pointers = (ctypes.c_void_p * len(tables))(
      *[table.unsafe_buffer_pointer() for table in tables]
  )

  def step():
    library.TouchRows(
        pointers,
        ctypes.c_int64(len(tables)),
        ctypes.c_void_p(batch.gradient.unsafe_buffer_pointer()),
        ctypes.c_void_p(batch.rows.ctypes.data),
        ctypes.c_void_p(batch.samples.ctypes.data),
        ctypes.c_int64(batch.rows.size),
        ctypes.c_int64(batch.gradient.shape[1]),
        ctypes.c_int64(machine.num_cpus()),
    )

  return _measure(step, repeats)


def _result_row(rule_name: str, num_rows: int, id_limit: int) -> str:
  """One measurement as a row of the table."""
  rule = update_rules.UPDATE_RULES[rule_name]
  batch = _make_batch(id_limit, _BATCH.value, _VALENCY.value, _WIDTH.value)
  shape = (num_rows, _WIDTH.value)
  tables = [jnp.full(shape, 0.1) for _ in range(1 + len(rule.slots))]
  jax.block_until_ready(tables)
  limit = _measure_limit(batch, tables, _REPEATS.value)
  donated = _measure_update(
      rule, batch, tables, donate=True, repeats=_REPEATS.value
  )
  # A few: they copy the tables.
  copied = _measure_update(rule, batch, tables, donate=False, repeats=3)
  num_bytes = 4 * num_rows * _WIDTH.value * len(tables)
  low, high = donated.wall_quartiles
  return (
      f"| {rule_name} | {id_limit / 2**20:.3g} M | {num_rows / 2**20:.3g} M"
      f" | {num_bytes / 2**20:.0f}"
      f" | {donated.cpu:.2f} | {donated.wall:.2f} | {low:.2f} - {high:.2f}"
      f" | {limit.cpu:.2f} | {limit.wall:.2f} | {limit.cpu / donated.cpu:.0%}"
      f" | {copied.wall:.0f} |"
  )


def _machine() -> str:
  return (
      f"{machine.describe()}; Linux, Python {platform.python_version()},"
      f" jaxlib {jax.lib.__version__}"
  )


def _header() -> str:
  entries = _BATCH.value * _VALENCY.value
  return f"""# Update at a fixed batch, growing table

Written by `bazel run //benchmarks/update_scaling -- --output=<this file>`.

- Machine: {_machine()}. Shared; compare inside a row first.
- Batch: {_BATCH.value} samples x {_VALENCY.value} ids = {entries} entries,
  {entries} distinct rows; width {_WIDTH.value}, float32.
- Ids below: where the batch's rows are. First, the same rows in every table.
  Then, rows from all over the table; the farther apart they are, the more pages
  they are in, and the limit rises with that too.
- Update: one jitted step with donated tables, median of {_REPEATS.value}; CPU is
  the time of the process over all threads.
- Limit: reading the gradients and reading and writing the same rows in the same
  order, with prefetch and the same threads, and computing nothing.
- Not donated: the same step when it has to copy; median of 3.

| rule | ids below | rows | tables MiB | CPU ms | wall ms | wall quartiles | limit CPU ms | limit wall ms | limit / update (CPU) | not donated, wall ms |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  memory.keep_freed_memory()
  report = _header()
  print(report, end="")
  sizes = sorted(map(int, _ROWS.value))
  cases = [(size, sizes[0]) for size in sizes]  # the same rows everywhere
  cases += [(size, size) for size in sizes[1:]]
  for rule_name in _RULES.value:
    for num_rows, id_limit in cases:
      row = _result_row(rule_name, num_rows, id_limit)
      print(row, flush=True)
      report += row + "\n"
  if _OUTPUT.value:
    # `bazel run` starts somewhere else.
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")
    pathlib.Path(workspace, _OUTPUT.value).write_text(report)


if __name__ == "__main__":
  app.run(main)
