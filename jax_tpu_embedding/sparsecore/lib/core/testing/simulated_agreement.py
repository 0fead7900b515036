# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A reduction of many hosts in one process, on a clock of its own.

Messages take time, are lost and sent again; hosts are late. What a host says and
when it is done is what _course.py decides, as it does over gRPC.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import heapq
import itertools
import random

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _course
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions

_KEY = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
  """What happens to a message. Times are seconds."""

  # A host needs this long to send or to take one, one after the other.
  work: float = 0.0
  # On its way; drawn uniformly between the two.
  min_delay: float = 0.0
  max_delay: float = 0.0
  # How many of a hundred messages are lost.
  percent_lost: float = 0.0
  # After which a lost one is sent again.
  retry: float = 0.2
  # How long a host waits in rounds before it tells everyone.
  patience: float = 1.0


@dataclasses.dataclass
class Host:
  """One host, and what became of it."""

  course: _course.Course
  reductions: _reductions.Reductions
  # Messages that it has sent, lost ones too.
  num_sent: int = 0
  num_received: int = 0
  # When it knew the result; None: never.
  ended_at: float | None = None
  result: bool | int | None = None
  has_begun: bool = False
  busy_until: float = 0.0


def reduce(
    values: Sequence[bool | int],
    rng: random.Random,
    network: Network = Network(),
    *,
    starts: Mapping[int, float] | None = None,
    strangers: Collection[int] = (),
) -> list[Host]:
  """Runs one reduction until nothing is under way.

  Args:
    values: of each host.
    rng: draws delays and losses.
    network: how messages travel.
    starts: host -> when it begins. Default: 0.
    strangers: hosts that do not know the others, and so tell everyone.

  Returns:
    The hosts.
  """
  return _Simulation(values, rng, network, starts or {}, strangers).run()


class _Simulation:
  """The clock, and what is to happen when."""

  def __init__(self, values, rng, network, starts, strangers):
    everyone = frozenset(range(len(values)))
    self._values = values
    self._rng = rng
    self._network = network
    self._starts = starts
    self._order = itertools.count()  # of events at the same time
    self._events: list[tuple[float, int, Callable[[float], None]]] = []
    self._hosts = [
        Host(
            _course.Course(
                i, len(values), frozenset() if i in strangers else everyone
            ),
            _reductions.Reductions(i),
        )
        for i in everyone
    ]

  def run(self) -> list[Host]:
    for i in range(len(self._hosts)):
      self._at(self._starts.get(i, 0.0), lambda now, i=i: self._begin(i, now))
    while self._events:
      now, _, event = heapq.heappop(self._events)
      event(now)
    return self._hosts

  def _at(self, when: float, event: Callable[[float], None]) -> None:
    heapq.heappush(self._events, (when, next(self._order), event))

  def _begin(self, i: int, now: float) -> None:
    host = self._hosts[i]
    host.has_begun = True
    host.reductions.start(_KEY, self._values[i])
    self._advance(i, now)
    self._at(now + self._network.patience, lambda now: self._grow_tired(i, now))

  def _grow_tired(self, i: int, now: float) -> None:
    if self._hosts[i].ended_at is None:
      self._hosts[i].course.tell_everyone()
      self._advance(i, now)

  def _advance(self, i: int, now: float) -> None:
    host = self._hosts[i]
    if not host.has_begun or host.ended_at is not None:
      return
    heard = host.reductions.heard(_KEY)
    for message in host.course.advance(heard):
      if message.to is None:
        receivers = [j for j in range(len(self._hosts)) if j != i]
      else:
        receivers = [message.to]
      for receiver in receivers:
        self._send(i, receiver, message, now)
    if not host.course.missing(heard):
      host.ended_at = now
      host.result = host.reductions.result(_KEY)

  def _send(self, i, receiver, message, now):
    host, network = self._hosts[i], self._network
    host.num_sent += 1
    host.busy_until = max(host.busy_until, now) + network.work
    if self._rng.uniform(0, 100) < network.percent_lost:
      self._at(
          host.busy_until + network.retry,
          lambda now: self._send(i, receiver, message, now),
      )
      return
    self._at(
        host.busy_until
        + self._rng.uniform(network.min_delay, network.max_delay),
        lambda now: self._arrive(i, receiver, message, now),
    )

  def _arrive(self, sender, i, message, now):
    host = self._hosts[i]
    host.num_received += 1
    host.busy_until = max(host.busy_until, now) + self._network.work
    self._at(
        host.busy_until, lambda now: self._receive(sender, i, message, now)
    )

  def _receive(self, sender, i, message, now):
    self._hosts[i].reductions.receive(
        _KEY, sender, message.value, message.round_number
    )
    self._advance(i, now)
