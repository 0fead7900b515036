# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What one host knows of the reductions that it takes part in."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import threading

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _course

# How many reductions are remembered after their end, to tell a repeated
# contribution from one to a new reduction. Memory stays bounded in a long job.
NUM_REMEMBERED = 1024
# Reductions that another host may contribute to before this one has: as many as
# it may run at a time, and then some.
MAX_AHEAD = 1024


class Reductions:
  """Contributions of other hosts and the host's own, by sync_key.

  Contributions of other hosts may arrive before the host's own. Values are OR-ed;
  those of one reduction are all of type bool or all of type int.

  A failure is final: hosts no longer agree on which reductions took place.

  Methods lock `changed`, and notify it of every change that a waiting reduction
  may care about.
  """

  def __init__(self, task_id: int):
    self.changed = threading.Condition()
    # Of the host's own contributions.
    self._own = (_course.EVERYONE, task_id)
    # sync_key -> (round, task_id) -> value.
    self._running: dict[int, dict[tuple[int, int], bool | int]] = {}
    self._ended: collections.deque[int] = collections.deque(
        maxlen=NUM_REMEMBERED
    )
    self._failure: str | None = None

  def start(self, sync_key: int, value: bool | int) -> None:
    """Adds the host's own contribution.

    Raises:
      RuntimeError: if it has contributed under this key before; after a
        failure; if another host has contributed a value of another kind.
    """
    with self.changed:
      self.raise_if_failed()
      if sync_key in self._ended or self._own in self._running.get(
          sync_key, ()
      ):
        raise RuntimeError(
            f"This host has contributed to sync_key {sync_key} before. Use"
            " each batch_number once with an all_reduce_interface."
        )
      self._add(sync_key, self._own, value)

  def receive(
      self,
      sync_key: int,
      task_id: int,
      value: bool | int,
      round_number: int = _course.EVERYONE,
  ) -> None:
    """Adds the contribution of another host; a repeated one changes nothing.

    Raises:
      RuntimeError: if it contradicts an earlier one; after a failure; if the
        host is too far ahead of this one, which changes nothing.
    """
    with self.changed:
      self.raise_if_failed()
      if sync_key in self._ended:
        return
      if sync_key not in self._running:
        self._check_ahead(task_id)
      self._add(sync_key, (round_number, task_id), value)

  def _check_ahead(self, task_id: int) -> None:
    num_ahead = sum(
        self._own not in values
        and any(sender == task_id for _, sender in values)
        for values in self._running.values()
    )
    if num_ahead >= MAX_AHEAD:
      raise RuntimeError(
          f"Host {task_id} has contributed to {num_ahead} reductions that host"
          f" {self._own[1]} has not begun. Give all hosts the same batch"
          " numbers."
      )

  def _add(
      self, sync_key: int, sender: tuple[int, int], value: bool | int
  ) -> None:
    values = self._running.setdefault(sync_key, {})
    # All that are there are of one kind: the first one tells it.
    for other_sender in {*itertools.islice(values, 1), sender} & values.keys():
      other = values[other_sender]
      same_kind = type(other) is type(value)
      if not same_kind or (other_sender == sender and other != value):
        self.fail(
            f"Contradictory contributions to sync_key {sync_key}: {other!r} by"
            f" host {other_sender[1]}, then {value!r} by host {sender[1]}. Give"
            " all hosts the same batch numbers, and each a task_id of its own."
        )
        self.raise_if_failed()
    values[sender] = value
    self.changed.notify_all()

  def heard(self, sync_key: int) -> _course.Heard:
    """What was contributed so far; changes while `changed` is not locked."""
    return self._running[sync_key]

  def result(self, sync_key: int) -> bool | int:
    """The OR of what was contributed so far."""
    with self.changed:
      return functools.reduce(operator.or_, self._running[sync_key].values())

  def end(self, sync_key: int) -> None:
    """Forgets the values. The key stays used."""
    with self.changed:
      del self._running[sync_key]
      self._ended.append(sync_key)

  def fail(self, message: str) -> None:
    """Makes every later call raise; the first message is kept."""
    with self.changed:
      self._failure = self._failure or message
      self.changed.notify_all()

  def wake(self) -> None:
    """Lets waiting reductions look around."""
    with self.changed:
      self.changed.notify_all()

  def raise_if_failed(self) -> None:
    if self._failure is not None:
      raise RuntimeError(self._failure)
