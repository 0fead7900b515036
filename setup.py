# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What pyproject.toml cannot say. tools/build_wheel.py runs this file."""

import pathlib
import runpy

import setuptools

PACKAGE = pathlib.Path("jax_tpu_embedding/sparsecore")

if not any(PACKAGE.rglob("*.so")):
  raise SystemExit(
      "The extension modules of jax_tpu_embedding are built with Bazel, so "
      "there is no source distribution: run tools/local_build_wheel.sh in a "
      "checkout and install the wheel from dist/."
  )


class BinaryDistribution(setuptools.Distribution):
  """Has extension modules, although setuptools does not compile them."""

  def has_ext_modules(self) -> bool:
    return True


setuptools.setup(
    version=runpy.run_path(str(PACKAGE / "version.py"))["__version__"],
    distclass=BinaryDistribution,
)
