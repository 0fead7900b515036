# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is built upon: system libraries and locked Python packages.

WORKSPACE (Bazel 4) and extension.bzl (Bazel 7, for MODULE.bazel) call this.
"""

load("//third_party/cuda:cuda_compiler.bzl", "cuda_compiler")
load("//third_party/py:packages_for_tests.bzl", "packages_for_tests")
load("//third_party/py:python_environment.bzl", "python_environment")
load("//third_party/system:system.bzl", "system_libraries")

# Keep in step with requires-python of pyproject.toml and refresh_locks.sh.
_PYTHON_VERSIONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]

def repositories():
    """Declares the repositories; none is fetched before it is used."""

    # C and C++ libraries that the system's package manager installs.
    system_libraries(
        name = "system",
        build_file = "//third_party/system:system.BUILD",
    )

    # Python packages: a virtual environment with the locked versions.
    python_environment(
        name = "python_env",
        locks = {
            version: "//third_party/py:requirements_lock_{}.txt".format(
                version.replace(".", "_"),
            )
            for version in _PYTHON_VERSIONS
        },
        xla_ffi_lock = "//third_party/py:xla_ffi_lock.txt",
    )

    # What the tests compile for GPU with: JAX's CUDA plugin, which goes with the
    # locked JAX. 142 MB are downloaded.
    packages_for_tests(
        name = "cuda_plugin",
        library = "cuda_plugin",
        lock = "//third_party/py:cuda_plugin_lock.txt",
        python_environment = "@python_env//:BUILD",
    )

    # What they compile for TPU with besides: a newer compiler than that of the
    # locked JAX, for what only it compiles
    # (lib/core/lowering/tpu/libtpu_features.py). Older versions of JAX cannot
    # read its programs, so it does not replace the other. 200 MB.
    packages_for_tests(
        name = "newer_libtpu",
        library = "newer_libtpu",
        lock = "//third_party/py:newer_libtpu_lock.txt",
        python_environment = "@python_env//:BUILD",
    )

    # nvcc, for what is compiled for GPUs.
    cuda_compiler(
        name = "cuda_compiler",
        lock = "//third_party/cuda:cuda_compiler_lock.txt",
        newer_lock = "//third_party/cuda:newer_cuda_compiler_lock.txt",
        version = "@system//:nvcc_version.txt",
        python_environment = "@python_env//:BUILD",
    )
