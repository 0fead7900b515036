# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where a benchmark writes what it found."""

import os
import pathlib

from absl import app


def make(
    path: str | None, *, part_by: str | None = None
) -> pathlib.Path | None:
  """The folder of --output_dir, which is made: before all that is measured.

  A part of a run does not take the place of a whole one. They cannot share a
  file either: its head says of what machine, load and versions all its numbers
  are.

  Args:
    path: absolute, or from the workspace, where `bazel run` does not start.
      None or empty: results are printed alone.
    part_by: the flags by which the run is a part, if it is.

  Raises:
    app.UsageError: if it is a part, and the folder has results.
  """
  if not path:
    return None
  workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")
  folder = pathlib.Path(workspace, path)
  folder.mkdir(parents=True, exist_ok=True)
  if part_by and (folder / "RESULTS.md").exists():
    raise app.UsageError(
        f"{folder / 'RESULTS.md'} has the results of another run, and {part_by}"
        " measures a part. Write it to another --output_dir, or remove the file"
        " first."
    )
  return folder
