# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""What converting ids inside jit costs, beside converting them on the host.

Measures, for batches of one feature: the converter of the host, called from
Python; the same converter as a custom call of a jitted program; and the version
for other platforms, which sorts in XLA, run on the CPU. They take turns, so
that all see the same machine. They give the same entries.

  bazel run //benchmarks/convert_in_jit -- \
      --output=benchmarks/convert_in_jit/RESULTS.md
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
import platform
import statistics
import time

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import machine

_BATCH = flags.DEFINE_integer("batch", 16384, "Samples per step.")
_REPEATS = flags.DEFINE_integer("repeats", 21, "Timed steps per measurement.")
_OUTPUT = flags.DEFINE_string(
    "output", None, "Write the results to this file, from the workspace."
)

_VOCABULARY_SIZE = 2**20
_TOPOLOGY = layout.Topology(
    local_device_count=1, global_device_count=8, num_sc_per_device=4
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A batch of one feature."""

  valency: int  # of ragged ids, on average
  is_skewed: bool  # Zipf distributed, so samples have an id more than once
  is_ragged: bool = False
  has_weights: bool = False
  combiner: str = "sum"

  def __str__(self) -> str:
    return (
        f"{self.valency} | {'Zipf' if self.is_skewed else 'uniform'}"
        f" | {'ragged' if self.is_ragged else 'dense'}"
        f" | {self.combiner}{', weights' if self.has_weights else ''}"
    )


_CASES = (
    Case(valency=1, is_skewed=False),
    Case(valency=20, is_skewed=False),
    Case(valency=20, is_skewed=True),
    Case(valency=20, is_skewed=True, combiner="mean"),
    Case(valency=20, is_skewed=True, combiner="sqrtn", has_weights=True),
    Case(valency=20, is_skewed=True, is_ragged=True),
    Case(
        valency=20,
        is_skewed=True,
        is_ragged=True,
        combiner="sqrtn",
        has_weights=True,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  """One device's ids."""

  ids: np.ndarray | tuple[np.ndarray, np.ndarray]  # rows, or values and splits
  weights: np.ndarray | None

  @property
  def num_ids(self) -> int:
    return (self.ids[0] if isinstance(self.ids, tuple) else self.ids).size


def _make_batch(case: Case, batch_size: int) -> Batch:
  rng = np.random.default_rng(0)
  shape = (batch_size, case.valency)
  if case.is_skewed:
    ids = (rng.zipf(1.2, shape) * 7919) % _VOCABULARY_SIZE
  else:
    ids = rng.integers(0, _VOCABULARY_SIZE, shape)
  ids = ids.astype(np.int32)
  if case.is_ragged:
    ends = np.sort(rng.integers(0, ids.size + 1, batch_size - 1))
    splits = np.concatenate([[0], ends, [ids.size]]).astype(np.int32)
    ids = (ids.reshape(-1), splits)
    shape = ids[0].shape
  weights = None
  if case.has_weights:
    weights = rng.uniform(0.5, 2, shape).astype(np.float32)
  return Batch(ids=ids, weights=weights)


def _make_spec(case: Case, batch_size: int) -> embedding_spec.FeatureSpec:
  """A feature whose limits any batch fits."""
  num_ids = batch_size * case.valency
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=_VOCABULARY_SIZE,
      embedding_dim=8,
      optimizer=embedding_spec.SGDOptimizerSpec(),
      combiner=case.combiner,
      max_ids_per_partition=num_ids,
      max_unique_ids_per_partition=num_ids,
      # Not what the limits allow, but what a batch like these needs.
      suggested_coo_buffer_size_per_device=2 * num_ids + 1024,
  )
  global_batch_size = batch_size * _TOPOLOGY.global_device_count
  spec = embedding_spec.FeatureSpec(
      name="f",
      table_spec=table,
      input_shape=(global_batch_size, case.valency),
      output_shape=(global_batch_size, 8),
  )
  embedding.prepare_feature_specs_for_training(
      [spec], _TOPOLOGY.global_device_count, _TOPOLOGY.num_sc_per_device
  )
  return spec


