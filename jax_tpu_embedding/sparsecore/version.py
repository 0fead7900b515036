# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The version of the package.

The build of a wheel fills in the two empty strings (tools/wheel.bzl); in a
checkout they stay empty.
"""

_base_version = "0.2.0"
_version_suffix = ""
__git_commit__ = ""
__version__ = _base_version + _version_suffix
