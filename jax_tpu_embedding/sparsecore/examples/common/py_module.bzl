# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A Python module and the test beside it, as most of the examples have them."""

load("//tools:py_tests.bzl", "quick_py_test")

def py_module(name, deps = [], data = [], test_deps = []):
    """The library `name` of name.py, and the test name_test of name_test.py.

    Args:
      name: of the module.
      deps: what the module imports.
      data: files that the module reads.
      test_deps: what the test imports beside the module.
    """
    native.py_library(
        name = name,
        srcs = [name + ".py"],
        data = data,
        deps = deps,
    )
    quick_py_test(
        name = name + "_test",
        srcs = [name + "_test.py"],
        deps = [":" + name] + test_deps,
    )
