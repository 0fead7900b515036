# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""CPU seconds of saving and restoring tables, beside raw files and orbax.

    bazel run //benchmarks/checkpoint -- --directory=/dev/shm

One table and its Adagrad accumulator on one device x two SparseCores. Contenders
take turns, since other programs run on the machine; CPU seconds (user and
system, all threads) of the fastest turn are what to compare. On a disk whose
speed is known, wall time is, too: all write what the disk then has.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
from orbax.checkpoint import v1 as ocp

_DIRECTORY = flags.DEFINE_string(
    "directory", None, "Where files are written; default: a temporary one."
)
_MEBIBYTES = flags.DEFINE_integer("mebibytes", 256, "Of the table.")
_TURNS = flags.DEFINE_integer("turns", 3, "Of each contender.")
_COLD = flags.DEFINE_bool(
    "cold", False, "Read from the disk what the page cache has of files."
)

_COLUMNS = 64
NUM_SC = 2


def _specs(rows: int) -> list[embedding_spec.FeatureSpec]:
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=rows,
      embedding_dim=_COLUMNS,
      optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
  )
  feature = embedding_spec.FeatureSpec(
      name="item",
      table_spec=table,
      input_shape=(64, 1),
      output_shape=(64, _COLUMNS),
  )
  embedding.prepare_feature_specs_for_training([feature], 1, NUM_SC)
  return [feature]


def contenders(
    refs: Any, specs: Any, sharding: jax.sharding.NamedSharding
) -> dict[str, tuple[Any, Any]]:
  """Name -> what writes to a directory, and what reads it.

  Args:
    refs: the variables, jax.Refs.
    specs: what they were made for.
    sharding: of them.

  Raw files are read into memory that is there, and so is what restore_into
  writes to; restore and orbax also allocate what they read into.
  """
  arrays = [np.array(ref[...]) for ref in jax.tree.leaves(refs)]
  into = [np.empty_like(array) for array in arrays]
  shapes = jax.tree.map(
      lambda ref: jax.ShapeDtypeStruct(ref.shape, ref.dtype, sharding=sharding),
      refs,
  )
  targets = []

  def write_raw(path):
    path.mkdir()
    for i, array in enumerate(arrays):
      with open(path / str(i), "wb") as file:
        array.tofile(file)
        os.fsync(file.fileno())

  def read_raw(path):
    for i, array in enumerate(into):
      with open(path / str(i), "rb") as file:
        file.readinto(array)
    return into

  def save(path):
    checkpoint.save(path, refs, specs)

  def restore_into(path):
    if not targets:
      targets.append(jax.tree.map(lambda ref: jax.new_ref(ref[...]), refs))
    restored = checkpoint.restore_into(targets[0], path, specs)
    for ref in jax.tree.leaves(restored):
      ref[:1].block_until_ready()
    return restored

  def restore(path):
    return jax.block_until_ready(
        checkpoint.restore(path, specs, sharding, num_sc_per_device=NUM_SC)
    )

  def save_in_background(path):
    # What a training step waits for; the rest counts for nobody.
    pending.append(
        checkpoint.save_async(path, refs, specs, host_buffer_bytes=None)
    )

  def wait(path):
    del path
    pending.pop().wait()

  def save_orbax(path):
    ocp.save(path, jax.tree.map(lambda ref: ref[...], refs))

  def load_orbax(path):
    return jax.block_until_ready(ocp.load(path, shapes))

  pending = []
  return {
      "raw files": (write_raw, read_raw),
      "checkpoint, in place": (save, restore_into),
      "checkpoint, new": (save, restore),
      "save_async, then wait": (save_in_background, wait),
      "orbax": (save_orbax, load_orbax),
  }


def take_turns(
    of_name: Mapping[str, tuple[Any, Any]],
    directory: pathlib.Path,
    turns: int,
    cold: bool = False,
) -> dict[tuple[str, str], tuple[float, float]]:
  """(name, "write" or "read") -> fewest CPU and wall seconds of the turns.

  Args:
    of_name: the contenders.
    directory: where they write, one after the other.
    turns: of each.
    cold: whether what they read has to come from the disk.
  """
  best = {}
  # The first turn compiles.
  for turn in range(turns + 1):
    for name, tasks in of_name.items():
      path = directory / name
      for task, run in zip(("write", "read"), tasks):
        if cold and task == "read":
          _drop_from_page_cache(path)
        begin, cpu = time.perf_counter(), time.process_time()
        run(path)
        spent = time.process_time() - cpu, time.perf_counter() - begin
        if turn:
          before = best.get((name, task), spent)
          best[name, task] = tuple(map(min, before, spent))
      shutil.rmtree(path)
      # What was deleted is not to keep the disk busy in the next one's turn.
      _sync(directory)
      gc.collect()
  return best


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  os.fsync(descriptor)
  os.close(descriptor)


def _drop_from_page_cache(directory: pathlib.Path) -> None:
  """Of files that are on the disk, which those of all contenders are."""
  for path in directory.rglob("*"):
    if path.is_file():
      descriptor = os.open(path, os.O_RDONLY)
      os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
      os.close(descriptor)


def report(
    best: Mapping[tuple[str, str], tuple[float, float]], gibibytes: float
) -> str:
  """A table in Markdown, with ratios to raw files."""
  lines = [
      "| contender | task | CPU s/GiB | wall s/GiB | CPU, wall to raw files |",
      "|---|---|---|---|---|",
  ]
  for (name, task), (cpu, wall) in best.items():
    raw_cpu, raw_wall = best["raw files", task]
    lines.append(
        f"| {name} | {task} | {cpu / gibibytes:.2f} | {wall / gibibytes:.2f} |"
        f" {cpu / raw_cpu:.2f}, {wall / raw_wall:.2f} |"
    )
  return "\n".join(lines)


def make(rows: int) -> tuple[Any, Any, jax.sharding.NamedSharding]:
  """Variables in jax.Refs, their specs and sharding."""
  specs = _specs(rows)
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  sharding = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec("x", None)
  )
  variables = embedding.init_embedding_variables(
      jax.random.key(0),
      embedding.get_table_specs(specs),
      sharding,
      NUM_SC,
      bypass_mesh_check=True,
  )
  return jax.tree.map(jax.new_ref, variables), specs, sharding


def main(argv: Any) -> None:
  del argv
  refs, specs, sharding = make(_MEBIBYTES.value * 2**20 // (4 * _COLUMNS))
  with tempfile.TemporaryDirectory(dir=_DIRECTORY.value) as directory:
    best = take_turns(
        contenders(refs, specs, sharding),
        pathlib.Path(directory),
        _TURNS.value,
        _COLD.value,
    )
  size = sum(4 * ref.size for ref in jax.tree.leaves(refs)) / 2**30
  print(f"{size:.2f} GiB, fastest of {_TURNS.value} turns\n")
  print(report(best, size))


if __name__ == "__main__":
  app.run(main)
