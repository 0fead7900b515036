# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""C++ tests of a folder, each a program of its own."""

def cc_tests(srcs, deps, **kwargs):
    """One cc_test for each source, named after the file without its folder.

    Args:
      srcs: the files, `folder/name_test.cc`.
      deps: of all of them; GoogleTest is added.
      **kwargs: of cc_test.
    """
    for src in srcs:
        native.cc_test(
            name = src.split("/")[-1][:-len(".cc")],
            srcs = [src],
            deps = deps + ["@system//:gtest_main"],
            **kwargs
        )
