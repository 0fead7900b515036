# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whom a host tells, and whom it hears, until it knows the OR of all values.

There are two ways, which may run beside each other; the first to end decides.

Everyone tells everyone: one round of N - 1 messages from each of N hosts. It
needs nothing to be known of the others, and shows who has not contributed.

In rounds: in round k = 1, 2, ... host i tells host i + 2^(k-1), modulo N, all
that it knows, and goes on once it has heard host i - 2^(k-1). After round k it
knows the values of 2^k hosts that end with it, so ceil(log2 N) rounds do, of a
message each. (This is how Hensgen, Finkel and Manber let processes meet in "Two
algorithms for barrier synchronization", 1988. A value that arrives twice does
not change an OR, so N need not be a power of two.)
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set
import dataclasses
import functools
import operator

# The round in which everyone tells everyone its own value.
EVERYONE = 0

# So few hosts tell everyone: it takes one round instead of two or three, and
# hardly more messages.
MAX_FEW_HOSTS = 4

# (round, task_id of the sender) -> what it said; the host's own value is its
# message to everyone, whether that is sent or not.
Heard = Mapping[tuple[int, int], bool | int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
  """What a host is to say now."""

  round_number: int
  # The receiver's task_id; None is everyone.
  to: int | None
  value: bool | int


class Course:
  """One reduction, as one host takes part in it."""

  def __init__(self, task_id: int, num_tasks: int, known: Set[int]):
    """Sends nothing yet.

    Args:
      task_id: of this host.
      num_tasks: the number of hosts.
      known: the hosts that have said who they are, which shows where they are
        and that they know of rounds. A host that does not know all others
        tells everyone, and whoever hears that does so too: no host can have
        ended by rounds, as each needs something of every other.
    """
    self._task_id = task_id
    self._num_tasks = num_tasks
    others = set(range(num_tasks)) - {task_id}
    in_rounds = num_tasks > MAX_FEW_HOSTS and others <= known
    self._num_rounds = (num_tasks - 1).bit_length() if in_rounds else 0
    self._round = 0  # the last one that was begun
    self._tells_everyone = not in_rounds
    self._has_told_everyone = False

  def tell_everyone(self) -> None:
    """From the next `advance` on. Shows which hosts are late."""
    self._tells_everyone = True

  def advance(self, heard: Heard) -> list[Message]:
    """Begins what the messages heard so far allow; returns what that says."""
    messages = []
    while self._round < self._num_rounds and self._has_heard_round(heard):
      self._round += 1
      messages.append(
          Message(
              round_number=self._round,
              to=(self._task_id + self._distance) % self._num_tasks,
              value=functools.reduce(operator.or_, heard.values()),
          )
      )
    if not self._has_told_everyone and (
        self._tells_everyone
        or any(
            number == EVERYONE and sender != self._task_id
            for number, sender in heard
        )
    ):
      self._has_told_everyone = True
      messages.append(
          Message(
              round_number=EVERYONE,
              to=None,
              value=heard[EVERYONE, self._task_id],
          )
      )
    return messages

  def missing(self, heard: Heard) -> list[int]:
    """The hosts that are waited for; none at the end of the reduction.

    Args:
      heard: what the last `advance` was given.
    """
    if 0 < self._num_rounds == self._round and self._has_heard_round(heard):
      return []
    if self._has_told_everyone:
      return [i for i in range(self._num_tasks) if (EVERYONE, i) not in heard]
    return [self._source]

  @property
  def _distance(self) -> int:
    return 1 << (self._round - 1)

  @property
  def _source(self) -> int:
    return (self._task_id - self._distance) % self._num_tasks

  def _has_heard_round(self, heard: Heard) -> bool:
    return self._round == 0 or (self._round, self._source) in heard
