# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A repository with targets for the libraries that the system installs.

gpus.bzl in it has GPUS: what //tools:cuda is by default, and HOST_COMPILER: what
nvcc is to call for what is not for GPUs, if that is not the system's compiler.
"""

# A100, H100 and H200, B200. The oldest is first.
_GPUS = "80,90,100"

# The newest that nvcc 13.0 does not refuse, in its host_config.h, and the oldest
# that compiles this project.
_NEWEST_GCC_FOR_NVCC = 15
_OLDEST_GCC = 12

def _gpus_and_host_compiler(ctx):
    gcc = ctx.which("gcc")
    found = ctx.execute([gcc, "-dumpversion"]).stdout.strip() if gcc else ""
    version = found.split(".")[0]
    if not version.isdigit() or int(version) <= _NEWEST_GCC_FOR_NVCC:
        return _GPUS, ""

    # One may be installed beside it.
    for older in range(_NEWEST_GCC_FOR_NVCC, _OLDEST_GCC - 1, -1):
        name = "g++-{}".format(older)
        if ctx.which(name):
            return _GPUS, name

    # buildifier: disable=print
    print(("GCC {} is newer than nvcc takes: nothing is compiled for GPUs, as " +
           "with --//tools:cuda=false. With a package g++-{}, or an older one, " +
           "beside it, GPUs get their code.").format(found, _NEWEST_GCC_FOR_NVCC))
    return "false", ""

def _system_libraries_impl(ctx):
    gpus, host_compiler = _gpus_and_host_compiler(ctx)
    ctx.file("gpus.bzl", "GPUS = {}\nHOST_COMPILER = {}\n".format(
        repr(gpus),
        repr(host_compiler),
    ))

    # Not ctx.which: a protoc of another environment that happens to be the first
    # on the PATH (conda's, say) would not go with the headers of the system.
    ctx.symlink("/usr/bin/protoc", "bin/protoc")
    ctx.symlink(ctx.attr.build_file, "BUILD")

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    attrs = {"build_file": attr.label(mandatory = True)},
    local = True,
)
