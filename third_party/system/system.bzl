# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A repository with targets for the libraries that the system installs.

gpus.bzl in it has GPUS: what //tools:cuda is by default; nvcc_version.txt, which
nvcc takes the system's compiler.
"""

load("//third_party/cuda:which_nvcc.bzl", "which_nvcc")

# A100, H100 and H200, B200. The oldest is first.
_GPUS = "80,90,100"

def _system_libraries_impl(ctx):
    nvcc, gcc = which_nvcc(ctx)
    if not nvcc:
        # buildifier: disable=print
        print(("GCC {} is newer than nvcc takes: nothing is compiled for GPUs, as " +
               "with --//tools:cuda=false.").format(gcc))
    ctx.file("gpus.bzl", "GPUS = {}\n".format(repr(_GPUS if nvcc else "false")))
    ctx.file("nvcc_version.txt", nvcc)

    # Not ctx.which: a protoc of another environment that happens to be the first
    # on the PATH (conda's, say) would not go with the headers of the system.
    ctx.symlink("/usr/bin/protoc", "bin/protoc")
    ctx.symlink(ctx.attr.build_file, "BUILD")

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    attrs = {"build_file": attr.label(mandatory = True)},
    local = True,
)
