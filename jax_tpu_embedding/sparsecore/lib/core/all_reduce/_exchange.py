# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How one reduction runs: this host's value out, those of the others in.

Needs grpcio.
"""

from __future__ import annotations

from collections.abc import Sequence
import time

from absl import logging
import grpc
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _authentication
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _course
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _delivery
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _timeouts
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import all_reduce_pb2

# How long hosts talk in rounds before they tell everyone: then it shows which
# of them are late, or gone.
_PATIENCE_SECONDS = 1.0
# How often a waiting host looks at the clock.
_TICK_SECONDS = 0.1
# How often it says what it is waiting for.
_WARNING_SECONDS = 60.0


class Exchange:
  """This host's side of all reductions."""

  def __init__(
      self,
      peer_addresses: Sequence[str],
      own: _identity.Identity,
      roster: _identity.Roster,
      reductions: _reductions.Reductions,
      timeouts: _timeouts.Timeouts,
      authentication: _authentication.Authentication,
      credentials: grpc.ChannelCredentials | None,
  ):
    self._own = own
    self._roster = roster
    self._reductions = reductions
    self._timeouts = timeouts
    self._peers = [
        _delivery.Peer(address, authentication, credentials)
        for address in peer_addresses
    ]

  def close(self) -> None:
    for peer in self._peers:
      peer.close()

  def run(self, sync_key: int) -> bool | int:
    """The OR of all hosts' values of a reduction that has been started.

    Returns when this host knows of every contribution, and whom it was to tell
    has been told or is gone.

    Raises:
      RuntimeError: if that cannot happen any more, or not in time.
    """
    reductions = self._reductions
    deliveries: list[_delivery.Delivery] = []
    started = last_warning = time.monotonic()
    try:
      with reductions.changed:
        peers = self._peers_by_task_id()
        course = _course.Course(
            self._own.task_id, self._own.num_tasks, peers.keys()
        )
        while True:
          reductions.raise_if_failed()
          now = time.monotonic()
          heard = reductions.heard(sync_key)
          for message in course.advance(heard):
            receivers = (
                self._peers if message.to is None else [peers[message.to]]
            )
            deliveries += self._deliveries(sync_key, message, receivers)
          missing = course.missing(heard)
          if self._advance(deliveries, now, missing) and not missing:
            return reductions.result(sync_key)
          waited = now - started
          if missing and waited > _PATIENCE_SECONDS:
            course.tell_everyone()
          if waited > self._timeouts.reduction_seconds:
            raise RuntimeError(
                self._describe_wait(sync_key, missing, deliveries, waited)
            )
          if now - last_warning > _WARNING_SECONDS:
            last_warning = now
            logging.warning(
                self._describe_wait(sync_key, missing, deliveries, waited)
            )
          reductions.changed.wait(_TICK_SECONDS)
    finally:
      for delivery in deliveries:
        delivery.cancel()

  def _peers_by_task_id(self) -> dict[int, _delivery.Peer]:
    """Those that have said who they are."""
    return {
        peer.identity.task_id: peer
        for peer in self._peers
        if peer.identity is not None
    }

  def _deliveries(
      self,
      sync_key: int,
      message: _course.Message,
      receivers: Sequence[_delivery.Peer],
  ) -> list[_delivery.Delivery]:
    field = "bool_val" if isinstance(message.value, bool) else "uint64_val"
    data = all_reduce_pb2.AllReduceData(
        sync_key=sync_key,
        src_rank=self._own.task_id,
        round_number=message.round_number,
        **{field: message.value},
    )
    return [
        _delivery.Delivery(
            peer, data, self._roster, self._timeouts, self._reductions.wake
        )
        for peer in receivers
    ]

  def _advance(
      self,
      deliveries: list[_delivery.Delivery],
      now: float,
      missing: list[int],
  ) -> bool:
    """Moves every delivery on; returns whether all have arrived."""
    all_delivered = True
    for delivery in deliveries:
      identity = delivery.peer.identity
      try:
        delivery.advance(
            now,
            peer_is_missing=identity is not None
            and identity.task_id in missing,
        )
      except _delivery.PeerGoneError:
        # A host that goes after the last contribution takes nothing from this
        # reduction. The next one will miss it.
        if missing or not delivery.peer.has_answered:
          raise
      else:
        all_delivered = all_delivered and delivery.is_delivered
    return all_delivered

  def _describe_wait(
      self,
      sync_key: int,
      missing: list[int],
      deliveries: list[_delivery.Delivery],
      seconds: float,
  ) -> str:
    lacking = [
        f"no contribution of {self._roster.describe(task_id)}"
        for task_id in missing
    ] + [
        f"no answer of {delivery.peer.address}"
        for delivery in deliveries
        if not delivery.is_delivered
    ]
    return (
        f"Reduction with sync_key {sync_key}: {', '.join(lacking)} after"
        f" {seconds:.1f} seconds. See whether these hosts run, and convert the"
        " same batches with the same batch_number and enable_minibatching."
    )
