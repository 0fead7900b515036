# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Who the hosts of a reduction are, and whether they fit together."""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import uuid

# To be raised when hosts of two releases must not reduce with each other.
PROTOCOL_VERSION = 2


# Of the metadata, in this order.
KEYS = (
    "jte-protocol-version",
    "jte-task-id",
    "jte-num-tasks",
    "jte-instance-id",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
  """One host, for as long as its node lives.

  It travels as metadata of calls and of their answers, so that the messages
  stay those of the wire format. Hosts of another implementation send none, and
  go unchecked.
  """

  # The host's rank, in [0, num_tasks).
  task_id: int
  # How many hosts it expects.
  num_tasks: int
  # Tells a host from the one that had its place before it restarted.
  instance_id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
  protocol_version: int = dataclasses.field(
      default_factory=lambda: PROTOCOL_VERSION
  )

  def to_metadata(self) -> tuple[tuple[str, str], ...]:
    values = (
        self.protocol_version,
        self.task_id,
        self.num_tasks,
        self.instance_id,
    )
    return tuple(zip(KEYS, map(str, values), strict=True))

  @classmethod
  def from_metadata(
      cls, metadata: Iterable[tuple[str, str]] | None
  ) -> Identity | None:
    """The identity in a call's metadata, or None if it has none.

    Raises:
      ValueError: if it has one with numbers that are none.
    """
    received = dict(metadata or ())
    if "jte-protocol-version" not in received:
      return None
    # Another version may say other things of itself: its number is enough.
    return cls(
        protocol_version=int(received["jte-protocol-version"]),
        task_id=int(received.get("jte-task-id", -1)),
        num_tasks=int(received.get("jte-num-tasks", -1)),
        instance_id=received.get("jte-instance-id", ""),
    )


class Roster:
  """The hosts that one host has met. Not synchronized."""

  def __init__(self, own: Identity):
    self._own = own
    self._instances: dict[int, str] = {}
    self._addresses: dict[int, str] = {}

  def admit(
      self,
      host: Identity | None,
      *,
      seen_at: str,
      address: str | None = None,
  ) -> None:
    """Checks a host that called, or remembers one that answered.

    Anybody can call, but who answers is where the user said that a host is: only
    that one decides which process has a place.

    Args:
      host: what it says of itself, if it does.
      seen_at: where the call or answer came from.
      address: the one of this host's peer addresses that led to it, if it
        answered.

    Raises:
      RuntimeError: if the two cannot reduce with each other.
    """
    if host is None:
      return
    own = self._own
    if host.protocol_version != own.protocol_version:
      raise RuntimeError(
          f"The host at {seen_at} speaks version {host.protocol_version} of the"
          f" all-reduce protocol, this host version {own.protocol_version}."
          " Install the same release of jax_tpu_embedding on all hosts."
      )
    if host.num_tasks != own.num_tasks:
      raise RuntimeError(
          f"The host at {seen_at} (task_id {host.task_id}) expects"
          f" {host.num_tasks} hosts, this host {own.num_tasks}. Give all hosts"
          " the same num_tasks."
      )
    if host.task_id == own.task_id:
      who = (
          "is this host itself"
          if host.instance_id == own.instance_id
          else "has the same task_id"
      )
      raise RuntimeError(
          f"The host at {seen_at} {who}: task_id {own.task_id}."
          " peer_addresses lists the other hosts, each with a task_id of its"
          " own."
      )
    instance = self._instances.get(host.task_id, host.instance_id)
    if instance != host.instance_id:
      raise RuntimeError(
          f"Host {host.task_id} at {seen_at} is not the process that had this"
          " task_id before: it restarted, or two hosts have the same task_id."
          " Restart all hosts."
      )
    if address is not None:
      self._instances[host.task_id] = host.instance_id
      known = self._addresses.setdefault(host.task_id, address)
      if known != address:
        raise RuntimeError(
            f"The peer addresses {known} and {address} lead to the same host,"
            f" with task_id {host.task_id}. List each other host once."
        )

  def describe(self, task_id: int) -> str:
    """How errors call a host."""
    address = self._addresses.get(task_id)
    return f"host {task_id} at {address}" if address else f"host {task_id}"
