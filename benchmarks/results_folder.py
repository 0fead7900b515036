# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where a benchmark writes what it found."""

import os
import pathlib


def make(path: str | None) -> pathlib.Path | None:
  """The folder of --output_dir, which is made: before all that is measured.

  Args:
    path: absolute, or from the workspace, where `bazel run` does not start.
      None or empty: results are printed alone.
  """
  if not path:
    return None
  workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY", ".")
  folder = pathlib.Path(workspace, path)
  folder.mkdir(parents=True, exist_ok=True)
  return folder
