# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""CPU seconds and memory of exporting and publishing tables, beside raw files.

    bazel run //benchmarks/export -- --directory=/dev/shm

One table in a jax.Ref, on one device x two SparseCores. Contenders take turns,
since other programs run on the machine; CPU seconds (user and system, all
threads) of the fastest turn are what to compare. A turn that is not timed
watches the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import ctypes
import gc
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any

from absl import app
from absl import flags
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import peak_memory
from jax_tpu_embedding.sparsecore.lib.export import export
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

_DIRECTORY = flags.DEFINE_string(
    "directory", None, "Where files are written; default: a temporary one."
)
_MEBIBYTES = flags.DEFINE_integer("mebibytes", 1024, "Of the table.")
_TURNS = flags.DEFINE_integer("turns", 3, "Of each contender.")

_COLUMNS = 64
_NUM_SC = 2
_ENCODINGS = ("float32", "bfloat16", "float16", "int8", "int4")
# A row in so many changes between two versions, all over the table.
_CHANGED_EVERY = 100

Task = Callable[[pathlib.Path], Any]


def make(rows: int) -> tuple[dict[str, Any], list[embedding_spec.FeatureSpec]]:
  """Variables in jax.Refs, of random numbers, and their specs."""
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=rows,
      embedding_dim=_COLUMNS,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.1),
  )
  feature = embedding_spec.FeatureSpec(
      name="item",
      table_spec=table,
      input_shape=(64, 1),
      output_shape=(64, _COLUMNS),
  )
  embedding.prepare_feature_specs_for_training([feature], 1, _NUM_SC)
  sharding = jax.sharding.NamedSharding(
      jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      jax.sharding.PartitionSpec("x", None),
  )
  variables = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs([feature]),
      sharding,
      _NUM_SC,
      bypass_mesh_check=True,
  )
  return jax.tree.map(jax.new_ref, variables), [feature]


def contenders(
    refs: Mapping[str, Any], specs: Any, saved: pathlib.Path
) -> dict[str, tuple[Task, Task]]:
  """Name -> what is to be prepared, and what is measured, for a directory.

  Args:
    refs: the variables.
    specs: what they were made for.
    saved: a checkpoint of them.
  """
  (stack,) = refs
  publishers = {}
  array = np.array(refs[stack].table[...])

  def change():
    # As training does: whole rows, in place.
    refs[stack].table[::_CHANGED_EVERY] += 1.0
    refs[stack].table[:1].block_until_ready()

  def write_raw(path):
    for first in range(0, len(array), len(array) // 64):
      with open(path / f"{first}", "wb") as file:
        array[first : first + len(array) // 64].tofile(file)
        os.fsync(file.fileno())

  def nothing(path):
    del path

  def export_from(source, encoding):
    return lambda path: export.export_tables(
        path / "served", source, specs, encoding=encoding
    )

  def publish_full(path, encoding):
    publisher = export.Publisher(path / "served", specs, encoding=encoding)
    publisher.publish(refs, 0)
    publishers[path] = publisher

  def publish_and_change(path):
    publish_full(path, encoding="int8")
    change()

  def publish_changes(path):
    with publishers.pop(path) as publisher:
      return publisher.publish(refs, 1)

  def publish_stop_and_change(path):
    publish_and_change(path)
    publishers.pop(path).close()

  def publish_again(path):
    with export.Publisher(path / "served", specs) as publisher:
      return publisher.publish(refs, 1)

  result = {"raw files": (nothing, write_raw)}
  for encoding in _ENCODINGS:
    result[encoding] = nothing, export_from(refs, encoding)
  result["int8, of a checkpoint"] = nothing, export_from(saved, "int8")
  result[f"delta of 1 in {_CHANGED_EVERY} rows, int8"] = (
      publish_and_change,
      publish_changes,
  )
  result["delta after a restart, int8"] = (
      publish_stop_and_change,
      publish_again,
  )
  return result


def take_turns(
    of_name: Mapping[str, tuple[Task, Task]],
    directory: pathlib.Path,
    turns: int,
) -> dict[str, tuple[float, float, int]]:
  """Name -> CPU and wall seconds of the fastest turn, and bytes of memory."""
  best, memory = {}, {}
  # The first turn compiles, the second one watches the memory.
  for turn in range(turns + 2):
    for name, (prepare, run) in of_name.items():
      path = directory / name
      path.mkdir()
      prepare(path)
      gc.collect()
      if turn == 1:
        # What was freed goes to the system, or it would be used again unseen.
        ctypes.CDLL(None).malloc_trim(0)
        with peak_memory.PeakMemory() as watched:
          run(path)
        memory[name] = watched.num_bytes
      else:
        begin, cpu = time.perf_counter(), time.process_time()
        run(path)
        spent = time.process_time() - cpu, time.perf_counter() - begin
        if turn > 1:
          best[name] = min(best.get(name, spent), spent)
      shutil.rmtree(path)
  return {name: (*best[name], memory[name]) for name in best}


def report(
    best: Mapping[str, tuple[float, float, int]], table_bytes: int
) -> str:
  """A table in Markdown."""
  lines = [
      "| contender | CPU s | wall s | GB of table per CPU s | of raw files |"
      " MiB beyond the table |",
      "|---|---|---|---|---|---|",
  ]
  raw, _, _ = best["raw files"]
  for name, (cpu, wall, memory) in best.items():
    lines.append(
        f"| {name} | {cpu:.2f} | {wall:.2f} | {table_bytes / cpu / 1e9:.2f} |"
        f" {cpu / raw:.2f} | {memory / 2**20:.0f} |"
    )
  return "\n".join(lines)


def main(argv: Any) -> None:
  del argv
  rows = _MEBIBYTES.value * 2**20 // (4 * _COLUMNS)
  refs, specs = make(rows)
  with tempfile.TemporaryDirectory(dir=_DIRECTORY.value) as directory:
    saved = pathlib.Path(directory, "saved")
    checkpoint.save(saved, refs, specs)
    best = take_turns(
        contenders(refs, specs, saved), pathlib.Path(directory), _TURNS.value
    )
  print(f"{_MEBIBYTES.value} MiB, fastest of {_TURNS.value} turns\n")
  print(report(best, rows * 4 * _COLUMNS))


if __name__ == "__main__":
  app.run(main)
