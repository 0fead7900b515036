# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How the cost of a table grows with its size."""

from __future__ import annotations

import pathlib
import re
import time

import jax
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import machine
from benchmarks import worker_process
from benchmarks.scale import curve
from benchmarks.scale import models

_DIM, _BATCH, _VALENCY = 64, 4096, 20
_MEBIBYTES = (64, 256, 1024, 4096, 18432)
# What a step of this batch and the process itself may take beside the table.
_OTHER_MEBIBYTES = 1024


class Worker:
  """The commands. Each is for a process of its own."""

  def step(self, mebibytes: int) -> dict[str, float]:
    memory.keep_freed_memory()
    num_rows = mebibytes * 2**20 // (4 * _DIM)
    specs = models.features(
        [num_rows],
        dim=_DIM,
        batch_size=_BATCH,
        valency=_VALENCY,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
        limit=_BATCH * _VALENCY,
    )
    embedding.prepare_feature_specs_for_training(specs, 1, 1)
    rng = np.random.default_rng(0)
    batches = [
        embedding.preprocess_sparse_dense_matmul_input(
            [rng.integers(num_rows, size=(_BATCH, _VALENCY), dtype=np.int32)],
            None,
            specs,
            1,
            1,
            num_sc_per_device=1,
        )[0]
        for _ in range(10)
    ]
    before = _peak_mebibytes()
    begin = time.perf_counter()
    variables = models.variables(specs)
    initialized = time.perf_counter() - begin
    beside = _peak_mebibytes() - before - mebibytes
    step = jax.jit(models.train_step(specs), donate_argnums=1)
    compiled = step.lower(batches[0], variables).compile()
    times = []
    for batch in batches:
      begin = time.perf_counter()
      variables = jax.block_until_ready(compiled(batch, variables))
      times.append(1e3 * (time.perf_counter() - begin))
    return {
        "initialize, s": initialized,
        "GiB/s": mebibytes / 1024 / initialized,
        "memory beside the table, MiB": max(0, round(beside)),
        "first step, ms": times[0],
        "tenth step, ms": times[-1],
        "peak, MiB": round(_peak_mebibytes()),
    }


def _peak_mebibytes() -> float:
  """The most memory that the process has had."""
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


def measure(is_quick: bool) -> list[curve.Curve]:
  points = []
  for mebibytes in (1,) if is_quick else _MEBIBYTES:
    free = machine.available_memory_bytes() / 2**20
    if free < mebibytes + _OTHER_MEBIBYTES:
      print(
          f"A table of {mebibytes} MiB was left out: {free:.0f} MiB are free."
      )
      continue
    with worker_process.WorkerProcess(__name__) as worker:
      answer = worker.command("step", mebibytes=mebibytes)
    points.append({"table, MiB": mebibytes, **answer})
  return [
      curve.Curve(
          name="sizes",
          title="Size of a table",
          text=(
              f"{_DIM} columns, truncated normal values, SGD, {_BATCH} samples"
              f" x {_VALENCY} uniform ids, other ids in each step; one device,"
              " wall times in a new process for each row. Memory beside the"
              " table: the most that initializing it took, from VmHWM. Rows of"
              " a step are in more pages, and fewer of them in a cache, if the"
              " table is larger."
          ),
          x="table, MiB",
          points=points,
      )
  ]
