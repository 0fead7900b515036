# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Strings that the command line sets: --//package:name=value."""

StringFlagInfo = provider(
    doc = "The value of a string_flag.",
    fields = ["value"],
)

def _string_flag_impl(ctx):
    return StringFlagInfo(value = ctx.build_setting_value)

string_flag = rule(
    implementation = _string_flag_impl,
    build_setting = config.string(flag = True),
    doc = "A string that the command line sets: --//package:name=value.",
)
