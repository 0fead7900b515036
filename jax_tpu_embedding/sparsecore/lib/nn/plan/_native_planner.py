# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The native planner, bound to the protobuf that it was built with.

Some libraries show theirs, of another version, to the whole process: with
TensorFlow 2.21 imported before, the planner would call that, and crash.
RTLD_DEEPBIND makes a library look into those that it names first. It is set
only where it is needed, since it also hides an allocator that was preloaded.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import types

# The type information of google::protobuf::Message, which all versions have.
_ANY_PROTOBUF = "_ZTIN6google8protobuf7MessageE"


def _load() -> types.ModuleType:
  flags = sys.getdlopenflags()
  if hasattr(ctypes.CDLL(None), _ANY_PROTOBUF):
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
  try:
    return importlib.import_module(
        "jax_tpu_embedding.sparsecore.lib.nn.pybind_planner"
    )
  finally:
    sys.setdlopenflags(flags)


_module = _load()
first_fit = _module.first_fit
place_tables = _module.place_tables
plan = _module.plan
