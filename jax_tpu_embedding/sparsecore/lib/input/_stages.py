# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Threads that take items from a source and stay ahead of who uses them.

One thread reads, some prepare items, one of them after the other, and work on
them, in any order, and one finishes them in the order of the source. Errors are items: they are raised where the item would have
been, after all before it.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import threading
from typing import Any

_JOIN_SECONDS = 5.0


class Stages:
  """The threads, and what is between them.

  At most `room` items are in the stages, those that wait for `next` included.
  """

  def __init__(
      self,
      read: Callable[[], Any],
      prepare: Callable[[Any], Any],
      work: Callable[[int, Any], Any],
      finish: Callable[[int, Any], Any],
      *,
      end: Callable[[], None],
      first: int,
      workers: int,
      room: int,
      num_finished: int,
      name: str,
  ):
    """Starts the threads.

    Args:
      read: the next item of the source, or raises StopIteration.
      prepare: called with each item, in order, never twice at once.
      work: called with the number of the item and the result of `prepare`.
      finish: the same with the result of `work`; None means that all end here.
      end: called by the thread that finishes when the source has ended.
      first: the number of the first item.
      workers: how many threads work.
      room: the most items that are ahead.
      num_finished: the most finished items among them.
      name: of the source, for messages.
    """
    self._read, self._prepare, self._work = read, prepare, work
    self._finish, self._end = finish, end
    self._room, self._num_finished, self._name = room, num_finished, name
    # One lock, and a condition for whoever may wait: each change wakes those
    # that it concerns, and no others. A thread that holds the lock may take it
    # again: garbage may be collected there, and `close` be called for it.
    self._lock = threading.RLock()
    self._has_room, self._has_work, self._has_result, self._has_finished = (
        threading.Condition(self._lock) for _ in range(4)
    )
    self._is_closed = False
    self._has_ended = False  # and so do the threads
    self._is_preparing = False
    # Numbers of the next item to read, to finish and to take.
    self._next_read = self._next_finished = self._next_taken = first
    self._to_work: list[tuple[int, Any]] = []
    self._to_finish: dict[int, Any] = {}  # number -> result or _Failure
    self._finished: list[Any] = []  # a _Failure is the last one, and stays
    self._threads = [
        threading.Thread(target=target, daemon=True, name=f"input {what}")
        for target, what in (
            (self._run_reader, "reader"),
            *[(self._run_worker, "worker")] * workers,
            (self._run_finisher, "sender"),
        )
    ]
    try:
      # The reader comes last: an item that it read would be lost.
      for thread in reversed(self._threads):
        thread.start()
    except BaseException:  # The system has no thread left.
      with self._lock:
        self._stop()  # Else those that have started would wait for ever.
      raise

  def next(self) -> Any:
    """The next finished item, or raises what ended the stages."""
    if threading.current_thread() in self._threads:
      raise RuntimeError(
          f"{threading.current_thread().name} of {self._name} asks for one of"
          " its batches, for which it would wait for ever, or which would be"
          " lost. Ask for batches outside of the source and its functions."
      )
    with self._lock:
      self._has_finished.wait_for(lambda: self._finished or self._is_closed)
      if self._is_closed:
        raise RuntimeError("The input pipeline is closed.")
      item = self._finished[0]
      if isinstance(item, _Failure):
        raise item.to_raise()
      del self._finished[0]
      self._next_taken += 1
      self._has_room.notify()
      if len(self._finished) == self._num_finished - 1:  # it was full
        self._has_result.notify()
      return item

  def close(self) -> None:
    """Ends the threads, and waits for them. May be called again."""
    with self._lock:
      self._is_closed = True
      self._finished.clear()
      self._stop()
    if threading.current_thread() in self._threads:
      return  # It may hold the lock, which the others need to end.
    for thread in self._threads:
      thread.join(_JOIN_SECONDS)
      if thread.is_alive():
        logging.getLogger(__name__).warning(
            "%s of %s has not returned for %s s. It is left alone.",
            thread.name,
            self._name,
            _JOIN_SECONDS,
        )

  def _run_reader(self) -> None:
    while True:
      with self._lock:
        self._has_room.wait_for(
            lambda: self._has_ended
            or self._next_read - self._next_taken < self._room
        )
        if self._has_ended:
          return
        number = self._next_read
        self._next_read += 1
      try:
        item = self._read()
      except StopIteration:
        self._put(number, _Failure(StopIteration()))
        return
      except BaseException as error:  # pylint: disable=broad-except
        self._put(number, _Failure(noted(error, number, "read")))
        return
      with self._lock:
        self._to_work.append((number, item))
        self._has_work.notify()
      del item

  def _run_worker(self) -> None:
    while True:
      with self._lock:
        self._has_work.wait_for(
            lambda: self._has_ended
            or (self._to_work and not self._is_preparing)
        )
        if self._has_ended:
          return
        number, item = self._to_work.pop(0)
        self._is_preparing = True
      try:
        try:
          item = self._prepare(item)
        finally:
          with self._lock:
            self._is_preparing = False
            self._has_work.notify()
        result = self._work(number, item)
      except BaseException as error:  # pylint: disable=broad-except
        result = _Failure(noted(error, number, "preprocess"))
      self._put(number, result)
      del item, result

  def _put(self, number: int, result: Any) -> None:
    with self._lock:
      if not self._has_ended:
        self._to_finish[number] = result
        if number == self._next_finished:
          self._has_result.notify()

  def _run_finisher(self) -> None:
    while True:
      with self._lock:
        number = self._next_finished
        self._has_result.wait_for(
            lambda: self._has_ended
            or (
                number in self._to_finish
                and len(self._finished) < self._num_finished
            )
        )
        if self._has_ended:
          return
        result = self._to_finish.pop(number)
      try:
        if isinstance(result, _Failure):
          if isinstance(result.error, StopIteration):
            self._end()
        else:
          result = self._finish(number, result)
          if result is None:
            result = _Failure(StopIteration())
      except BaseException as error:  # pylint: disable=broad-except
        result = _Failure(noted(error, number, "send"))
      with self._lock:
        if self._has_ended:
          return
        self._next_finished += 1
        self._finished.append(result)
        self._has_finished.notify()
        if isinstance(result, _Failure):
          self._stop()
          return
      del result

  def _stop(self) -> None:
    """Lets the threads end, which have nothing more to do."""
    self._has_ended = True
    self._to_work.clear()
    self._to_finish.clear()
    for condition in (
        self._has_room,
        self._has_work,
        self._has_result,
        self._has_finished,
    ):
      condition.notify_all()


class _Failure:
  """What is raised in place of an item."""

  def __init__(self, error: BaseException):
    self.error = error
    self._traceback = error.__traceback__

  def to_raise(self) -> BaseException:
    """The error, without the frames of those who raised it before.

    They would be more each time, and an end would keep alive who came to it.
    """
    if isinstance(self.error, StopIteration):
      return StopIteration()
    return self.error.with_traceback(self._traceback)


def noted(error: BaseException, number: int, stage: str) -> BaseException:
  """`error`, or a RuntimeError from a StopIteration, with a note of where.

  A StopIteration would be taken for the end of the source, as it once was in
  generators (PEP 479).
  """
  if isinstance(error, StopIteration):
    stop, error = error, RuntimeError(
        f"Stage {stage} raised StopIteration, which only a source may, at its"
        " end. If a function of yours calls next() there, give it more items,"
        " or a default."
    )
    error.__cause__ = stop
  # An error of a frozen dataclass takes no note. It is still raised.
  with contextlib.suppress(Exception):
    error.add_note(f"input batch {number}, stage {stage}")
  return error
