# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Memory that the process keeps between steps: what a program may choose.

Importing the package chooses nothing that is the process's own.
"""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.core import ffi_cpu

_MAX_KEPT_BYTES = 2**31 - 1  # what malloc's setting has room for


def keep_freed_memory(num_bytes: int = 64 << 20) -> bool:
  """Lets malloc keep some freed memory, in place of returning it.

  For programs that train on CPU, to be called once, at the start of main. XLA
  takes the memory of results from malloc and frees it in every step; glibc
  returns it to the system, which clears the same pages again for the next step.
  Small steps take about three quarters of the CPU time without that
  (benchmarks/lookup).

  This is a setting of the whole process, other libraries included: blocks of up
  to 32 MiB come from its heaps, and glibc no longer adapts that to the program.
  With more than 64 MiB to keep, all blocks do, and threads that start later
  share one heap, since glibc gives back what the heaps of other threads have
  whatever it shall keep. Where activations and gradients take hundreds of MiB,
  half of a step may be new pages: keep what a step uses, for example 1 GiB. It
  costs small steps some percent, in which threads wait for one another. The
  module `tcmalloc` beside this one does without that price. See
  docs/how_to/freed_memory.md.

  Args:
    num_bytes: the most that is kept at the end of each heap, below 2 GiB.

  Returns:
    Whether malloc does so now. False, and nothing is changed, with another
    allocator than glibc's, if it refuses, or if the user has set such a limit:
    MALLOC_TRIM_THRESHOLD_ and the like, or the same in GLIBC_TUNABLES. How many
    heaps there are (MALLOC_ARENA_MAX) stays as the user has set it.

  Raises:
    ValueError: num_bytes is negative, or 2 GiB or more.
  """
  if not 0 <= num_bytes <= _MAX_KEPT_BYTES:
    raise ValueError(
        f"num_bytes must be between 0 and {_MAX_KEPT_BYTES}, got {num_bytes}."
    )
  return ffi_cpu.keep_freed_memory(num_bytes)


def cache_limit() -> int:
  """How many bytes the library may keep between calls; see set_cache_limit."""
  return ffi_cpu.cache_limit()


def set_cache_limit(num_bytes: int) -> None:
  """Sets how much idle memory the library keeps between calls.

  That is scratch space of preprocessing, lookups and updates on CPU, and
  outputs of preprocessing that nothing refers to any more (OutputPool
  .of_process(); other pools have limits of their own). New pages take the
  system longer to provide than most passes need to fill them.

  Args:
    num_bytes: limit of all of it together. By default 256 MiB, or as many MiB
      as the environment variable SPARSECORE_CACHE_LIMIT_MIB says when the
      package is imported. Memory that is idle already is freed as it is used
      once more; OutputPool.of_process().clear() frees outputs at once.

  Raises:
    ValueError: it is negative.
  """
  if num_bytes < 0:
    raise ValueError(f"num_bytes must not be negative, got {num_bytes}.")
  ffi_cpu.set_cache_limit(num_bytes)


def cached_bytes() -> int:
  """How many bytes the library keeps at the moment, of cache_limit()."""
  return ffi_cpu.cached_bytes()
