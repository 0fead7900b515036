# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""CPU seconds of saving and restoring tables, beside raw files and orbax.

    bazel run //benchmarks/checkpoint -- --directory=/dev/shm

One table and its Adagrad accumulator on one device x two SparseCores. Contenders
take turns, since other programs run on the machine; CPU seconds (user and
system, all threads) of the fastest turn are what to compare.
"""

from __future__ import annotations

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

_COLUMNS = 64
_NUM_SC = 2


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
  embedding.prepare_feature_specs_for_training([feature], 1, _NUM_SC)
  return [feature]


def main(argv: Any) -> None:
  del argv
  rows = _MEBIBYTES.value * 2**20 // (4 * _COLUMNS)
  specs = _specs(rows)
  mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
  sharding = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec("x", None)
  )
  variables = embedding.init_embedding_variables(
      jax.random.key(0), embedding.get_table_specs(specs), sharding, _NUM_SC
  )
  refs = jax.tree.map(jax.new_ref, variables)
  arrays = [np.asarray(array) for array in jax.tree.leaves(variables)]
  directory = pathlib.Path(tempfile.mkdtemp(dir=_DIRECTORY.value))
  into = [np.empty_like(array) for array in arrays]

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

  def save_orbax(path):
    ocp.save(path, jax.tree.map(lambda ref: ref[...], refs))

  def load_orbax(path):
    jax.block_until_ready(ocp.load(path, variables))

  def restore(path):
    jax.block_until_ready(
        checkpoint.restore(path, specs, sharding, num_sc_per_device=_NUM_SC)
    )

  contenders = {
      "raw files": (write_raw, read_raw),
      "checkpoint": (
          lambda path: checkpoint.save(path, refs, specs),
          restore,
      ),
      "orbax": (save_orbax, load_orbax),
  }
  best = {}
  try:
    for _ in range(_TURNS.value):
      for name, tasks in contenders.items():
        path = directory / name
        for task, run in zip(("write", "read"), tasks):
          begin, cpu = time.perf_counter(), time.process_time()
          run(path)
          spent = time.process_time() - cpu, time.perf_counter() - begin
          best[name, task] = min(best.get((name, task), spent), spent)
        shutil.rmtree(path)
        gc.collect()
  finally:
    shutil.rmtree(directory)
  size = sum(array.nbytes for array in arrays) / 2**30
  print(f"{size:.2f} GiB, fastest of {_TURNS.value} turns")
  print("contender    task   CPU s/GiB  wall s/GiB  CPU ratio to raw files")
  for (name, task), (cpu, wall) in best.items():
    raw, _ = best["raw files", task]
    print(
        f"{name:12} {task:6} {cpu / size:9.2f}  {wall / size:10.2f}"
        f"  {cpu / raw:6.2f}"
    )


if __name__ == "__main__":
  app.run(main)
