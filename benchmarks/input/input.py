# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the input pipeline costs, and what of preprocessing it hides.

    bazel run //benchmarks/input

Everything is measured in turns inside of one process. CPU time is that of the
process; a step that sleeps stands for an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.metrics import hot_rows
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import machine

_TURNS = flags.DEFINE_integer("turns", 5, "Of which the fastest counts.")
# Batches of a turn of the large ones, and those before them: what is ahead.
_NUM_LARGE, _NUM_UNMEASURED = 20, 12
_LARGE = flags.DEFINE_integer(
    "large_ids", 3_500_000, "Ids of the large batch, over 26 features."
)


def _specs(num_features: int, batch: int) -> dict[str, Any]:
  specs = {}
  for i in range(num_features):
    table = embedding_spec.TableSpec(
        name=f"t{i}",
        vocabulary_size=1_000_000,
        embedding_dim=16,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
    )
    specs[f"t{i}"] = embedding_spec.FeatureSpec(
        name=f"t{i}",
        table_spec=table,
        input_shape=(batch, None),
        output_shape=(batch, 16),
    )
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  return specs


def _limits(specs: dict[str, Any]) -> embedding.AdaptiveLimits:
  return embedding.AdaptiveLimits(specs, 1, 1, on_growth=lambda growths: None)


def _pipeline(source, specs, **options) -> input_pipeline.InputPipeline:
  return input_pipeline.InputPipeline(
      source,
      specs,
      ids=lambda batch: batch,
      mesh=jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      sharding_axis="x",
      **options,
  )


def _cpu_per_batch(run: Callable[[], Any], num_batches: int) -> float:
  begin = time.process_time()
  run()
  return (time.process_time() - begin) / num_batches


