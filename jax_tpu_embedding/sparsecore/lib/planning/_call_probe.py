# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What lookups and updates take on this machine's CPU, by what is in a batch.

It runs in a process of its own: starting JAX here would take the choice of
devices from the program that asks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from jax_tpu_embedding.sparsecore.lib.planning import chips
import numpy as np

_VALUE_BYTES = 4
_NUM_BATCHES = 3
_NUM_TURNS = 9
_TIMEOUT_SECONDS = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Probe:
  """A program whose calls are timed. Ids are drawn uniformly.

  Attributes:
    num_tables: each with a lookup and an update of its own.
    num_rows: of a table.
    num_columns: of a table.
    num_samples: of a batch.
    valency: ids of a sample and a table.
    rows_are_cached: whether they stay in a cache from batch to batch.
  """

  num_tables: int = 1
  num_rows: int = 4096
  num_columns: int
  num_samples: int
  valency: int
  rows_are_cached: bool = True

  def amounts(self) -> list[float]:
    """Of all its calls: what a field of CallTimes each is a price of."""
    num_ids = self.num_samples * self.valency
    row_bytes = _VALUE_BYTES * self.num_columns
    new_rows = 0.0
    if not self.rows_are_cached:
      new_rows = self.num_rows * (1 - (1 - 1 / self.num_rows) ** num_ids)
    of_a_table = (
        1,
        num_ids,
        num_ids * row_bytes,
        new_rows,
        new_rows * row_bytes,
        self.num_samples * row_bytes,
    )
    return [self.num_tables * x for x in of_a_table]


# As many as there are prices. Each has much of one thing that the others lack.
_PROBES = (
    _Probe(num_columns=16, num_samples=16384, valency=20),
    _Probe(num_columns=128, num_samples=16384, valency=20),
    _Probe(num_columns=64, num_samples=65536, valency=1),
    _Probe(
        num_columns=16,
        num_samples=16384,
        valency=20,
        num_rows=2**21,
        rows_are_cached=False,
    ),
    _Probe(
        num_columns=128,
        num_samples=16384,
        valency=20,
        num_rows=2**20,
        rows_are_cached=False,
    ),
    # So many that what JAX takes to call a program is little of each.
    _Probe(num_columns=16, num_samples=8, valency=1, num_tables=8),
)


def measure() -> chips.MeasuredTimes:
  """Those of a device that has all CPUs of this process.

  Raises:
    RuntimeError: if the process that measures fails.
  """
  program = (
      "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
      f" from {__name__} import main; main()"
  )
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
  failed = (
      "The lookups of this machine could not be timed, for a topology of cpu:N."
  )
  try:
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(sys.path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
  except (OSError, subprocess.TimeoutExpired) as error:
    raise RuntimeError(f"{failed} {error}") from error
  if done.returncode:
    raise RuntimeError(
        f"{failed} The process that does it ended with {done.returncode}:\n"
        f"{done.stderr}"
    )
  answer = json.loads(done.stdout.splitlines()[-1])
  return chips.MeasuredTimes(
      **{call: chips.CallTimes(**times) for call, times in answer.items()}
  )


def main() -> None:
  """Prints the times of this process."""
  seconds = [_seconds(probe) for probe in _PROBES]
  print(
      json.dumps(
          {
              call: dataclasses.asdict(_fit([x[call] for x in seconds]))
              for call in ("lookup", "update")
          }
      )
  )


def _fit(seconds: list[float]) -> chips.CallTimes:
  """The prices by which _PROBES take `seconds`, none of them below zero."""
  # Here, and JAX below, so that the process that asks needs none of it.
  from scipy import optimize

  amounts = np.array([probe.amounts() for probe in _PROBES])
  # Of what noise leaves over, each probe's is a share of its own time.
  shares = amounts / np.array(seconds)[:, None]
  scale = shares.max(axis=0)
  prices, _ = optimize.nnls(shares / scale, np.ones(len(seconds)))
  names = [field.name for field in dataclasses.fields(chips.CallTimes)]
  return chips.CallTimes(
      **dict(zip(names, (prices / scale).tolist(), strict=True))
  )


def _seconds(probe: _Probe) -> dict[str, float]:
  """Of the lookups and of the updates of a probe."""
  import jax
  from jax_tpu_embedding.sparsecore.lib.core import memory
  from jax_tpu_embedding.sparsecore.lib.nn import embedding
  from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

  memory.keep_freed_memory()
  num_ids = probe.num_samples * probe.valency
  features = [
      embedding_spec.FeatureSpec(
          name=f"feature_{i}",
          table_spec=embedding_spec.TableSpec(
              name=f"table_{i}",
              vocabulary_size=probe.num_rows,
              embedding_dim=probe.num_columns,
              initializer=jax.nn.initializers.zeros,
              optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.01),
              max_ids_per_partition=num_ids,
              max_unique_ids_per_partition=num_ids,
          ),
          input_shape=(probe.num_samples, probe.valency),
          output_shape=(probe.num_samples, probe.num_columns),
      )
      for i in range(probe.num_tables)
  ]
  embedding.prepare_feature_specs_for_training(features, 1, 1)
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  variables: Any = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(features),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      1,
  )
  generator = np.random.default_rng(0)
  batches = [
      jax.device_put(
          embedding.preprocess_sparse_dense_matmul_input(
              [
                  generator.integers(probe.num_rows, size=feature.input_shape)
                  for feature in features
              ],
              None,
              features,
              1,
              1,
              num_sc_per_device=1,
          )[0]
      )
      for _ in range(_NUM_BATCHES)
  ]
  look_up = jax.jit(
      lambda variables, inputs: embedding.tpu_sparse_dense_matmul(
          inputs, variables, features
      )
  )
  update = jax.jit(
      lambda variables, gradients, inputs: embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, features
      ),
      donate_argnums=0,
  )
  seconds: dict[str, list[float]] = {"lookup": [], "update": []}
  for turn in range(_NUM_BATCHES + _NUM_TURNS):
    inputs = batches[turn % _NUM_BATCHES]
    begin = time.perf_counter()
    gradients = jax.block_until_ready(look_up(variables, inputs))
    between = time.perf_counter()
    variables = jax.block_until_ready(update(variables, gradients, inputs))
    end = time.perf_counter()
    if turn >= _NUM_BATCHES:  # The first ones compile, and populate memory.
      seconds["lookup"].append(between - begin)
      seconds["update"].append(end - between)
  return {name: statistics.median(x) for name, x in seconds.items()}
