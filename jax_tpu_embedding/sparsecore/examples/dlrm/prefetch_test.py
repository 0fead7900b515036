# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.dlrm import prefetch


class PrefetchTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 7, 100)
  def test_items_come_in_order(self, depth):
    with prefetch.prefetch(iter(range(20)), depth) as items:
      self.assertEqual(list(items), list(range(20)))

  def test_items_are_made_ahead(self):
    made = threading.Semaphore(0)

    def counted():
      for i in range(10):
        made.release()
        yield i

    with prefetch.prefetch(counted(), 3) as items:
      self.assertEqual(next(items), 0)
      # The one that was taken, and three more.
      for _ in range(4):
        self.assertTrue(made.acquire(timeout=60))
      self.assertFalse(made.acquire(timeout=0.1))

  def test_an_exception_comes_where_the_item_would_have_been(self):
    def failing():
      yield 1
      raise ValueError("no more")

    with prefetch.prefetch(failing(), 4) as items:
      self.assertEqual(next(items), 1)
      with self.assertRaisesRegex(ValueError, "no more"):
        next(items)

  def test_no_thread_is_left_behind(self):
    before = threading.active_count()
    with self.assertRaises(KeyError):
      with prefetch.prefetch(iter(range(20)), 4) as items:
        next(items)
        raise KeyError
    self.assertEqual(threading.active_count(), before)


if __name__ == "__main__":
  absltest.main()
