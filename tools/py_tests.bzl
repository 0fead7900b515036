# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Python tests of a folder that share a process."""

# Most of the time of these tests is XLA's, which compiles thousands of small
# programs. Its newer emitters of fused loops take a third of that time; without
# them the loops are the same, made by the older ones.
_ENV = {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"}

def py_tests(name, srcs, deps, alone = [], shard_count = None, **kwargs):
    """A py_test that runs files in one process, as starting JAX takes seconds.

    `./bazelw test :name` and `//...` run them all. For each file there is also
    a target with its name that runs it alone: `./bazelw test :layout_test`.

    Args:
      name: of the test of the files that share a process.
      srcs: the files, `name_test.py`. Those that share a process set the same
        number of devices, and the like, of jax.config.
      deps: of all of them.
      alone: those of `srcs` that need a process of their own.
      shard_count: of the test of the files that share a process.
      **kwargs: of every py_test.
    """
    together = [src for src in srcs if src not in alone]
    if together:
        native.py_test(
            name = name,
            srcs = together + ["//tools:run_test_files.py"],
            env = dict(_ENV, TEST_FILES = " ".join([
                native.package_name() + "/" + src
                for src in together
            ])),
            main = "//tools:run_test_files.py",
            shard_count = shard_count,
            deps = deps,
            **kwargs
        )
    for src in srcs:
        native.py_test(
            name = src[:-len(".py")],
            srcs = [src],
            env = {} if src in alone else _ENV,
            tags = [] if src in alone else ["manual"],
            deps = deps,
            **kwargs
        )
