# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A repository with targets for the libraries that the system installs."""

def _system_libraries_impl(ctx):
    # Not ctx.which: a protoc of another environment that happens to be the first
    # on the PATH (conda's, say) would not go with the headers of the system.
    ctx.symlink("/usr/bin/protoc", "bin/protoc")
    ctx.symlink(ctx.attr.build_file, "BUILD")

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    attrs = {"build_file": attr.label(mandatory = True)},
    local = True,
)
