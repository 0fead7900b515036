# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups in exported tables, beside the training lookup, peers and the memory.

    benchmarks/lookup/install_peers.sh
    ./bazelw run //benchmarks/serving -- --output_dir=$PWD/benchmarks/serving

Prints tables in Markdown for RESULTS.md, and draws encodings.png. One thread;
contenders take turns, as other programs run on the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pathlib
import tempfile
import threading
import time

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.serving import _versions
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

from benchmarks import machine
from benchmarks import results_folder
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import limit
from benchmarks.serving import workload

_ROWS = flags.DEFINE_integer("rows", 1 << 20, "Of the table of 64 columns.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Of each contender.")
_REQUESTS = flags.DEFINE_integer("requests", 20000, "Of 26 features x 20 ids.")
_PEERS = flags.DEFINE_string(
    "peers",
    os.path.expanduser("~/.cache/jax_tpu_embedding/lookup_peers"),
    "Folder with the virtual environment of PyTorch and FBGEMM, which are left"
    " out if it is not there.",
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "For encodings.png.")

_COLUMNS, _SAMPLES, _IDS = workload.COLUMNS, workload.SAMPLES, workload.IDS
_FEATURES = 26
# Of a table, to see what encodings do to values.
_NUM_CHECKED = 1 << 16
_ENCODINGS = ("float32", "bfloat16", "float16", "int8", "int4")


def _markdown(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
  lines = [head, tuple("--:" for _ in head), *rows]
  return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def training_lookup(values: np.ndarray):
  """A jitted lookup_ids of ids[B, 20] in a table with these values."""
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=values.shape[0],
      embedding_dim=values.shape[1],
      combiner="sum",
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
  )
  feature = embedding_spec.FeatureSpec(
      name="clicked",
      table_spec=table,
      input_shape=(_SAMPLES, _IDS),
      output_shape=(_SAMPLES, values.shape[1]),
  )
  embedding.prepare_feature_specs_for_training([feature], 1, 1)
  [(stack, spec)] = embedding.get_stacked_table_specs([feature]).items()
  rows = np.zeros((spec.stack_vocab_size, spec.stack_embedding_dim), np.float32)
  rows[: values.shape[0], : values.shape[1]] = values
  variables = {stack: (jax.device_put(rows),)}
  topology = layout.Topology(
      local_device_count=1, global_device_count=1, num_sc_per_device=1
  )
  look = jax.jit(
      lambda ids, variables: embedding.lookup_ids(
          {"clicked": ids}, None, variables, {"clicked": feature}, topology
      )["clicked"]
  )
  return lambda ids: np.asarray(look(ids, variables))


