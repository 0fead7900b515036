# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An earlier version of the repository, measured beside this one."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib

from absl import app
from absl import flags

from benchmarks import worker_process

_BEFORE = flags.DEFINE_string(
    "before",
    None,
    "An earlier version, measured too: the runfiles of a benchmark of it, in"
    " bazel-bin of its workspace; the folder that has `benchmarks` and"
    " `jax_tpu_embedding`.",
)


def root(folder: str = "jax_tpu_embedding") -> pathlib.Path | None:
  """Where the version is that --before names; None without the flag.

  Args:
    folder: that it must have.

  Raises:
    app.UsageError: it does not.
  """
  if not _BEFORE.value:
    return None
  found = pathlib.Path(_BEFORE.value).absolute()
  if not (found / folder).is_dir():
    raise app.UsageError(
        f"--before={_BEFORE.value} has no {folder}. Build the benchmark there,"
        " and name the folder in its runfiles."
    )
  return found


def roots(this_version: pathlib.Path) -> dict[str, pathlib.Path]:
  """The folders of the two versions, "ours" and "before".

  Args:
    this_version: the folder that has `jax_tpu_embedding`.

  Raises:
    app.UsageError: --before names none.
  """
  before = root()
  if before is None:
    raise app.UsageError("--before names the earlier version.")
  return {"ours": this_version, "before": before}


def start(
    worker: pathlib.Path,
    version: pathlib.Path,
    environment: Mapping[str, str] | None = None,
) -> worker_process.WorkerProcess:
  """A process of this version's worker on the package of another version.

  Args:
    worker: the file of a module with the class `Worker`, which uses what the
      versions have in common.
    version: the folder that has the package.
    environment: variables to set for it.
  """
  folders = [*worker_process.python_path_with(version), str(worker.parent)]
  return worker_process.WorkerProcess(
      worker.stem,
      environment={
          "PYTHONPATH": os.pathsep.join(folders),
          **(environment or {}),
      },
      root=version,
  )
