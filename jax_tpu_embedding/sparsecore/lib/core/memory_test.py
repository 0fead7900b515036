# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What importing leaves alone, and what programs may choose."""

import os
import subprocess
import sys
import textwrap

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np

# Whether malloc maps a block of 31 MiB, as it does unless it is told otherwise.
_MAPS_LARGE_BLOCKS = """
import ctypes

class _Info(ctypes.Structure):
  _fields_ = [(name, ctypes.c_size_t) for name in (
      "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
      "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = _Info
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]

def maps_large_blocks():
  before = libc.mallinfo2().hblks
  libc.malloc(31 << 20)  # For good: malloc adapts to what is freed.
  return libc.mallinfo2().hblks == before + 1
"""


def _run(program):
  """In a process of its own, whose user has set no limits."""
  environment = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
  }
  environment["PYTHONPATH"] = os.pathsep.join(sys.path)
  return subprocess.run(
      [sys.executable, "-c", _MAPS_LARGE_BLOCKS + textwrap.dedent(program)],
      env=environment,
      capture_output=True,
      text=True,
      check=True,
  ).stdout.split()


@absltest.skipUnless(
    "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or ""), "not glibc"
)
class KeepFreedMemoryTest(absltest.TestCase):

  def test_importing_changes_nothing_of_the_process(self):
    self.assertEqual(
        _run("""
            import os
            import signal

            import jax
            def state():
              return (dict(os.environ), os.sched_getaffinity(0),
                      [signal.getsignal(s) for s in signal.valid_signals()],
                      maps_large_blocks())
            before = state()
            from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
            from jax_tpu_embedding.sparsecore.lib.core import memory
            from jax_tpu_embedding.sparsecore.lib.core import (
                pybind_input_preprocessing)
            print(before[-1], state() == before)
            """),
        ["True", "True"],
    )

  def test_malloc_keeps_blocks_when_it_is_told_to(self):
    self.assertEqual(
        _run("""
            from jax_tpu_embedding.sparsecore.lib.core import memory
            print(memory.keep_freed_memory(), maps_large_blocks())
            """),
        ["True", "False"],
    )

  def test_numbers_of_bytes_that_malloc_cannot_keep_are_refused(self):
    for num_bytes in (-1, 2**31):
      with self.assertRaisesRegex(
          ValueError, f"between 0 and 2147483647, got {num_bytes}"
      ):
        memory.keep_freed_memory(num_bytes)


def _convert():
  """16 k ids: some scratch space, and 200 kB of outputs that are dropped."""
  ids = np.random.default_rng(1).integers(0, 64, (4096, 4), np.int32)
  converter_requests.convert(
      input_preprocessing.Stack(
          combiner="sum",
          max_ids_per_partition=8192,
          max_unique_ids_per_partition=64,
      ),
      [input_preprocessing.Feature(name="f", ids=ids, vocabulary_size=64)],
      layout.Topology(
          local_device_count=1, global_device_count=1, num_sc_per_device=2
      ),
  )


class CacheLimitTest(absltest.TestCase):

  def test_all_caches_share_one_limit(self):
    self.addCleanup(memory.set_cache_limit, memory.cache_limit())
    outputs = converter.OutputPool.of_process()
    _convert()
    self.assertGreater(outputs.idle_bytes, 0)
    # Scratch space too, and the two extension modules know of each other.
    self.assertGreater(memory.cached_bytes(), outputs.idle_bytes)
    memory.set_cache_limit(0)
    for _ in range(2):
      _convert()
    self.assertEqual((outputs.idle_bytes, memory.cached_bytes()), (0, 0))
    memory.set_cache_limit(1 << 30)
    _convert()
    self.assertGreater(memory.cached_bytes(), outputs.idle_bytes)
    before = memory.cached_bytes()
    idle = outputs.idle_bytes
    outputs.clear()
    self.assertEqual(memory.cached_bytes(), before - idle)

  def test_older_outputs_make_room_for_newer_ones(self):
    self.addCleanup(memory.set_cache_limit, memory.cache_limit())
    outputs = converter.OutputPool.of_process()
    outputs.clear()
    memory.set_cache_limit(memory.cached_bytes() + 300)
    arrays = [outputs.empty((size,), np.uint8) for size in (64, 128, 192)]
    while arrays:
      del arrays[0]
    self.assertEqual(outputs.idle_bytes, 192)  # 128 + 192 are too many.
    reused = outputs.num_reused
    outputs.empty((192,), np.uint8)
    self.assertEqual(outputs.num_reused, reused + 1)
    outputs.clear()

  def test_the_default_is_moderate(self):
    self.assertEqual(memory.cache_limit(), 256 << 20)

  def test_a_negative_limit_is_an_error(self):
    with self.assertRaisesRegex(ValueError, "must not be negative, got -1"):
      memory.set_cache_limit(-1)


if __name__ == "__main__":
  absltest.main()
