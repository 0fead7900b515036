# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What one host does for a job, by the number of devices in it."""

from __future__ import annotations

import math
import time

import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np

from benchmarks import worker_process
from benchmarks.scale import curve
from benchmarks.scale import models

_NUM_TABLES, _ROWS, _DIM = 26, 1_000_000, 64
_LOCAL_DEVICES, _NUM_SC = 4, 4
_BATCH = 16384  # of the host
_NUM_DEVICES = (4, 16, 64, 256, 1024, 4096, 16384)


class Worker:
  """The commands."""

  def convert(
      self, num_devices: int, batch_size: int, is_stacked: bool
  ) -> dict[str, float]:
    num_partitions = num_devices * _NUM_SC
    num_stacks = 1 if is_stacked else _NUM_TABLES
    # Of the ids that a SparseCore has for a SparseCore, twice the average and
    # some more, as their number varies by its root.
    num_ids = batch_size * _NUM_TABLES / num_stacks / _LOCAL_DEVICES / _NUM_SC
    mean = num_ids / num_partitions
    limit = math.ceil(2 * mean + 4 * math.sqrt(mean) + 8)
    specs = models.features(
        [_ROWS] * _NUM_TABLES,
        dim=_DIM,
        batch_size=batch_size * num_devices // _LOCAL_DEVICES,
        valency=1,
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
        limit=limit,
    )
    if is_stacked:
      of_stack = lambda *_: limit
      table_stacking.stack_tables(
          specs,
          [spec.table_spec.name for spec in specs],
          num_devices,
          _NUM_SC,
          stack_to_max_ids_per_partition=of_stack,
          stack_to_max_unique_ids_per_partition=of_stack,
      )
    embedding.prepare_feature_specs_for_training(specs, num_devices, _NUM_SC)
    rng = np.random.default_rng(0)
    ids = [
        rng.integers(_ROWS, size=(batch_size, 1), dtype=np.int32)
        for _ in range(_NUM_TABLES)
    ]

    def convert():
      return embedding.preprocess_sparse_dense_matmul_input(
          ids,
          None,
          specs,
          _LOCAL_DEVICES,
          num_devices,
          num_sc_per_device=_NUM_SC,
      )

    inputs, stats = convert()
    assert not any(stats.id_drop_counters.values())
    times = []
    for _ in range(5):
      begin = time.process_time()
      convert()
      times.append(time.process_time() - begin)
    buffers = jax.tree.leaves(inputs)
    # Of one device and stack; by_messages.py sends numbers of rows, gets rows
    # for the lookup, and sends their gradients.
    topology = layout.Topology(
        local_device_count=_LOCAL_DEVICES,
        global_device_count=num_devices,
        num_sc_per_device=_NUM_SC,
    )
    (num_cells,) = {
        np.shape(ids)[-1] // _LOCAL_DEVICES
        for ids in inputs.lhs_embedding_ids.values()
    }
    capacity = messages.capacity(
        topology,
        num_cells=num_cells,
        rows_per_device=math.ceil(
            _ROWS * _NUM_TABLES / num_stacks / num_devices
        ),
        max_unique_ids_per_partition=limit,
        enable_minibatching=False,
    )
    sent = num_devices * capacity * (4 + 2 * 4 * _DIM)
    return {
        "limit": limit,
        "CPU per id, ns": 1e9 * min(times) / _NUM_TABLES / batch_size,
        "buffers, MiB": sum(x.nbytes for x in buffers) / 2**20,
        "sent by messages, MiB": sent * num_stacks * _LOCAL_DEVICES / 2**20,
    }


def measure(is_quick: bool) -> list[curve.Curve]:
  how = (
      f" An id per sample, {_BATCH:,} samples for the {_LOCAL_DEVICES} devices"
      f" of a host with {_NUM_SC} SparseCores each, whatever the number of"
      " devices of the job. Limits are twice the average and some more, and set"
      " the size of the buffers. What is sent is what CPUs and GPUs send, if"
      " each process has a device: whole blocks of messages, rows for lookup"
      " and gradients for update; computed, not measured. TPUs fetch rows."
  )
  head = f"{_NUM_TABLES} tables of {_ROWS:,} rows x {_DIM}"
  return [
      curve.Curve(
          name="hosts_stacked",
          title="One host's share of a job, tables in a stack",
          text=(
              f"{head}, as one stack. A partition has room for its limit,"
              " rounded up to eight cells, which is the format of the buffers;"
              " from 1,024 devices on it has fewer than eight ids on average,"
              f" and what grows is mostly padding.{how}"
          ),
          x="devices",
          points=_points(is_quick, is_stacked=True),
      ),
      curve.Curve(
          name="hosts",
          title="One host's share of a job, each table by itself",
          text=(
              f"{head}, not stacked: a partition of a table takes eight cells"
              " or more however few ids it has, and that is what grows."
              f"{how}"
          ),
          x="devices",
          points=_points(is_quick, is_stacked=False),
      ),
  ]


def _points(is_quick: bool, is_stacked: bool) -> list[curve.Point]:
  points = []
  for num_devices in _NUM_DEVICES[:2] if is_quick else _NUM_DEVICES:
    with worker_process.WorkerProcess(__name__) as worker:
      answer = worker.command(
          "convert",
          num_devices=num_devices,
          batch_size=1024 if is_quick else _BATCH,
          is_stacked=is_stacked,
      )
    points.append({"devices": num_devices, **answer})
  return points
