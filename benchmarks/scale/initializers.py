# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How fast tables of each kind of initial values are made on this CPU.

  bazel run //benchmarks/scale:initializers

All in one process, which takes and frees the memory of one table after the
other: of the first one, compiling and the system's first touch of the memory
are in the time, of the others the filling alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import time

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

from benchmarks import turns
from benchmarks.scale import models

_INITIALIZERS = {
    "constant": jax.nn.initializers.constant(0.5),
    "uniform": jax.nn.initializers.uniform(0.1),
    "normal": jax.nn.initializers.normal(0.1),
    "truncated_normal": jax.nn.initializers.truncated_normal(0.1),
    "glorot_uniform": jax.nn.initializers.glorot_uniform(),
    "glorot_normal": jax.nn.initializers.glorot_normal(),
    "he_normal": jax.nn.initializers.he_normal(),
    "lecun_normal": jax.nn.initializers.lecun_normal(),
}
_DIM = 64

_MEBIBYTES = flags.DEFINE_integer("mebibytes", 2048, "Of a table.", 1)
_TURNS = flags.DEFINE_integer("turns", 5, "Of each, after the first.", 2)


def _gibibytes_per_second(initializer) -> list[float]:
  num_rows = _MEBIBYTES.value * 2**20 // (4 * _DIM)
  results = []
  for _ in range(1 + _TURNS.value):
    (feature,) = models.features(
        [num_rows],
        dim=_DIM,
        batch_size=16,
        valency=1,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
        limit=16,
    )
    feature.table_spec.initializer = initializer
    embedding.prepare_feature_specs_for_training([feature], 1, 1)
    begin = time.perf_counter()
    models.variables([feature])
    seconds = time.perf_counter() - begin
    results.append(_MEBIBYTES.value / 1024 / seconds)
  return results


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  print("| initial values | first, GiB/s | others, GiB/s (quartiles) |")
  print("|---|--:|--:|")
  for name, initializer in _INITIALIZERS.items():
    first, *others = _gibibytes_per_second(initializer)
    low, median, high = turns.quartiles(others)
    print(
        f"| {name} | {first:.2f} | {median:.2f} ({low:.2f} - {high:.2f}) |",
        flush=True,
    )


if __name__ == "__main__":
  app.run(main)
