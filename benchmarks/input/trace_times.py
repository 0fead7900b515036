# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether a trace's times of stacks are those of the stacks by themselves.

    bazel run //benchmarks/input:trace_times

A step over four stacks is traced and summarized. Beside it each stack has a
program of its own, timed by the clock: once with the programs of the other
stacks between its runs, as the step has them, and once again and again, so that
caches still have what the run before has read.
"""

from __future__ import annotations

from collections.abc import Callable
import tempfile
import time
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.metrics import profile_summary
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import machine
from benchmarks import turns

_TURNS = flags.DEFINE_integer("turns", 25, "Of which medians are shown.")
_BATCH, _STEPS = 8192, 3
# Rows, columns and ids per sample of each stack.
_STACKS = {
    "a": (262_144, 16, 5),
    "b": (262_144, 32, 10),
    "c": (524_288, 64, 10),
    "d": (524_288, 64, 20),
}


class _Program:
  """A training step over some stacks: lookups and SGD."""

  def __init__(self, names: str):
    specs = {name: _feature(name) for name in names}
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    self._tables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(specs),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        1,
    )
    rng = np.random.default_rng(0)
    ids = {
        name: rng.integers(_STACKS[name][0], size=(_BATCH, _STACKS[name][2]))
        for name in names
    }
    limits = embedding.AdaptiveLimits(
        specs, 1, 1, on_growth=lambda growths: None
    )
    inputs = jax.device_put(limits.preprocess(ids)[0], jax.devices()[0])

    def step(tables, inputs):
      activations = embedding.tpu_sparse_dense_matmul(inputs, tables, specs)
      return embedding.tpu_sparse_dense_matmul_grad(
          activations, inputs, tables, specs
      )

    jitted = jax.jit(step, donate_argnums=0)
    self.compiled = jitted.lower(self._tables, inputs).compile()
    self._inputs = inputs

  def run(self) -> None:
    self._tables = jax.block_until_ready(
        self.compiled(self._tables, self._inputs)
    )


def _feature(name: str) -> embedding_spec.FeatureSpec:
  rows, dim, valency = _STACKS[name]
  table = embedding_spec.TableSpec(
      name=name,
      vocabulary_size=rows,
      embedding_dim=dim,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=1e-3),
  )
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(_BATCH, valency),
      output_shape=(_BATCH, dim),
  )


def _traced(program: _Program) -> dict[str, float]:
  """Milliseconds of each stack in a step, by its trace."""
  options = jax.profiler.ProfileOptions()
  options.host_tracer_level = 3
  options.python_tracer_level = 0
  with tempfile.TemporaryDirectory() as directory:
    with jax.profiler.trace(directory, profiler_options=options):
      for _ in range(_STEPS):
        program.run()
    summary = profile_summary.summarize(directory, program.compiled)
  return {
      name: times.lookup_ms + times.update_ms
      for name, times in summary.stacks.items()
  }


def _milliseconds(call: Callable[[], Any]) -> float:
  begin = time.perf_counter()
  call()
  return 1e3 * (time.perf_counter() - begin)


def _between_others(programs: dict[str, _Program]) -> dict[str, float]:
  sums = dict.fromkeys(programs, 0.0)
  for _ in range(_STEPS):
    for name, program in programs.items():
      sums[name] += _milliseconds(program.run)
  return {name: ms / _STEPS for name, ms in sums.items()}


def _again_and_again(programs: dict[str, _Program]) -> dict[str, float]:
  def run(program):
    for _ in range(_STEPS):
      program.run()

  return {
      name: _milliseconds(lambda p=program: run(p)) / _STEPS
      for name, program in programs.items()
  }


def main(argv: Any) -> None:
  del argv
  step = _Program("".join(_STACKS))
  programs = {name: _Program(name) for name in _STACKS}
  ways = {
      "in the trace of four": lambda: _traced(step),
      "between the others": lambda: _between_others(programs),
      "again and again": lambda: _again_and_again(programs),
  }
  for run in ways.values():
    run()
  results = {way: [] for way in ways}
  for _ in range(_TURNS.value):
    for way, run in ways.items():
      times = run()
      results[way].append(times | {"together": sum(times.values())})

  print(f"{machine.describe()}; JAX {jax.__version__}. {_TURNS.value} turns.")
  print(f"\n| rows x columns, ids per sample | {' | '.join(ways)} |", end="")
  print(" trace / between the others |")
  print("|---|" + "--:|" * (len(ways) + 1))
  for name in (*_STACKS, "together"):
    what = name
    if name in _STACKS:
      what = "{} x {}, {}".format(*_STACKS[name])
    of = {way: [x[name] for x in times] for way, times in results.items()}
    cells = [f"{turns.median(ms):.2f}" for ms in of.values()]
    ratio = turns.quartiles_of_ratio(
        of["in the trace of four"], of["between the others"]
    )
    cells.append("{1:.2f} ({0:.2f} to {2:.2f})".format(*ratio))
    print(f"| {what} | {' | '.join(cells)} |")


if __name__ == "__main__":
  app.run(main)
