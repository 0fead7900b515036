# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Python tests of extension modules, once more with --config=asan."""

load(":py_tests.bzl", "QUICK")

def asan_tests(tests):
    """Runs py_tests of this package with --config=asan too.

    Their modules are then built with ASan and UBSan. In other configurations
    there are no such tests.

    Args:
      tests: names of the py_tests. That of the new test ends with "_with_asan".
    """
    for test in tests:
        # --test_lang_filters goes by the kind of rule, and leaves py_tests out.
        native.sh_test(
            name = test + "_with_asan",
            srcs = ["//tools:with_asan.sh"],
            args = ["$(rootpath :{})".format(test)],
            data = [":" + test],
            env = QUICK,
            target_compatible_with = select({
                "//tools:asan": [],
                "//conditions:default": ["//tools:only_with_asan"],
            }),
        )
