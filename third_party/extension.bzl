# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The repositories for MODULE.bazel. Bazel 4 cannot load this file."""

load(":repositories.bzl", "repositories")

def _dependencies_impl(_ctx):
    repositories()

dependencies = module_extension(
    implementation = _dependencies_impl,
    # Its rules look at this machine: which Python, which packages.
    os_dependent = True,
    arch_dependent = True,
)
