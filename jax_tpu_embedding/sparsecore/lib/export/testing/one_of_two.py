# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One of two processes that export and publish together.

python one_of_two.py TASK DIRECTORY PROCESS PORT

It prints a line of JSON: what went wrong, or what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _agreement
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _table_files
from jax_tpu_embedding.sparsecore.lib.export import export
import numpy as np

STACKINGS = ("alone", "rotated", "mixed")
# 12 blocks of "items", 88 rows each, 2 of "users" and one of "hours".
BLOCK_BYTES = 4096


def start(task: str, directory: Any, process: int, port: int):
  """Starts this file in a process of its own."""
  return subprocess.Popen(
      [sys.executable, __file__, task, directory, str(process), str(port)],
      stdout=subprocess.PIPE,
      env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
      text=True,
  )


def values_of_step(step: int) -> dict[str, dict[str | None, np.ndarray]]:
  """Step 1 changes rows of both processes in "items" and of one in "users"."""
  values = any_tables.values()
  if step > 0:
    values["items"][None][[3, 527, 528, 1002]] += 1
    values["users"][None][100] += 1
  if step > 1:
    values["items"][None][600] += step
  return values


def variables_of(topology: Any, specs: Any, values: Any) -> Any:
  fresh = any_tables.new_variables(topology, specs)
  filled = any_tables.fill_shapes(fresh, specs, topology, values)

  def on_devices(rows, old):
    return jax.make_array_from_callback(
        old.shape, old.sharding, lambda index: rows[index]
    )

  return jax.tree.map(on_devices, filled, fresh)


def _error_of(function: Callable[[], Any]) -> str | None:
  try:
    function()
  except Exception as error:  # pylint: disable=broad-exception-caught
    return f"{type(error).__name__}: {error}"
  return None


def _export(directory: pathlib.Path) -> Any:
  """Exports tables from all stacks; what each version wrote."""
  written = {}
  for stacking in STACKINGS:
    topology = any_tables.Topology(4, 2, stacking)
    specs = any_tables.feature_specs(topology)
    variables = variables_of(topology, specs, values_of_step(0))
    if stacking == "rotated":
      variables = jax.tree.map(jax.new_ref, variables)
    for encoding, file_format in (("int8", "safetensors"), ("float32", "npy")):
      version = export.export_tables(
          directory / f"{stacking} {file_format}",
          variables,
          specs,
          encoding=encoding,
          file_format=file_format,
      )
      written[f"{stacking} {file_format}"] = {
          name: table.written_rows for name, table in version.tables.items()
      }
  return written


def _publish(directory: pathlib.Path, process: int) -> Any:
  """Publishes steps 0 to 5, with all that goes wrong between; the errors."""
  topology = any_tables.Topology(4, 2, "auto")
  specs = any_tables.feature_specs(topology)
  served = directory / "served"
  result = {}

  def variables(step, **wrong):
    values = values_of_step(step)
    for name, rows in wrong.items():
      values[name][None][rows, 3] = np.nan
    return variables_of(topology, specs, values)

  def publish(step, publisher, **wrong):
    version = publisher.publish(variables(step, **wrong), step)
    return version.kind, {n: t.written_rows for n, t in version.tables.items()}

  with export.Publisher(served, specs) as publisher:
    result["full"] = publish(0, publisher)
    result["delta"] = publish(1, publisher)
    result["NaN"] = _error_of(lambda: publish(2, publisher, items=[900, 5]))
    result["NaN of one"] = _error_of(lambda: publish(2, publisher, items=5))
    result["steps"] = _error_of(lambda: publish(2 + process, publisher))
    with _small_files() if process == 1 else contextlib.nullcontext():
      result["disk"] = _error_of(lambda: publish(2, publisher))
    result["after errors"] = publish(2, publisher)
    elsewhere = mock.patch.object(pathlib.Path, "is_dir", lambda _: False)
    with elsewhere if process == 1 else contextlib.nullcontext():
      result["not shared"] = _error_of(lambda: publish(3, publisher))
    with _lost_files() if process == 1 else contextlib.nullcontext():
      result["lost"] = _error_of(lambda: publish(3, publisher))
  with export.Publisher(served, specs) as publisher:
    result["restarted"] = publish(3, publisher)
    result["again"] = publish(4, publisher)
    result["locked"] = _error_of(lambda: export.Publisher(served, specs))
    # The processes have each other's rows.
    devices = jax.devices()[::-1]
    with mock.patch.object(jax, "devices", lambda: devices):
      result["moved"] = publish(5, publisher)
    first_key = f"{publisher._agreement._name}/0/0"  # pylint: disable=protected-access
    result["forgotten"] = _error_of(lambda: jax_private.ask_job(first_key, 0.1))
  result["late"] = _error_of(lambda: _stage(1.5 * process))
  encoding = "int7" if process == 1 else "int8"
  result["arguments"] = _error_of(
      lambda: export.export_tables(
          directory / "other", variables(0), specs, encoding=encoding
      )
  )
  local = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  of_one = jax.tree.map(
      lambda x: jax.device_put(np.zeros(x.shape, x.dtype), local), variables(0)
  )
  result["one process"] = _error_of(
      lambda: export.export_tables(directory / "other", of_one, specs)
  )
  return result


def _stage(seconds: float) -> None:
  with mock.patch.object(_agreement, "_TIMEOUT_SECONDS", 1):
    with _agreement.Agreement("test", [OSError]).stage():
      time.sleep(seconds)


@contextlib.contextmanager
def _small_files():
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def _lost_files():
  """What this process writes is not there afterwards."""

  def write(*args):
    parts = original(*args)
    (directory,) = args[-1].args  # of what makes writers
    for part in parts.values():
      for file in part.files:
        os.remove(directory / file["name"])
    return parts

  original = _parts.write
  with mock.patch.object(_parts, "write", write):
    yield


def _write(directory: pathlib.Path, process: int) -> Any:
  return _export(directory) | _publish(directory, process)


def _die(directory: pathlib.Path, process: int) -> Any:
  """Publishes step 0; at step 1 the second process dies while it writes."""
  topology = any_tables.Topology(4, 2, "auto")
  specs = any_tables.feature_specs(topology)
  publisher = export.Publisher(directory / "served", specs, full_every=1)
  publisher.publish(variables_of(topology, specs, values_of_step(0)), 0)
  if process == 1:
    calls = []
    original = _table_files.SafetensorsFile.write

    def write(*args):
      calls.append(1)
      if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
      original(*args)

    _table_files.SafetensorsFile.write = write
  return _error_of(
      lambda: publisher.publish(
          variables_of(topology, specs, values_of_step(1)), 1
      )
  )


def main() -> None:
  _, task, directory, process, port = sys.argv
  jax.config.update("jax_num_cpu_devices", 2)
  jax.distributed.initialize(f"localhost:{port}", 2, int(process))
  tasks = {"write": _write, "die": _die}
  with mock.patch.object(_row_blocks, "BLOCK_BYTES", BLOCK_BYTES):
    result = tasks[task](pathlib.Path(directory), int(process))
  print(json.dumps(result), flush=True)
  if task == "die":
    os._exit(0)  # JAX would wait for the other one.


if __name__ == "__main__":
  main()
