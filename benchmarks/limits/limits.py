# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How many programs limits that set themselves take, and what they leave empty.

    bazel run //benchmarks/limits -- --num_batches=3000

Four stacks on four devices x four SparseCores, of whose preprocessing nothing
but the counts is looked at. Ids follow Zipf's law; the popularity of rows drifts,
ids per sample rise by a half, and one of 200 batches doubles a feature. The rules
see the same needs.
"""

from __future__ import annotations

from collections.abc import Iterator
import time
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import machine
from benchmarks import zipf

_NUM_BATCHES = flags.DEFINE_integer("num_batches", 3000, "Of each workload.")
_BATCH = flags.DEFINE_integer("batch_size", 1024, "Samples of all devices.")

_DEVICES, _NUM_SC, _VOCABULARY = 4, 4, 1_000_000
_EXPONENTS = (0.8, 0.95, 1.05, 1.2)  # of each stack's ids
_MEAN_IDS = 8.0
# Name -> options of AdaptiveLimits.
_RULES = {
    "the largest need": dict(growth=1.0001, headroom=1.0, near=1.0),
    "a tenth above it": dict(growth=1.0001, headroom=1.1, near=1.0),
    "rungs alone": dict(growth=1.25, headroom=1.0, near=1.0),
    "AdaptiveLimits": dict(),
}


def _specs() -> dict[str, embedding_spec.FeatureSpec]:
  specs = {}
  for i in range(len(_EXPONENTS)):
    table = embedding_spec.TableSpec(
        name=f"t{i}",
        vocabulary_size=_VOCABULARY,
        embedding_dim=8,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
    )
    specs[f"t{i}"] = embedding_spec.FeatureSpec(
        name=f"t{i}",
        table_spec=table,
        input_shape=(_BATCH.value, None),
        output_shape=(_BATCH.value, 8),
    )
  embedding.prepare_feature_specs_for_training(specs, _DEVICES, _NUM_SC)
  return specs


def _batches(drifts: bool, bursts: bool) -> Iterator[dict[str, Any]]:
  rng = np.random.default_rng(0)
  for number in range(_NUM_BATCHES.value):
    part = number / _NUM_BATCHES.value if drifts else 0.0
    burst = rng.integers(len(_EXPONENTS)) if rng.random() < 0.005 else -1
    features = {}
    for i, exponent in enumerate(_EXPONENTS):
      mean = _MEAN_IDS * (1 + 0.5 * part) * (2 if bursts and i == burst else 1)
      counts = rng.poisson(mean, _BATCH.value)
      splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
      ids = zipf.sample(rng, exponent, _VOCABULARY, splits[-1])
      # Popular rows move through the table.
      moved = (ids + int(part * _VOCABULARY)) % _VOCABULARY
      features[f"t{i}"] = moved.astype(np.int32), splits
    yield features


def _cells(limits: embedding.AdaptiveLimits) -> int:
  """Of a SparseCore, in the buffers of all stacks."""
  return sum(of.coo_cells_per_sc for _, of in limits.limits.stacks)


def main(argv: Any) -> None:
  del argv
  print(
      f"{machine.describe()}; JAX {jax.__version__}. {_NUM_BATCHES.value} batches"
      f" of {_BATCH.value} samples, {_DEVICES} devices x {_NUM_SC} SparseCores."
  )
  print(
      "| workload | rule | programs | last growth at batch | ids dropped | cells"
      " at the end / largest need | mean cells / mean need | CPU s |"
  )
  print("|---|---|--:|--:|--:|--:|--:|--:|")
  for workload, options in (
      ("drift and bursts", dict(drifts=True, bursts=True)),
      ("drift", dict(drifts=True, bursts=False)),
      ("stationary", dict(drifts=False, bursts=False)),
  ):
    rules = {
        name: embedding.AdaptiveLimits(
            _specs(),
            _DEVICES,
            _DEVICES,
            num_sc_per_device=_NUM_SC,
            on_growth=lambda growths: None,
            **rule,
        )
        for name, rule in _RULES.items()
    }
    seconds = dict.fromkeys(rules, 0.0)
    dropped = dict.fromkeys(rules, 0)
    provided = dict.fromkeys(rules, 0)  # cells, of all batches
    largest = total = 0
    for features in _batches(**options):
      for name, limits in rules.items():
        begin = time.process_time()
        _, stats = limits.preprocess(features)
        seconds[name] += time.process_time() - begin
        dropped[name] += sum(stats.id_drop_counters.values())
        provided[name] += _cells(limits)
      needs = {
          stack: int(cells.max())
          for stack, cells in stats.required_buffer_size_per_sc.items()
      }
      total += sum(needs.values())
      largest = (
          {s: max(largest[s], need) for s, need in needs.items()}
          if largest
          else needs
      )
    for name, limits in rules.items():
      grown = sorted({growth.batch_number for growth in limits.growths})
      print(
          f"| {workload} | {name} | {len(grown)} | {grown[-1]} |"
          f" {dropped[name]} |"
          f" {_cells(limits) / sum(largest.values()):.2f} |"
          f" {provided[name] / total:.2f} | {seconds[name]:.1f} |"
      )


if __name__ == "__main__":
  app.run(main)
