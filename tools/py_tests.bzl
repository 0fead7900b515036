# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Python tests of a folder that share a process."""

load("@python_env//:xla_flags.bzl", "QUICK_XLA_FLAGS")

# Most of the time of these tests is XLA's, which compiles thousands of programs
# that run once: it leaves out most of its optimizations, and its newer emitters
# of fused loops, which take a third of what is left. So compiled programs are
# not those of users, copies may stay, and some functions and roundings to 16
# bits are less exact: tests that look at programs or notice these are
# `as_users_compile`, or a plain py_test.
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": QUICK_XLA_FLAGS,
}

def quick_py_test(env = {}, **kwargs):
    """A py_test for whose programs XLA takes half of the time that users wait.

    Args:
      env: more variables of the environment.
      **kwargs: of py_test.
    """
    native.py_test(env = dict(QUICK, **env), **kwargs)

def py_tests(
        name,
        srcs,
        deps,
        alone = [],
        as_users_compile = [],
        shard_count = None,
        **kwargs):
    """A py_test that runs files in one process, as starting JAX takes seconds.

    `./bazelw test :name` and `//...` run them all. For each file there is also
    a target with its name that runs it alone: `./bazelw test :layout_test`.

    Args:
      name: of the test of the files that share a process.
      srcs: the files, `name_test.py`. Those that share a process set the same
        number of devices, and the like, of jax.config.
      deps: of all of them.
      alone: those of `srcs` that need a process of their own.
      as_users_compile: those of `srcs` that need XLA's default settings; each
        has a process of its own.
      shard_count: of the test of the files that share a process.
      **kwargs: of every py_test.
    """
    together = [src for src in srcs if src not in alone + as_users_compile]
    if together:
        native.py_test(
            name = name,
            srcs = together + ["//tools:run_test_files.py"],
            env = dict(QUICK, TEST_FILES = " ".join([
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
            env = {} if src in as_users_compile else QUICK,
            tags = ["manual"] if src in together else [],
            deps = deps,
            **kwargs
        )