def _converters(case: Case, batch_size: int) -> dict[str, Callable[[], None]]:
  """What is measured: functions that convert the batch of a case."""
  batch = _make_batch(case, batch_size)
  spec = _make_spec(case, batch_size)
  host_weights = None if batch.weights is None else [batch.weights]
  operands = jax.device_put(jax.tree.leaves((batch.ids, batch.weights)))

  def on_host():
    converter.preprocess_sparse_dense_matmul_input(
        [batch.ids],
        host_weights,
        [spec],
        _TOPOLOGY.local_device_count,
        _TOPOLOGY.global_device_count,
        num_sc_per_device=_TOPOLOGY.num_sc_per_device,
    )

  @jax.jit
  def custom_call(*operands):
    ids = operands[:2] if case.is_ragged else operands[0]
    weights = [operands[-1]] if case.has_weights else None
    return embedding.convert_ids([ids], weights, [spec], _TOPOLOGY)

  sorting = jax.jit(
      functools.partial(
          conversion.convert_ids,
          combiner=case.combiner,
          global_device_count=_TOPOLOGY.global_device_count,
          num_sc_per_device=_TOPOLOGY.num_sc_per_device,
          features=(
              raw_ids.Feature(
                  name="f",
                  vocabulary_size=_VOCABULARY_SIZE,
                  is_ragged=case.is_ragged,
                  has_weights=case.has_weights,
              ),
          ),
          feature_stacking_strategy="SPLIT_THEN_STACK",
      )
  )
  return {
      "host": on_host,
      "custom call": lambda: jax.block_until_ready(custom_call(*operands)),
      "sorting": lambda: jax.block_until_ready(sorting(*operands)),
  }


def _measure(
    converters: dict[str, Callable[[], None]], repeats: int
) -> dict[str, tuple[float, float]]:
  """Median CPU and wall time of each, in seconds."""
  times = {name: [] for name in converters}
  for _ in range(repeats + 2):
    for name, convert in converters.items():
      cpu, wall = time.process_time(), time.perf_counter()
      convert()
      times[name].append(
          (time.process_time() - cpu, time.perf_counter() - wall)
      )
  return {
      # The first two warm up.
      name: tuple(statistics.median(x) for x in zip(*pairs[2:]))
      for name, pairs in times.items()
  }


def _result_row(case: Case) -> str:
  medians = _measure(_converters(case, _BATCH.value), _REPEATS.value)
  num_ids = _BATCH.value * case.valency
  cells = [
      f"{1e9 * cpu / num_ids:.1f} | {1e3 * wall:.2f}"
      for cpu, wall in medians.values()
  ]
  ratio = medians["sorting"][0] / medians["custom call"][0]
  return f"| {case} | {' | '.join(cells)} | {ratio:.0f} |"


def _header() -> str:
  return f"""# Converting ids inside jit

Written by `bazel run //benchmarks/convert_in_jit -- --output=<this file>`.

- Machine: {machine.describe()}; Linux, Python {platform.python_version()},
  jaxlib {jax.lib.__version__}. Shared; compare inside a row first.
- Batch: {_BATCH.value} samples of one feature on one of
  {_TOPOLOGY.global_device_count} devices with {_TOPOLOGY.num_sc_per_device}
  SparseCores each; a table of {_VOCABULARY_SIZE} rows. Ragged samples have the
  given number of ids on average.
- Medians of {_REPEATS.value}, in turns. CPU is the time of the process over all
  threads, per id.

| ids per sample | ids | form | combiner | host, CPU ns/id | wall ms | custom call, CPU ns/id | wall ms | sorting in XLA, CPU ns/id | wall ms | sorting / custom call (CPU) |
|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|
"""


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  memory.keep_freed_memory()
  report = _header()
  print(report, end="")
  for case in _CASES:
    row = _result_row(case)
    print(row, flush=True)
    report += row + "\n"
  if _OUTPUT.value:
    # `bazel run` starts somewhere else.
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")
    pathlib.Path(workspace, _OUTPUT.value).write_text(report)


if __name__ == "__main__":
  app.run(main)