def memory_limit(file: pathlib.Path, row_bytes: int, rows: int):
  """Adds up each id's row of as many bytes in a mapped file, as floats.

  The memory is of the same kind, and the numbers are ones: bytes of codes would
  be floats that processors are slow with.
  """
  library = limit.load_library()
  columns = -(-row_bytes // 4)
  np.ones((rows, columns), np.float32).tofile(file)
  table = np.memmap(file, np.float32, "c", 0, (rows, columns))
  weights = np.ones((_SAMPLES, _IDS), np.float32)
  out = np.zeros((_SAMPLES, columns), np.float32)

  def touch(ids, distance, samples_at_once):
    library.LookUp(
        *(ctypes.c_void_p(x.ctypes.data) for x in (table, ids, weights, out)),
        *map(ctypes.c_int64, (_SAMPLES, _IDS, columns, 64, distance)),
        ctypes.c_int64(samples_at_once),
        ctypes.c_bool(False),
        ctypes.c_int64(1),
    )

  ids = np.random.default_rng(5).integers(0, rows, (_SAMPLES, _IDS), np.int32)
  least = {
      way: min(
          turns.time_calls(lambda way=way: touch(ids, *way), 2)["cpu"]
          for _ in "123"
      )
      for way in itertools.product((8, 16, 32, 64), (0, 1024 // _IDS))
  }
  best = min(least, key=least.get)
  return lambda ids: touch(ids, *best)


def on_batches(batches: list[np.ndarray], look):
  """What turns.take times: calls of `look` with one batch after another."""

  def run(calls):
    numbers = iter(range(calls))
    return turns.time_calls(
        lambda: look(batches[next(numbers) % len(batches)]), calls
    )

  return run


def pooled_lookup(tables):
  """A lookup of ids[B, 20] in served tables."""
  splits = np.arange(_SAMPLES + 1, dtype=np.int64) * _IDS
  out = np.empty((_SAMPLES, _COLUMNS), np.float32)
  return lambda ids: tables.lookup_pooled(
      "items", ids.reshape(-1), splits, out=out
  )


def ns_per_id(seconds: float) -> float:
  """Of a batch."""
  return 1e9 * seconds / (_SAMPLES * _IDS)


def ratio(dividends, divisors) -> str:
  low, middle, high = turns.quartiles_of_ratio(dividends, divisors)
  return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def measure_batches(
    values: np.ndarray,
    opened,
    directory: pathlib.Path,
    peers: worker_process.WorkerProcess | None,
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
  """A row for each contender of ours; one for each of a peer.

  Args:
    values: of the table, workload.values.
    opened: encoding -> the table.
    directory: for files.
    peers: a process of peers_worker.py.
  """
  batches = workload.batches(len(values))
  train = training_lookup(values)
  timed = {"lookup_ids": on_batches(batches, train)}
  for name, tables in opened.items():
    timed[name] = on_batches(batches, pooled_lookup(tables))
    timed[name + " limit"] = on_batches(
        batches,
        memory_limit(
            directory / f"ones_{name}",
            _versions.row_bytes(name, _COLUMNS),
            len(values),
        ),
    )
  np.testing.assert_array_equal(
      pooled_lookup(opened["float32"])(batches[0]), train(batches[0])
  )
  num_checked = min(len(values), _NUM_CHECKED)
  of_peers = {}
  if peers is not None:
    loaded = peers.command("load", rows=len(values), num_checked=num_checked)
    of_peers = loaded["peers"]
    timed |= {name: peers.timed(peer=name) for name in of_peers}
  timings = turns.take(timed, _ROUNDS.value)

  def least(name):
    return ns_per_id(min(timings[name].cpu))

  def ratio_of(name, to):
    return ratio(timings[name].cpu, timings[to].cpu)

  table, points = [], []
  for name in ("lookup_ids", *opened):
    limit_name = ("float32" if name == "lookup_ids" else name) + " limit"
    size = _versions.row_bytes(
        "float32" if name == "lookup_ids" else name, _COLUMNS
    )
    rms, most = 0.0, 0.0
    if name in opened:
      rms, most = workload.errors(
          values[:num_checked],
          opened[name].lookup("items", np.arange(num_checked)),
      )
      points.append((name, size, rms, least(name)))
    table.append(
        (
            name,
            size,
            f"{rms:.2g}",
            f"{most:.2g}",
            f"{least(name):.1f}",
            ratio_of(name, "lookup_ids"),
            f"{least(limit_name):.1f}",
            ratio_of(name, limit_name),
        )
    )
  if _OUTPUT_DIR.value:
    draw(points, least("lookup_ids"))
  return table, [
      (
          peer,
          size,
          f"{rms:.2g}",
          f"{most:.2g}",
          f"{least(peer):.1f}",
          ratio_of(peer, peer.rpartition(", ")[2]),
      )
      for peer, (size, rms, most) in of_peers.items()
  ]


def draw(points, training_ns: float) -> None:
  """Bytes, error and time of each encoding."""
  import matplotlib  # pylint: disable=g-import-not-at-top

  matplotlib.use("Agg")
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top

  names, sizes, rms, ns = zip(*points)
  figure, axes = pyplot.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
  for axis, numbers, title in zip(
      axes,
      (sizes, rms, ns),
      ("bytes of a row of 64", "relative RMS error", "CPU ns per id"),
  ):
    axis.barh(names, numbers, color="tab:blue")
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.invert_yaxis()
  axes[1].set_xscale("symlog", linthresh=1e-5)
  axes[2].axvline(training_ns, color="tab:orange")
  axes[2].set_xlabel("lookup_ids", fontsize=8, color="tab:orange")
  folder = results_folder.make(_OUTPUT_DIR.value)
  figure.savefig(folder / "encodings.png", dpi=110)


def leave_on_disk(directory: pathlib.Path) -> None:
  """Takes the files of a directory out of the page cache."""
  for path in directory.rglob("*"):
    if path.is_file():
      with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_memory(
    directory: pathlib.Path, values: np.ndarray
) -> list[tuple[object, ...]]:
  """A row for tables that are mapped and one for copies, for two encodings.

  Each has files of its own, which are on the disk alone before it is opened:
  those that are mapped are in the page cache as lookups read them.
  """
  batches = workload.batches(len(values))
  timed, before = {}, {}
  for encoding in ("float32", "int8"):
    for memory in ("mapped", "copied"):
      path = directory / f"{encoding}_{memory}"
      written_tables.write_full(
          path, {"items": written_tables.WrittenTable(values, encoding)}
      )
      leave_on_disk(path)
      begin = time.perf_counter()
      tables = embedding_tables.open(
          path, copy_to_huge_pages=memory == "copied"
      )
      seconds = time.perf_counter() - begin
      look = pooled_lookup(tables)
      first = turns.time_calls(lambda: look(batches[0]), 1)["wall"]
      before[encoding, memory] = f"{seconds:.3f}", f"{ns_per_id(first):.1f}"
      timed[encoding, memory] = on_batches(batches, look)
  timings = turns.take(timed, _ROUNDS.value)
  return [
      (
          encoding,
          memory,
          *before[encoding, memory],
          f"{ns_per_id(min(timing.cpu)):.1f}",
          ratio(timing.cpu, timings[encoding, "mapped"].cpu),
      )
      for (encoding, memory), timing in timings.items()
  ]


def measure_requests(tables) -> tuple[float, float]:
  """Microseconds of a request of 26 features x 20 ids: p50 and p99."""
  random = np.random.default_rng(2)
  splits = np.array([0, _IDS])
  requests = [
      {
          f"f{i}": (random.integers(0, _ROWS.value, _IDS), splits)
          for i in range(_FEATURES)
      }
      for _ in range(500)
  ]
  seconds = []
  for i in range(_REQUESTS.value):
    request = requests[i % len(requests)]
    begin = time.perf_counter()
    tables.activations(request)
    seconds.append(time.perf_counter() - begin)
  p50, p99 = np.quantile(seconds, (0.5, 0.99))
  return 1e6 * p50, 1e6 * p99


def measure_stop(directory: pathlib.Path, values: np.ndarray) -> list[float]:
  """Longest times, in ms, that small lookups took while a delta of all rows
  was applied, and of as many lookups without one."""
  written = {"items": written_tables.WrittenTable(values, "int8")}
  crc32 = written_tables.write_full(directory, written, 0)
  tables = embedding_tables.open(directory)
  change = written_tables.WrittenChange(np.arange(len(values)), -values)
  written_tables.write_delta(
      directory, written, {"items": change}, 1, (0, crc32)
  )
  longest = []
  for act in (tables.refresh, lambda: time.sleep(0.3)):
    begun, done = threading.Event(), threading.Event()
    seconds = []

    def look(begun=begun, done=done, seconds=seconds):
      ids = np.arange(20)
      while not done.is_set():
        begin = time.perf_counter()
        tables.lookup("items", ids)
        seconds.append(time.perf_counter() - begin)
        begun.set()

    reader = threading.Thread(target=look)
    reader.start()
    begun.wait()
    act()
    done.set()
    reader.join()
    longest.append(1e3 * max(seconds))
  return longest


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  results_folder.make(_OUTPUT_DIR.value)
  values = workload.values(_ROWS.value)
  print(machine.describe(), "\n", flush=True)
  with contextlib.ExitStack() as stack:
    temporary = stack.enter_context(tempfile.TemporaryDirectory())
    opened, requests = {}, []
    for encoding in _ENCODINGS:
      directory = pathlib.Path(temporary) / encoding
      written_tables.write_full(
          directory,
          {"items": written_tables.WrittenTable(values, encoding)},
          features={f"f{i}": "items" for i in range(_FEATURES)},
      )
      opened[encoding] = embedding_tables.open(directory)
    python = pathlib.Path(_PEERS.value, "torch", "bin", "python")
    peers = None
    if python.exists():
      peers = stack.enter_context(
          worker_process.WorkerProcess(
              "benchmarks.serving.peers_worker",
              str(python),
              worker_process.ENVIRONMENT_OF_PEERS,
          )
      )
    ours, of_peers = measure_batches(
        values, opened, pathlib.Path(temporary), peers
    )
    head = (
        "contender",
        "bytes of a row",
        "relative RMS error",
        "largest error",
        "CPU ns/id",
    )
    print(
        _markdown(
            head + ("ratio to lookup_ids", "limit, ns/id", "ratio to limit"),
            ours,
        ),
        "\n",
    )
    if of_peers:
      print(_markdown(head + ("peer / ours",), of_peers), "\n", flush=True)
    print(
        _markdown(
            (
                "files that are on the disk",
                "memory",
                "open, s",
                "first batch, ns/id",
                "CPU ns/id",
                "ratio to mapped",
            ),
            measure_memory(pathlib.Path(temporary) / "memory", values),
        ),
        "\n",
        flush=True,
    )
    for encoding in _ENCODINGS:
      p50, p99 = measure_requests(opened[encoding])
      requests.append((encoding, f"{p50:.0f}", f"{p99:.0f}"))
    print(
        _markdown(("request", "p50 us", "p99 us"), requests), "\n", flush=True
    )
    stops = [
        measure_stop(pathlib.Path(temporary) / f"stop{i}", values)
        for i in range(3)
    ]
    print(
        "Longest lookup while all int8 rows change, and without, ms:",
        ", ".join(f"{a:.1f} ({b:.1f})" for a, b in stops),
    )


if __name__ == "__main__":
  app.run(main)
