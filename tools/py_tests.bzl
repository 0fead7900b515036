# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Python tests of a folder, each a process of its own."""

def py_tests(srcs, deps, **kwargs):
    """One py_test for each source, named after the file.

    Args:
      srcs: the files, `name_test.py`.
      deps: of all of them.
      **kwargs: of py_test.
    """
    for src in srcs:
        native.py_test(
            name = src[:-len(".py")],
            srcs = [src],
            deps = deps,
            **kwargs
        )
