# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Arrays from a pool: reused when they are gone, never before."""

import concurrent.futures
import functools
import os
import random

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np

_HUGE_PAGE = 1 << 21
_BUFFERS = converter_requests.BUFFERS


def address(array):
  return array.__array_interface__["data"][0]


def convert(seed, **keywords):
  """Converts one small batch; other seeds are batches of the same sizes."""
  ids = np.random.default_rng(seed).integers(0, 64, (16, 4), np.int32)
  return converter_requests.convert(
      input_preprocessing.Stack(
          combiner="sum",
          max_ids_per_partition=64,
          max_unique_ids_per_partition=64,
      ),
      [input_preprocessing.Feature(name="f", ids=ids, vocabulary_size=64)],
      layout.Topology(
          local_device_count=1, global_device_count=1, num_sc_per_device=2
      ),
      **keywords,
  )


class OutputPoolTest(parameterized.TestCase):

  @parameterized.parameters(
      ((), np.float32),
      ((0,), np.int32),
      ((3, 4), np.float32),
      ((2, 0, 5), np.int64),
      ((1 << 21,), np.uint16),
  )
  def test_arrays_are_ordinary(self, shape, dtype):
    array = converter.OutputPool().empty(shape, dtype)
    self.assertEqual((array.shape, array.dtype), (shape, np.dtype(dtype)))
    self.assertTrue(array.flags.c_contiguous and array.flags.writeable)
    self.assertEqual(address(array) % 64, 0)
    array[...] = 1

  def test_steady_state_allocates_nothing(self):
    pool = converter.OutputPool()
    shapes = [(3,), (1000,), (2, _HUGE_PAGE)]

    def step():
      arrays = [pool.empty(shape, np.float32) for shape in shapes]
      return {address(array) for array in arrays}

    first = step()
    for _ in range(5):
      self.assertEqual(step(), first)
    self.assertEqual(pool.num_allocated, len(shapes))
    self.assertEqual(pool.num_reused, 5 * len(shapes))

  @parameterized.product(
      enable_minibatching=(False, True), pass_the_pool=(False, True)
  )
  def test_preprocessing_in_a_loop_allocates_nothing(
      self, enable_minibatching, pass_the_pool
  ):
    keywords = dict(enable_minibatching=enable_minibatching)
    if pass_the_pool:
      pool = keywords["output_pool"] = converter.OutputPool()
    else:
      pool = converter.OutputPool.of_process()
      pool.clear()
    allocated_before, reused_before = pool.num_allocated, pool.num_reused
    new_memory = converter.OutputPool(max_bytes=0)

    def addresses(converted):
      return {address(getattr(converted, name)) for name in _BUFFERS}

    previous = convert(0, **keywords)
    two_batches = addresses(previous)
    for seed in range(1, 6):
      converted = convert(seed, **keywords)
      if seed == 1:
        two_batches |= addresses(converted)
      # The previous batch, which is still used, is as it was.
      converter_requests.assert_same(
          previous,
          convert(
              seed - 1,
              enable_minibatching=enable_minibatching,
              output_pool=new_memory,
          ),
      )
      previous = converted
      self.assertLessEqual(addresses(converted), two_batches)
    # One block of memory for the buffers of a batch.
    self.assertEqual(pool.num_allocated - allocated_before, 2)
    self.assertEqual(pool.num_reused - reused_before, 4)
    self.assertEqual((new_memory.num_reused, new_memory.idle_bytes), (0, 0))

  def test_the_pool_of_the_process_can_be_switched_off(self):
    pool = converter.OutputPool.of_process()
    self.assertEqual(pool.max_bytes, 128 << 20)
    self.addCleanup(setattr, pool, "max_bytes", pool.max_bytes)
    convert(0)
    self.assertGreater(pool.idle_bytes, 0)
    pool.max_bytes = 0
    self.assertEqual(pool.idle_bytes, 0)
    reused = pool.num_reused
    for seed in range(3):
      convert(seed)
    self.assertEqual((pool.idle_bytes, pool.num_reused), (0, reused))

  def test_memory_of_one_size_serves_any_shape_and_dtype(self):
    pool = converter.OutputPool()
    first = address(pool.empty((6, 2), np.float32))
    self.assertEqual(address(pool.empty((6,), np.int64)), first)
    # 64 bytes more.
    self.assertNotEqual(address(pool.empty((7, 4), np.float32)), first)

  @parameterized.named_parameters(
      ("view", lambda array: array[1:].T),
      ("reinterpreted", lambda array: array.view(np.int32)),
      ("memoryview", memoryview),
      ("jax", jax.device_put),
  )
  def test_what_refers_to_an_array_keeps_its_contents(self, refer):
    pool = converter.OutputPool()
    array = pool.empty((64, 64), np.float32)
    array[...] = 1
    reference = refer(array)
    expected = np.array(reference)
    del array
    for _ in range(3):
      pool.empty((64, 64), np.float32).fill(2)
    np.testing.assert_array_equal(np.asarray(reference), expected)

  def test_memory_returns_with_the_last_reference(self):
    pool = converter.OutputPool()
    array = pool.empty((4,), np.float32)
    view = array[:2]
    del array
    self.assertEqual(pool.idle_bytes, 0)
    del view
    self.assertEqual(pool.idle_bytes, 64)

  def test_arrays_outlive_the_pool(self):
    pool = converter.OutputPool()
    array = pool.empty((1000,), np.int32)
    array[...] = range(1000)
    del pool
    np.testing.assert_array_equal(array, range(1000))

  def test_random_lifetimes(self):
    """No two arrays that live overlap, and the counters add up."""
    pool, alive = converter.OutputPool(), []
    choose = random.Random(0)
    for step in range(2000):
      if alive and choose.random() < 0.5:
        array, value = alive.pop(choose.randrange(len(alive)))
        np.testing.assert_array_equal(array, value)
        del array
      else:
        array = pool.empty((choose.choice([1, 16, 17, 300]),), np.int32)
        array[...] = step
        alive.append((array, step))
        del array
    used = sum(-(-array.nbytes // 64) * 64 for array, _ in alive)
    self.assertEqual(pool.allocated_bytes - pool.idle_bytes, used)
    self.assertGreater(pool.num_reused, pool.num_allocated)

  def test_threads_share_a_pool(self):
    pool = converter.OutputPool()

    def work(thread):
      for _ in range(300):
        array = pool.empty((1000,), np.int32)
        array[...] = thread
        if not (array == thread).all():
          return False
      return True

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
      self.assertTrue(all(threads.map(work, range(8))))
    # A thread drops an array when it has the next one.
    self.assertLessEqual(pool.num_allocated, 2 * 8)
    self.assertEqual(pool.num_allocated + pool.num_reused, 8 * 300)
    self.assertEqual(pool.idle_bytes, pool.allocated_bytes)

  def test_forked_process_has_its_own_copy(self):
    pool = converter.OutputPool()
    array = pool.empty((1000,), np.int32)
    array[...] = 1
    child = os.fork()
    if child == 0:
      array[...] = 2
      del array
      pool.empty((1000,), np.int32).fill(3)
      os._exit(pool.num_reused)
    _, status = os.waitpid(child, 0)
    self.assertEqual(os.waitstatus_to_exitcode(status), 1)
    np.testing.assert_array_equal(array, 1)
    self.assertEqual(pool.num_reused, 0)

  def test_idle_memory_is_limited_and_freed(self):
    pool = converter.OutputPool(max_bytes=100)
    arrays = [pool.empty((8,), np.int64) for _ in range(3)]
    self.assertEqual(pool.allocated_bytes, 3 * 64)
    del arrays
    self.assertEqual((pool.allocated_bytes, pool.idle_bytes), (64, 64))
    kept = pool.empty((8,), np.int64)
    pool.clear()
    self.assertEqual((pool.allocated_bytes, pool.idle_bytes), (64, 0))
    del kept
    pool.clear()
    self.assertEqual((pool.allocated_bytes, pool.idle_bytes), (0, 0))

  def test_what_is_idle_for_longest_is_freed_first(self):
    pool = converter.OutputPool(max_bytes=256)
    arrays = [pool.empty((size,), np.uint8) for size in (64, 128, 64, 192)]
    addresses = [address(array) for array in arrays]
    while arrays:
      del arrays[0]
    # 64 + 128 + 64 fit. The last 192 took the place of the first two.
    self.assertEqual((pool.idle_bytes, pool.allocated_bytes), (256, 256))
    reused = pool.empty((64,), np.uint8)
    self.assertEqual((address(reused), pool.num_reused), (addresses[2], 1))
    reused = pool.empty((128,), np.uint8)
    self.assertEqual(pool.num_reused, 1)
    del reused

  def test_less_max_bytes_frees_the_rest(self):
    pool = converter.OutputPool()
    self.assertIsNone(pool.max_bytes)
    for size in (64, 128, 192):
      pool.empty((size,), np.uint8)
    self.assertEqual(pool.idle_bytes, 384)
    pool.max_bytes = 200
    self.assertEqual((pool.max_bytes, pool.idle_bytes), (200, 192))
    self.assertEqual(pool.allocated_bytes, 192)
    pool.max_bytes = None
    pool.empty((128,), np.uint8)
    self.assertEqual(pool.idle_bytes, 320)

  def test_large_arrays_are_made_of_huge_pages(self):
    pool = converter.OutputPool()
    large = pool.empty((2 * _HUGE_PAGE + 1,), np.uint8)
    self.assertEqual(address(large) % _HUGE_PAGE, 0)
    self.assertEqual(pool.allocated_bytes, 3 * _HUGE_PAGE)

  @parameterized.parameters(
      (lambda: converter.OutputPool(max_bytes=-1), ValueError, "got -1"),
      (
          lambda: setattr(converter.OutputPool(), "max_bytes", -1),
          ValueError,
          "got -1",
      ),
      (lambda: converter.OutputPool().empty((2, -3), "i4"), ValueError, "-3"),
      *(
          (
              functools.partial(converter.OutputPool().empty, (1000,), dtype),
              TypeError,
              "OutputPool: dtype must be of numbers, got .* Use np.empty",
          )
          # References, fields that have them, and strings of any length.
          for dtype in (object, [("a", "i4"), ("b", "O")], "S", "U", "V0")
      ),
      (lambda: converter.OutputPool().empty((1 << 60,), "i4"), MemoryError, ""),
      (
          lambda: converter.OutputPool().empty((1 << 40,) * 2, "i4"),
          MemoryError,
          "",
      ),
  )
  def test_bad_requests(self, request, error, message):
    with self.assertRaisesRegex(error, message):
      request()

  def test_repr_tells_how_the_pool_does(self):
    pool = converter.OutputPool()
    pool.empty((1,), np.int32)
    self.assertEqual(
        repr(pool),
        "OutputPool(allocated_bytes=64, idle_bytes=64, num_allocated=1,"
        " num_reused=0)",
    )


if __name__ == "__main__":
  absltest.main()
