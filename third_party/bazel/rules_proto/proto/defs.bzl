# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The protobuf rules that are built into Bazel, under the names of rules_proto."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
