# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What rows take in lookups and updates of this machine's CPU.

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

_NUM_SAMPLES, _VALENCY = 16384, 20
_NUM_IDS = _NUM_SAMPLES * _VALENCY
_VALUE_BYTES = 4
# Rows that stay in a cache, of a narrow and a wide table, and rows that do not.
_FEW_ROWS = 4096
_NARROW, _WIDE = 16, 128
_MANY_ROWS, _MIDDLE = 2**20, 64
_NUM_BATCHES = 3
_NUM_TURNS = 9
_TIMEOUT_SECONDS = 120


def measure() -> dict[str, chips.RowTimes]:
  """Those of a "lookup" and of an "update", by all CPUs of this process.

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
  return {name: chips.RowTimes(**times) for name, times in answer.items()}


def main() -> None:
  """Prints the row times of this process."""
  narrow = _seconds(_NARROW, _FEW_ROWS)
  wide = _seconds(_WIDE, _FEW_ROWS)
  many = _seconds(_MIDDLE, _MANY_ROWS)
  times = {
      name: dataclasses.asdict(_fit(narrow[name], wide[name], many[name]))
      for name in narrow
  }
  print(json.dumps(times))


def _fit(narrow: float, wide: float, many: float) -> chips.RowTimes:
  """From the seconds of the three tables."""
  narrow_bytes, wide_bytes, middle_bytes = (
      _VALUE_BYTES * columns for columns in (_NARROW, _WIDE, _MIDDLE)
  )
  per_byte = max(
      0.0, (wide - narrow) / (_NUM_IDS * (wide_bytes - narrow_bytes))
  )
  per_id = max(0.0, narrow / _NUM_IDS - narrow_bytes * per_byte)
  in_caches = _NUM_IDS * (per_id + middle_bytes * per_byte)
  # Of ids that are drawn uniformly.
  num_rows = _MANY_ROWS * (1 - (1 - 1 / _MANY_ROWS) ** _NUM_IDS)
  per_new_byte = max(0.0, (many - in_caches) / (num_rows * middle_bytes))
  return chips.RowTimes(
      per_id=per_id, per_byte=per_byte, per_new_byte=per_new_byte
  )


def _seconds(num_columns: int, num_rows: int) -> dict[str, float]:
  """Of a lookup and an update of a table, with uniform ids."""
  # Here, so that the process that asks needs none of it.
  import jax
  from jax_tpu_embedding.sparsecore.lib.core import memory
  from jax_tpu_embedding.sparsecore.lib.nn import embedding
  from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

  memory.keep_freed_memory()
  table = embedding_spec.TableSpec(
      name="table",
      vocabulary_size=num_rows,
      embedding_dim=num_columns,
      initializer=jax.nn.initializers.zeros,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.01),
      max_ids_per_partition=_NUM_IDS,
      max_unique_ids_per_partition=_NUM_IDS,
  )
  feature = embedding_spec.FeatureSpec(
      name="feature",
      table_spec=table,
      input_shape=(_NUM_SAMPLES, _VALENCY),
      output_shape=(_NUM_SAMPLES, num_columns),
  )
  embedding.prepare_feature_specs_for_training([feature], 1, 1)
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  variables: Any = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs([feature]),
      jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
      1,
  )
  generator = np.random.default_rng(0)
  batches = [
      jax.device_put(
          embedding.preprocess_sparse_dense_matmul_input(
              [generator.integers(num_rows, size=feature.input_shape)],
              None,
              [feature],
              1,
              1,
              num_sc_per_device=1,
          )[0]
      )
      for _ in range(_NUM_BATCHES)
  ]
  look_up = jax.jit(
      lambda variables, inputs: embedding.tpu_sparse_dense_matmul(
          inputs, variables, [feature]
      )
  )
  update = jax.jit(
      lambda variables, gradients, inputs: embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, [feature]
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