def _fastest(contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
  """The fastest turn of each contender, which take turns."""
  results = {name: [] for name in contenders}
  for _ in range(_TURNS.value):
    for name, run in contenders.items():
      results[name].append(run())
  return {name: min(x) for name, x in results.items()}


def _report_own_cost() -> None:
  """Small batches: what is left is the cost of a call."""
  n, specs = 500, _specs(1, 8)
  batches = [{"t0": np.arange(8)[:, None]}] * n
  specs_of_plain, limits = _specs(1, 8), _limits(specs)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

  def plain():
    for features in batches:
      embedding.preprocess_sparse_dense_matmul_input(
          features, None, specs_of_plain, 1, 1, num_sc_per_device=1
      )

  def adaptive():
    for features in batches:
      limits.preprocess(features)

  def sent():
    for features in batches:
      jax.device_put(limits.preprocess(features)[0], sharding)

  def pipelined():
    with _pipeline(batches, specs, limits=limits) as pipeline:
      for _ in pipeline:
        pass

  adaptive()
  cost = _fastest(
      {
          f.__name__: (lambda f=f: 1e6 * _cpu_per_batch(f, n))
          for f in (plain, adaptive, sent, pipelined)
      }
  )
  print("\n| batches of 8 ids | CPU us per batch | more than the row above |")
  print("|---|--:|--:|")
  before = 0.0
  for what, name in (
      ("preprocessing", "plain"),
      ("with AdaptiveLimits", "adaptive"),
      ("and device_put", "sent"),
      ("InputPipeline", "pipelined"),
  ):
    print(f"| {what} | {cost[name]:.0f} | {cost[name] - before:.0f} |")
    before = cost[name]


def _report_hidden() -> None:
  """A step of twice the time of preprocessing hides it."""
  specs = _specs(4, 8192)
  rng = np.random.default_rng(0)
  batches = [
      {
          name: rng.integers(1_000_000, size=(8192, 64)).astype(np.int32)
          for name in specs
      }
  ] * 40
  limits = _limits(specs)
  limits.preprocess(batches[0])
  begin = time.perf_counter()
  for features in batches[:10]:
    limits.preprocess(features)
  step = 2 * (time.perf_counter() - begin) / 10

  def pipelined(num_threads=None):
    with _pipeline(batches, specs, num_threads=num_threads) as pipeline:
      for _ in range(_NUM_UNMEASURED):
        next(pipeline)
      begin = time.perf_counter()
      for _ in pipeline:
        time.sleep(step)
      seconds = time.perf_counter() - begin
      return seconds / (len(batches) - _NUM_UNMEASURED)

  def asleep():
    begin = time.perf_counter()
    for _ in batches:
      time.sleep(step)
    return (time.perf_counter() - begin) / len(batches)

  def plain():
    begin = time.perf_counter()
    for features in batches:
      limits.preprocess(features)
      time.sleep(step)
    return (time.perf_counter() - begin) / len(batches)

  # A thread less than CPUs: one is left to the program.
  spared = max(machine.num_cpus() - 1, 1)
  wall = _fastest(
      dict(
          asleep=asleep,
          plain=plain,
          pipelined=pipelined,
          spared=lambda: pipelined(num_threads=spared),
      )
  )
  what = f"a step that sleeps {1e3 * step:.0f} ms, twice preprocessing"
  print(f"\n| {what} | wall / step |")
  print("|---|--:|")
  print(f"| nothing to preprocess | {wall['asleep'] / step:.2f} |")
  print(f"| one after the other | {wall['plain'] / step:.2f} |")
  print(f"| InputPipeline | {wall['pipelined'] / step:.2f} |")
  print(
      f"| InputPipeline, num_threads={spared} | {wall['spared'] / step:.2f} |"
  )


def _report_large() -> None:
  """Large batches: rates, and what counting adds."""
  batch = 8192
  valency = max(_LARGE.value // 26 // batch, 1)
  specs = _specs(26, batch)
  rng = np.random.default_rng(0)
  features = {
      name: (rng.zipf(1.2, size=(batch, valency)) % 1_000_000).astype(np.int32)
      for name in specs
  }
  n = batch * valency * 26
  limits = _limits(specs)
  inputs, stats = limits.preprocess(features)
  hot = hot_rows.HotRows(specs, every=1)
  wall = {"preprocess": [], "pipelined": []}

  def preprocess():
    begin = time.perf_counter()
    for _ in range(_NUM_LARGE):
      limits.preprocess(features)
    wall["preprocess"].append((time.perf_counter() - begin) / _NUM_LARGE)

  def pipelined():
    # With limits, and so memory, of its own. All of that is there, and new
    # pages are touched, after the batches that are not measured.
    batches = [features] * (_NUM_UNMEASURED + _NUM_LARGE)
    with _pipeline(batches, specs) as pipeline:
      for _ in range(_NUM_UNMEASURED):
        next(pipeline)
      begin = time.perf_counter(), time.process_time()
      for _ in range(_NUM_LARGE):
        next(pipeline)
      end = time.perf_counter(), time.process_time()
    wall["pipelined"].append((end[0] - begin[0]) / _NUM_LARGE)
    return (end[1] - begin[1]) / _NUM_LARGE

  cost = _fastest(
      {
          "preprocess": lambda: _cpu_per_batch(preprocess, _NUM_LARGE),
          "pipelined": pipelined,
          "counted": lambda: _cpu_per_batch(
              lambda: embedding.count_batch(
                  features, specs, None, inputs, stats
              ),
              1,
          ),
          "hot": lambda: _cpu_per_batch(lambda: hot.seen(features), 1),
      }
  )
  rate = {name: n / min(seconds) / 1e6 for name, seconds in wall.items()}
  print(f"\n| batches of {n} ids | million ids per second | of the converter |")
  print("|---|--:|--:|")
  for what, name in (
      ("preprocessing", "preprocess"),
      ("InputPipeline", "pipelined"),
  ):
    share = rate[name] / rate["preprocess"]
    print(f"| {what} | {rate[name]:.1f} | {100 * share:.1f}% |")
  print(f"\n| batches of {n} ids | CPU ns per id | of preprocessing |")
  print("|---|--:|--:|")
  base = cost["preprocess"]
  for what, value in (
      ("preprocessing", base),
      ("InputPipeline", cost["pipelined"]),
      ("count_batch", cost["counted"]),
      ("count_batch, of one of 20 batches", cost["counted"] / 20),
      ("HotRows, of one of 16 batches", cost["hot"] / 16),
  ):
    print(f"| {what} | {1e9 * value / n:.2f} | {100 * value / base:.1f}% |")


def main(argv: Any) -> None:
  del argv
  print(f"{machine.describe()}; JAX {jax.__version__}. {_TURNS.value} turns.")
  _report_own_cost()
  _report_hidden()
  _report_large()


if __name__ == "__main__":
  app.run(main)
