# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How the cost of a table grows with its size."""

from __future__ import annotations

from concurrent import futures
import ctypes
import gc
import mmap
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
# A virtual machine gives freed memory back to its host in some seconds, and
# then waits for it anew: every process of a large table finds it so.
_LARGE_MEBIBYTES, _SECONDS_TO_SETTLE = 1024, 12


class Worker:
  """The commands. Each is for a process of its own."""

  def step(self, mebibytes: int) -> dict[str, float]:
    memory.keep_freed_memory()
    num_rows, specs = _num_rows(mebibytes), _specs(mebibytes)
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

  def memory_once_compiled(self, mebibytes: int) -> dict[str, float]:
    """MiB beside the table, where the process has compiled all before."""
    specs = _specs(mebibytes)
    models.variables(specs)
    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()  # what JAX still held
    # What malloc keeps of the first table would hide what the second one takes.
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is now
    before = _peak_mebibytes()
    models.variables(specs)
    beside = _peak_mebibytes() - before - mebibytes
    return {"memory once compiled, MiB": max(0, round(beside))}

  def write_memory(self, mebibytes: int) -> dict[str, float]:
    """Seconds to write one number to new memory of that size, on all CPUs.

    In huge pages, as tables are. No table can be made in less.
    """
    begin = time.perf_counter()
    region = mmap.mmap(
        -1, mebibytes * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    region.madvise(mmap.MADV_HUGEPAGE)
    parts = np.array_split(
        np.frombuffer(region, np.float32), machine.num_cpus()
    )
    with futures.ThreadPoolExecutor(len(parts)) as threads:
      for done in [threads.submit(part.fill, 0.5) for part in parts]:
        done.result()
    return {"memory alone, s": time.perf_counter() - begin}


def _specs(mebibytes: int) -> list[embedding_spec.FeatureSpec]:
  """The prepared feature of a table of that size."""
  specs = models.features(
      [_num_rows(mebibytes)],
      dim=_DIM,
      batch_size=_BATCH,
      valency=_VALENCY,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
      limit=_BATCH * _VALENCY,
  )
  embedding.prepare_feature_specs_for_training(specs, 1, 1)
  return specs


def _num_rows(mebibytes: int) -> int:
  return mebibytes * 2**20 // (4 * _DIM)


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
    point = {"table, MiB": mebibytes}
    for command in ("write_memory", "step", "memory_once_compiled"):
      if mebibytes >= _LARGE_MEBIBYTES:
        time.sleep(_SECONDS_TO_SETTLE)
      with worker_process.WorkerProcess(__name__) as worker:
        point |= worker.command(command, mebibytes=mebibytes)
    points.append(point)
  return [
      curve.Curve(
          name="sizes",
          title="Size of a table",
          text=(
              f"{_DIM} columns, truncated normal values, SGD, {_BATCH} samples"
              f" x {_VALENCY} uniform ids, other ids in each step; one device,"
              " wall times in a new process for each row. Memory beside the"
              " table: the most that initializing it took, from VmHWM; what"
              " compiling its programs took is in it, and not in that of"
              " another process, which has made the same table before. Memory"
              " alone: a third process writes one number to as many bytes, in"
              " a thread for each CPU. From 1 GiB on, each process begins"
              f" {_SECONDS_TO_SETTLE} s after the one before: where memory is"
              " that of a virtual machine, the host has it back by then. Rows"
              " of a step are in more pages, and fewer of them in a cache, if"
              " the table is larger."
          ),
          x="table, MiB",
          points=points,
      )
  ]
