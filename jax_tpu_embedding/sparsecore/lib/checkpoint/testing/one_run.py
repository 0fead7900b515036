# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a child process of the tests does, and how they start it.

python one_run.py save_forever DIRECTORY
python one_run.py memory DIRECTORY NUM_DEVICES
python one_run.py memory_of_two DIRECTORY PROCESS PORT NUM_DEVICES
python one_run.py write_stacked DIRECTORY
python one_run.py convert_memory DIRECTORY
python one_run.py plain_orbax DIRECTORY
python one_run.py one_of_two DIRECTORY PROCESS PORT
python one_run.py fails_to_write DIRECTORY PROCESS PORT
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
from typing import Any

from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import peak_memory
import numpy as np

# Of the table whose memory is measured, and as much for its slot. By hand: 1024.
MEMORY_MEBIBYTES = int(os.environ.get("MEMORY_MEBIBYTES", "128"))
_COLUMNS = 64
_ROWS = MEMORY_MEBIBYTES * 2**20 // (4 * _COLUMNS)


def start(task: str, directory: Any, *args: Any) -> subprocess.Popen:
  """Starts this file in a process of its own; it prints a line of JSON."""
  environment = os.environ | {
      "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)
  }
  return subprocess.Popen(
      [sys.executable, __file__, task, str(directory), *map(str, args)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env=environment,
      text=True,
  )


def values_of_step(step: int) -> dict[str, dict[str | None, np.ndarray]]:
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top

  return any_tables.values(seed=step)


def _save_forever(directory: pathlib.Path) -> None:
  """Saves steps 0, 1, .. to each directory that a line of input names.

  Each in a process of its own, which somebody will kill: forked, since most of
  the time of a process is that of importing. It prints its number and the step
  as soon as that is there, and this one "killed" when it is.
  """
  del directory
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top

  for line in sys.stdin:
    if os.fork() == 0:
      for step in itertools.count():
        any_tables.save_rows(
            pathlib.Path(line.strip(), str(step)), values_of_step(step)
        )
        print(os.getpid(), step, flush=True)
    os.wait()
    print("killed", flush=True)


def _memory(directory: pathlib.Path, num_devices: int) -> None:
  """Prints the peaks of memory beyond the tables, in MiB."""
  import jax  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", num_devices)
  _print_peaks(directory, num_devices)


def _memory_of_two(
    directory: pathlib.Path, process: int, port: int, num_devices: int
) -> None:
  """The same in a process of so many devices, with another one."""
  import jax  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", num_devices)
  jax.distributed.initialize(f"localhost:{port}", 2, process)
  _print_peaks(directory, 2 * num_devices)


def _print_peaks(directory: pathlib.Path, num_devices: int) -> None:
  import jax  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top

  topology = any_tables.Topology(num_devices, 2, "auto")

  def model(rows):
    return any_tables.feature_specs(topology, (("items", rows, _COLUMNS),))

  def restore(name, specs):
    return checkpoint.restore(
        directory / name,
        specs,
        any_tables.sharding(topology),
        num_sc_per_device=2,
    )

  def num_bytes(variables):
    return sum(
        part.data.nbytes
        for array in jax.tree.leaves(variables)
        for part in array.addressable_shards
    )

  # Compilers and libraries take memory once; what is measured is per table.
  small = model(50000)
  checkpoint.save(
      directory / "small", any_tables.new_variables(topology, small), small
  )
  restore("small", small)
  specs = model(_ROWS)
  arrays = any_tables.new_variables(topology, specs)
  variables = jax.tree.map(jax.new_ref, arrays)
  for ref in jax.tree.leaves(variables):
    jax.block_until_ready(ref[...])
  del arrays
  gc.collect()
  result = {}
  with peak_memory.PeakMemory() as peak:
    checkpoint.save(directory / "large", variables, specs)
  result["save"] = peak.num_bytes / 2**20
  del variables
  gc.collect()
  restored = []
  with peak_memory.PeakMemory() as peak:
    restored.append(restore("large", specs))
    jax.block_until_ready(restored)
  result["restore"] = (peak.num_bytes - num_bytes(restored)) / 2**20
  print(json.dumps(result), flush=True)


def _write_stacked(directory: pathlib.Path) -> None:
  """Writes checkpoints of 0.1, a small one and the one that is measured."""
  import jax  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", 16)
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import stacked_checkpoints  # pylint: disable=g-import-not-at-top

  # A device has 8 MiB of the table, which is a chunk of the file. Packed and
  # unpacked, it is in memory some four times.
  topology = any_tables.Topology(16, 2, "auto")
  for name, rows in (("small", 50000), ("large", _ROWS)):
    tables = (("items", rows, _COLUMNS),)
    stacked_checkpoints.save(
        directory / name, topology, any_tables.values(tables), tables=tables
    )


def _convert_memory(directory: pathlib.Path) -> None:
  """Prints the peaks of memory while they are converted, there and back."""
  from jax_tpu_embedding.sparsecore.lib.checkpoint import convert  # pylint: disable=g-import-not-at-top

  def to_logical(name):
    convert.convert(directory / name / "3", directory / f"{name} logical")

  def to_stacked(name):
    convert.convert(
        directory / f"{name} logical",
        directory / f"{name} stacked",
        layout="stacked",
        num_devices=4,
        num_sc_per_device=2,
    )

  result = {}
  for name in ("small", "large"):
    for task in (to_logical, to_stacked):
      gc.collect()
      with peak_memory.PeakMemory() as peak:
        task(name)
      result[task.__name__] = peak.num_bytes / 2**20
  print(json.dumps(result))


def _one_of_two(directory: pathlib.Path, process: int, port: int) -> None:
  """Saves and restores with another process; prints what is wrong."""
  import jax  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(f"localhost:{port}", 2, process)
  from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top

  wrong = []
  for stacking in ("alone", "rotated"):
    topology = any_tables.Topology(4, 2, stacking)
    specs = any_tables.feature_specs(topology)
    values = any_tables.values()
    fresh = any_tables.new_variables(topology, specs)
    expected = any_tables.fill_shapes(fresh, specs, topology, values)

    def on_devices(rows, old):
      return jax.make_array_from_callback(
          old.shape, old.sharding, lambda index, rows=rows: rows[index]
      )

    variables = jax.tree.map(on_devices, expected, fresh)
    any_tables.save(directory / stacking, variables, specs)
    restored = checkpoint.restore(
        directory / stacking,
        specs,
        any_tables.sharding(topology),
        num_sc_per_device=2,
    )
    for path, array in jax.tree.leaves_with_path(restored):
      rows = jax.tree.leaves(
          [x for p, x in jax.tree.leaves_with_path(expected) if p == path]
      )[0]
      for part in array.addressable_shards:
        if not np.array_equal(np.asarray(part.data), rows[part.index]):
          wrong.append(f"{stacking} {jax.tree_util.keystr(path)}")
  print(json.dumps(wrong))


def _fails_to_write(directory: pathlib.Path, process: int, port: int) -> None:
  """Saves with another process, of which the second has no disk.

  Prints the error.
  """
  import jax  # pylint: disable=g-import-not-at-top

  jax.config.update("jax_num_cpu_devices", 1)
  jax.distributed.initialize(f"localhost:{port}", 2, process)
  from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables  # pylint: disable=g-import-not-at-top

  topology = any_tables.Topology(2, 1, "alone")
  specs = any_tables.feature_specs(topology)
  variables = any_tables.new_variables(topology, specs)
  if process == 1:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
  error = None
  try:
    any_tables.save(directory / "saved", variables, specs)
  except checkpoint.CheckpointError as e:
    error = str(e)
  print(json.dumps(error), flush=True)


def _plain_orbax(directory: pathlib.Path) -> None:
  """Reads with orbax v0 and v1, without this package."""
  sys.modules["jax_tpu_embedding"] = None
  import orbax.checkpoint as ocp_v0  # pylint: disable=g-import-not-at-top
  from orbax.checkpoint import v1 as ocp  # pylint: disable=g-import-not-at-top

  found = [
      ocp_v0.PyTreeCheckpointer().restore(directory / "tables"),
      ocp.load_checkpointables(directory)["tables"],
  ]
  for i, tree in enumerate(found):
    for table, variables in tree.items():
      flat = {"table": variables["table"], **variables["slot"]}
      for name, array in flat.items():
        np.save(directory.parent / f"{i} {table} {name}.npy", array)
  print(json.dumps([sorted(tree) for tree in found]))


if __name__ == "__main__":
  _, _task, _directory, *_args = sys.argv
  _tasks = {
      "save_forever": _save_forever,
      "memory": _memory,
      "memory_of_two": _memory_of_two,
      "write_stacked": _write_stacked,
      "convert_memory": _convert_memory,
      "plain_orbax": _plain_orbax,
      "one_of_two": _one_of_two,
      "fails_to_write": _fails_to_write,
  }
  _tasks[_task](pathlib.Path(_directory), *map(int, _args))
