# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the tests of several files in one process: the main of py_tests.bzl.

Starting Python and JAX takes seconds, more than the tests of most files. Cases
are selected as unittest does it, after the name of the file:

    ./bazelw test :tests --test_filter=layout_test.LayoutTest

TEST_FILES has the files, as paths from the root of the workspace.

What a file sets of JAX when it is imported holds for all of them, so files that
set other numbers of devices belong into another process; mixing them is an
error. Source: the load_tests protocol of unittest.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import types
import unittest

from absl.testing import absltest

# What tests set of jax.config for the whole process, and what it is before.
_SETTINGS = {
    "jax_num_cpu_devices": -1,
    "jax_disable_most_optimizations": (
        os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1"
    ),
    "jax_compilation_cache_dir": os.environ.get("JAX_COMPILATION_CACHE_DIR"),
}


_modules: list[types.ModuleType] = []


def load_tests(
    loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None
) -> unittest.TestSuite:
  """Returns the tests of all files; unittest calls it if no case is named."""
  del tests, pattern
  return unittest.TestSuite(map(loader.loadTestsFromModule, _modules))


def _is_test_case(value: object) -> bool:
  return isinstance(value, type) and issubclass(value, unittest.TestCase)


def _import_files(paths: list[str]) -> list[types.ModuleType]:
  """Imports the files, and checks them and that their settings of JAX agree."""
  modules = []
  expected = None
  for path in paths:
    jax = sys.modules.get("jax")
    if jax:
      for name, default in _SETTINGS.items():
        jax.config.update(name, default)
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    if not any(map(_is_test_case, vars(module).values())):
      raise ValueError(f"{path} has no tests.")
    settings = _settings()
    if expected is None:
      expected = settings
    elif settings != expected:
      raise ValueError(
          f"{path} sets {settings}, {paths[0]} {expected}: they cannot share a"
          " process. Name one of them in `alone` of py_tests."
      )
    modules.append(module)
  return modules


def _settings() -> dict[str, object]:
  """The settings now: the defaults where JAX is not even imported."""
  jax = sys.modules.get("jax")
  return (
      {name: jax.config.values[name] for name in _SETTINGS}
      if jax
      else _SETTINGS
  )


if __name__ == "__main__":
  _modules += _import_files(os.environ["TEST_FILES"].split())
  # Tracing makes many objects, and the collector would look through those of JAX
  # and of all files again and again: a tenth of the time of the tests.
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)
  # Where unittest looks up the names that are on the command line.
  globals().update({m.__name__.split(".")[-1]: m for m in _modules})
  absltest.main()
