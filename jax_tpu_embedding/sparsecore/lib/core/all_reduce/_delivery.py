# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How a host's contribution reaches the others. Needs grpcio."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import grpc
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _authentication
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _server
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _timeouts
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import all_reduce_pb2

# How often a contribution is repeated to a host that has not sent its own. The
# receiver ignores it; that it answers shows that it lives.
_PROBE_SECONDS = 1.0
_RETRY_SECONDS = 0.2

_CHANNEL_OPTIONS = (
    # Hosts of a job talk to each other directly.
    ("grpc.enable_http_proxy", 0),
    # Every node has connections, and news of lost ones, of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # How soon a host that starts late is noticed.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class PeerGoneError(RuntimeError):
  """The peer cannot be reached any more, or does not answer."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A call under way, or its answer."""

  metadata: tuple[tuple[str, str], ...]
  future: grpc.Future


class Peer:
  """Another host, reached at `address`."""

  def __init__(
      self,
      address: str,
      authentication: _authentication.Authentication,
      credentials: grpc.ChannelCredentials | None,
  ):
    self.address = address
    # Whether it was ever there. If not, it may still be starting.
    self.has_answered = False
    # What it says of itself, once it has.
    self.identity: _identity.Identity | None = None
    self._authentication = authentication
    self._channel = (
        grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        if credentials is None
        else grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
    )
    self._contribute = self._channel.unary_unary(
        f"/{_server.SERVICE}/{_server.METHOD}",
        all_reduce_pb2.AllReduceData.SerializeToString,
        all_reduce_pb2.AllReduceResponse.FromString,
    )

  def send(self, data: all_reduce_pb2.AllReduceData, seconds: float) -> Call:
    metadata = self._authentication.call(
        None if self.identity is None else self.identity.instance_id,
        _server.contribution_of(data),
    )
    return Call(
        metadata=metadata,
        future=self._contribute.future(
            data, timeout=seconds, metadata=metadata
        ),
    )

  def read_identity(self, call: Call) -> _identity.Identity | None:
    """Who answered; raises RefusedError if that is not known for sure."""
    return self._authentication.read_answer(
        call.metadata, call.future.trailing_metadata() or ()
    )

  def close(self) -> None:
    self._channel.close()


class Delivery:
  """One contribution on its way to one peer.

  `advance` is called from time to time, and `notify` asks for it.
  """

  def __init__(
      self,
      peer: Peer,
      data: all_reduce_pb2.AllReduceData,
      roster: _identity.Roster,
      timeouts: _timeouts.Timeouts,
      notify: Callable[[], None],
  ):
    self.peer = peer
    self.is_delivered = False
    self._data = data
    self._roster = roster
    self._timeouts = timeouts
    self._notify = notify
    self._call: Call | None = None
    self._next_call_at = 0.0
    # When to stop trying, if the peer cannot be reached now.
    self._give_up_at: float | None = None

  def advance(self, now: float, peer_is_missing: bool) -> None:
    """Takes the answer of the peer, and calls it if it is time to.

    Args:
      now: of time.monotonic().
      peer_is_missing: whether its own contribution is yet to come.

    Raises:
      PeerGoneError: if the peer is gone or does not answer.
      RuntimeError: if it refuses the contribution or is not who it was.
    """
    if self._call is not None and self._call.future.done():
      call, self._call = self._call, None
      self._take_answer(call, now)
    is_due = now >= self._next_call_at
    is_wanted = not self.is_delivered or peer_is_missing
    if self._call is None and is_due and is_wanted:
      self._call = self.peer.send(self._data, self._timeouts.call_seconds)
      self._call.future.add_done_callback(lambda _: self._notify())

  def cancel(self) -> None:
    if self._call is not None:
      self._call.future.cancel()

  def _take_answer(self, call: Call, now: float) -> None:
    peer, code = self.peer, call.future.code()
    if code in _server.CODES:
      try:
        identity = peer.read_identity(call)
      except _authentication.RefusedError as error:
        raise RuntimeError(
            f"The answer of the host at {peer.address} is not of this job:"
            f" {error} Give all hosts the same secret, and see that"
            " peer_addresses lists them."
        ) from error
      self._roster.admit(identity, seen_at=peer.address, address=peer.address)
      if identity is not None:
        peer.identity = identity
    if code == _server.UNKNOWN_RECEIVER:
      return  # Now that the process is known, the call is made again.
    if code == grpc.StatusCode.OK:
      peer.has_answered = True
      self.is_delivered = True
      self._next_call_at = now + _PROBE_SECONDS
      self._give_up_at = None
      return
    if code == grpc.StatusCode.UNAVAILABLE:
      self._give_up_at = self._give_up_at or now + (
          self._timeouts.reconnect_seconds
          if peer.has_answered
          else self._timeouts.call_seconds
      )
      if now < self._give_up_at:
        self._next_call_at = now + _RETRY_SECONDS
        return
    raise self._error(call.future, code)

  def _error(self, call: grpc.Future, code: grpc.StatusCode) -> RuntimeError:
    peer, seconds = self.peer, f"{self._timeouts.call_seconds:g} seconds"
    what = f"Reduction with sync_key {self._data.sync_key}: the host at"
    details = f" ({code.name}: {call.details()})"
    if code not in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ):
      return RuntimeError(
          f"{what} {peer.address} refused this host's contribution{details}."
      )
    if not peer.has_answered:
      return PeerGoneError(
          f"{what} {peer.address} did not come up within {seconds}{details}."
          " Check that its process runs, that peer_addresses has its address"
          " and minibatching_port, and that no firewall is between."
      )
    if code == grpc.StatusCode.UNAVAILABLE:
      return PeerGoneError(
          f"{what} {peer.address} is gone{details}. See why its process ended,"
          " and restart all hosts."
      )
    return PeerGoneError(
        f"{what} {peer.address} did not answer within {seconds}{details}. See"
        " whether it hangs, and restart all hosts."
    )
