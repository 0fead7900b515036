# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses
import random
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.input import _stages


def _stages_of(
    items, work=None, finish=None, *, prepare=None, workers=1, ahead=4
):
  """Stages that hand the items out as they are."""
  items = iter(items)
  same = lambda number, item: item
  return _stages.Stages(
      lambda: next(items),
      prepare or (lambda item: item),
      work or same,
      finish or same,
      end=lambda: None,
      first=0,
      workers=workers,
      room=ahead + workers + 1,
      num_finished=ahead,
      name="items",
  )


class _Most:
  """A context that knows how many threads were in it at the same time."""

  def __init__(self):
    self._lock = threading.Lock()
    self._now = 0
    self.value = 0

  def __enter__(self):
    with self._lock:
      self._now += 1
      self.value = max(self.value, self._now)

  def __exit__(self, *unused_exception):
    with self._lock:
      self._now -= 1


class StagesTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 4)
  def test_items_are_finished_in_order_by_one_at_a_time(self, workers):
    rng = random.Random(workers)
    working, finishing, finished = _Most(), _Most(), []
    preparing, prepared = _Most(), []

    def prepare(item):
      with preparing:
        time.sleep(rng.choice((0, 0.001)))
        prepared.append(item)
        return item

    def work(number, item):
      with working:
        time.sleep(rng.choice((0, 0.001, 0.003)))
        return number, item

    def finish(number, result):
      with finishing:
        time.sleep(rng.choice((0, 0.001)))
        finished.append(number)
        return result

    stages = _stages_of(
        range(100, 300), work, finish, prepare=prepare, workers=workers
    )
    taken = []
    with self.assertRaises(StopIteration):
      while True:
        taken.append(stages.next())
    self.assertEqual(taken, [(i, 100 + i) for i in range(200)])
    self.assertEqual(finished, list(range(200)))
    self.assertEqual(finishing.value, 1)
    self.assertLessEqual(working.value, workers)
    self.assertEqual(prepared, list(range(100, 300)))
    self.assertEqual(preparing.value, 1)

  @parameterized.parameters(1, 3)
  def test_as_many_work_as_may_while_one_finishes(self, workers):
    # Each waits for all the others: with fewer threads none would go on.
    everyone = threading.Barrier(workers + 1, timeout=60)
    all_read = threading.Event()

    def work(number, item):
      if number == 0:  # nothing new comes later that would wake the others
        all_read.wait(60)
      elif number <= workers:
        everyone.wait()
      return item

    def finish(number, item):
      if number == 0:
        everyone.wait()
      return item

    stages = _stages_of(range(workers + 1), work, finish, workers=workers)
    reader = stages._threads[0]  # pylint: disable=protected-access
    reader.join(60)
    all_read.set()
    for i in range(workers + 1):
      self.assertEqual(stages.next(), i)
    with self.assertRaises(StopIteration):
      stages.next()

  def test_if_a_thread_cannot_start_the_others_end_and_nothing_is_read(self):
    start, started = threading.Thread.start, []

    def start_two(thread):
      if len(started) == 2:
        raise RuntimeError("can't start new thread")
      start(thread)
      started.append(thread)

    items = iter(range(3))
    with (
        mock.patch.object(threading.Thread, "start", start_two),
        self.assertRaisesRegex(RuntimeError, "can't start"),
    ):
      _stages_of(items)
    for thread in started:
      thread.join(60)
      self.assertFalse(thread.is_alive(), thread)
    self.assertEqual(next(items), 0)

  def test_what_waits_is_finished_when_there_is_room(self):
    worked, finished = threading.Semaphore(0), threading.Semaphore(0)
    num_ahead, workers = 1, 2

    def work(number, item):
      del number
      worked.release()
      return item

    def finish(number, item):
      del number
      finished.release()
      return item

    # As many as there is room for: later nobody reads, and wakes the others.
    room = num_ahead + workers + 1
    stages = _stages_of(
        range(room), work, finish, workers=workers, ahead=num_ahead
    )
    for _ in range(room):
      self.assertTrue(worked.acquire(timeout=60))
    self.assertTrue(finished.acquire(timeout=60))
    self.assertFalse(finished.acquire(timeout=0.1))
    for i in range(room):
      self.assertEqual(stages.next(), i)
      if i < room - 1:
        self.assertTrue(finished.acquire(timeout=60))
    with self.assertRaises(StopIteration):
      stages.next()

  def test_closed_by_a_thread_that_holds_the_lock(self):
    made, closed = threading.Event(), threading.Event()

    def work(number, item):  # as where garbage is collected in a stage
      del number, item
      made.wait()
      with stages._lock:  # pylint: disable=protected-access
        stages.close()
      closed.set()

    with self.assertNoLogs(_stages.__name__, "WARNING"):
      stages = _stages_of(range(100), work, workers=2)
      made.set()
      self.assertTrue(closed.wait(10))
      stages.close()
    with self.assertRaisesRegex(RuntimeError, "is closed"):
      stages.next()

  def test_an_error_that_takes_no_note_is_raised_as_it_is(self):
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
      reason: str

    error = Frozen("no such file")
    # Not by a thread, for whose item `next` would wait.
    self.assertIs(_stages.noted(error, 0, "read"), error)
    stages = _stages_of([0], work=lambda number, item: 1 / item)
    with self.assertRaises(ZeroDivisionError) as caught:
      stages.next()
    self.assertEqual(
        caught.exception.__notes__, ["input batch 0, stage preprocess"]
    )


if __name__ == "__main__":
  absltest.main()
