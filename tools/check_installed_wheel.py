# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks an installed wheel; tools/wheel_test.sh runs it in a bare environment.

    python check_installed_wheel.py MODULES

MODULES is a file with the path of every module that is to be there, one a line,
and that of ffi_cuda.so if programs for GPUs are to call it.
Stops at the first thing that is wrong, with a line that says what.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import jax
import jax.export
import jax_tpu_embedding.sparsecore as sc
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
import numpy as np

# <environment>/lib/python3.11/site-packages/jax_tpu_embedding/sparsecore
PACKAGE = pathlib.Path(sc.__file__).parent
SITE_PACKAGES = PACKAGE.parent.parent


def check(claim: bool, message: str) -> None:
  if not claim:
    raise SystemExit(f"Wheel: {message}")


def check_location() -> None:
  environment = pathlib.Path(sys.prefix)
  check(
      environment in PACKAGE.parents,
      f"the package comes from {PACKAGE}, expected it under {environment}.",
  )


def check_version() -> None:
  """The metadata's version is the package's, but for the dot of a suffix."""
  metadata = importlib.metadata.version("jax_tpu_embedding")
  check(
      metadata.replace(".dev", "dev") == sc.__version__,
      f"the metadata says version {metadata}, the package {sc.__version__}.",
  )


def check_description() -> None:
  """A package index shows the description, and has none of README's files."""
  text = importlib.metadata.metadata("jax_tpu_embedding")["Description"]
  check(len(text) > 1000, f"expected README as the description, got {text!r}.")
  relative = re.findall(r"\]\((?!\w+:|#)([^)]*)\)", text)
  check(
      not relative,
      f"the description links to files, where there are none: {relative}.",
  )


def check_modules(paths: list[str]) -> None:
  missing = [path for path in paths if not (SITE_PACKAGES / path).exists()]
  check(bool(paths), "expected the names of its modules, got none.")
  check(
      not missing,
      f"these modules are missing: {', '.join(missing)}. Make "
      "//jax_tpu_embedding/sparsecore depend on them.",
  )


def check_extension_modules() -> None:
  """Extension modules find what they need, which is no protobuf."""
  modules = list(PACKAGE.rglob("*.so"))
  check(bool(modules), "there is no extension module.")
  for module in modules:
    needed = subprocess.run(
        ["ldd", module], capture_output=True, text=True, check=True
    ).stdout
    check("not found" not in needed, f"{module} lacks a library:\n{needed}")
    check("libpython" not in needed, f"{module} links libpython:\n{needed}")
    check("libprotobuf" not in needed, f"{module} links protobuf:\n{needed}")
    check("libcuda" not in needed, f"{module} links CUDA:\n{needed}")


def check_program_for_gpus() -> None:
  """A lookup can be exported for GPUs, with our calls, without any GPU."""
  coo = [np.zeros(8, np.int32)] * 3 + [np.zeros(8, np.float32), np.int32(1)]

  @jax.jit
  def look_up(table):
    return lookup.lookup_p.bind(
        *coo,
        table,
        device_batch_size=8,
        max_ids_per_partition=8,
        max_unique_ids_per_partition=8,
    )

  calls = ("jte_group_by_sample_cuda", "jte_pool_samples_cuda")
  exported = jax.export.export(
      look_up,
      platforms=("cuda",),
      disabled_checks=[
          jax.export.DisabledSafetyCheck.custom_call(call) for call in calls
      ],
  )(jax.ShapeDtypeStruct((16, 8), np.float32))
  loaded = jax.export.deserialize(exported.serialize())
  for call in calls:
    check(
        f"@{call}(" in loaded.mlir_module(),
        f"a lookup for GPUs does not call {call}.",
    )


def main(argv: list[str]) -> None:
  if len(argv) != 2 or argv[1].startswith("-"):
    raise SystemExit(__doc__)
  check_location()
  check_version()
  check_description()
  modules = pathlib.Path(argv[1]).read_text().splitlines()
  check_modules(modules)
  check_extension_modules()
  if any(path.endswith("/ffi_cuda.so") for path in modules):
    check_program_for_gpus()
  else:
    print(
        "Programs for GPUs are not checked: the build has no kernels for them."
    )
  print(f"jax_tpu_embedding {sc.__version__} in {PACKAGE}: complete")


if __name__ == "__main__":
  main(sys.argv)
