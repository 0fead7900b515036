# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""C++ tests of a folder, each a program of its own."""

def cc_tests(srcs, deps, single_threaded = [], tags = [], **kwargs):
    """One cc_test for each source, named after the file without its folder.

    Args:
      srcs: the files, `folder/name_test.cc`.
      deps: of all of them; GoogleTest is added.
      single_threaded: those that start no threads, in which TSan has nothing to
        find: it does not run them.
      tags: of all of them.
      **kwargs: of cc_test.
    """
    for src in single_threaded:
        if src not in srcs:
            fail("{} is none of the tests: {}".format(src, srcs))
    for src in srcs:
        native.cc_test(
            name = src.split("/")[-1][:-len(".cc")],
            srcs = [src],
            tags = tags + (["single_threaded"] if src in single_threaded else []),
            deps = deps + ["@system//:gtest_main"],
            **kwargs
        )
