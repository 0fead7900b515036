# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Settings of JAX for tests, which compile much and compute little."""

from __future__ import annotations

import os
import tempfile

import jax

_CACHE = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))


def use() -> None:
  """Compiles each program once.

  Tests make their models anew, by the same programs: nnx/embed_test takes 23 s
  of CPU time, and without the cache 41. Where all tests share a cache, as under
  bazelw, that one serves.
  """
  if jax.config.jax_compilation_cache_dir:
    return
  jax.config.update("jax_compilation_cache_dir", _CACHE.name)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
