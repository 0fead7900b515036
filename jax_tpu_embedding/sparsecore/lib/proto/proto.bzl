# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A Python library of a .proto file, made by the system's protoc."""

def proto(name):
    """Makes `{name}_py_pb2` of `{name}.proto`.

    The generated module is called as protoc does it: {package}.{name}_pb2.
    Bazel's own proto rules would build protoc and the protobuf library from
    source.

    Args:
      name: the file without its extension.
    """
    source = name + ".proto"
    native.genrule(
        name = name + "_generate",
        srcs = [source],
        outs = [
            name + "_pb2.py",
            name + "_pb2.pyi",
        ],
        # Run from the workspace's root: the path given to protoc becomes the
        # name under which others import the file.
        cmd = "$(location @system//:protoc) --proto_path=. " +
              "--python_out=$(GENDIR) --pyi_out=$(GENDIR) " +
              "$(location {})".format(source),
        tools = ["@system//:protoc"],
    )
    native.py_library(
        name = name + "_py_pb2",
        srcs = [name + "_pb2.py"],
        data = [name + "_pb2.pyi"],
    )
