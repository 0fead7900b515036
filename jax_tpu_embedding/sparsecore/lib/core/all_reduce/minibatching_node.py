# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The reduction between the processes of a job, over gRPC.

Each process makes a MinibatchingNode, which listens to the others and calls
them, and passes its interface to every preprocessing call. Only nodes with
peers need grpcio, and only when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import importlib
import numbers
import operator
import os
import types
from typing import Any
import weakref

from absl import logging
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _addresses
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _authentication
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _timeouts
import numpy as np

Timeouts = _timeouts.Timeouts

# Where the secret of a job is, unless it is an argument.
SECRET_VARIABLE = "JTE_ALL_REDUCE_SECRET"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificates:
  """What a host shows its peers, and what it believes of them: TLS both ways.

  The names of peer_addresses must be in the peers' certificates.
  """

  # PEM: who signs the certificates of the job.
  root: bytes
  # PEM: this host's certificate, with those between it and the root.
  chain: bytes
  # PEM: the private key of the certificate.
  key: bytes = dataclasses.field(repr=False)


class MinibatchingNode:
  """One host among those that reduce with each other.

  Waits for peers that are not up yet. Once a reduction has failed, every later
  one fails as well, here and on the peers, which are told: make new nodes on
  all hosts. Threads may share a node. A forked process must make its own.

  Is a context manager; otherwise it closes when neither it nor any of its
  interfaces is in use any more.
  """

  def __init__(
      self,
      task_id: int,
      num_tasks: int,
      peer_addresses: Sequence[str] | Callable[[int], Sequence[str]],
      port: int,
      /,
      *,
      timeouts: Timeouts = Timeouts(),
      listen_addresses: Sequence[str] | None = None,
      secret: str | bytes | None = None,
      certificates: Certificates | None = None,
  ):
    """Starts to listen. Waits for nobody, unless peer_addresses does.

    Args:
      task_id: this host's rank, in [0, num_tasks).
      num_tasks: the number of hosts.
      peer_addresses: "host:port" of each other host, in any order; or what
        finds them out, called with the port where this host listens.
      port: where to listen; 0 for any free port.
      timeouts: how long to wait for the others.
      listen_addresses: the addresses of this host where it listens, "0.0.0.0"
        for all. Default: those from which it reaches its peers, if it is given
        their addresses.
      secret: what all hosts of the job know, and nobody else; 16 bytes or more.
        Default: the environment variable JTE_ALL_REDUCE_SECRET. Without one,
        whoever reaches the port can end the job's steps, or change them.
      certificates: for TLS.

    Raises:
      ValueError, TypeError: for arguments that do not fit together.
      ImportError: without grpcio, if there are peers.
      RuntimeError: if the port cannot be had.
      What peer_addresses raises.
    """
    _check_arguments(task_id, num_tasks, port)
    if not callable(peer_addresses):
      _check_peers(peer_addresses, num_tasks)
    elif listen_addresses is None:
      raise ValueError(
          "listen_addresses must be given where peer_addresses is a function,"
          " which is called when this host listens."
      )
    own = _identity.Identity(task_id=task_id, num_tasks=num_tasks)
    roster = _identity.Roster(own)
    self._reductions = _reductions.Reductions(task_id)
    self._exchange = None
    self._port = port
    resources = []
    if num_tasks > 1:
      if listen_addresses is None:
        listen_addresses = _addresses.facing(peer_addresses)
      if secret is None:
        secret = os.environ.get(SECRET_VARIABLE)
      if secret is not None:
        authentication = _authentication.BySecret(secret, own)
      else:
        authentication = _authentication.Trusting(own)
        if certificates is None:
          _warn_unless_loopback(listen_addresses)
      of_server, of_channels = _credentials(certificates)
      server = _import_over_grpc("_server").Server(
          listen_addresses,
          port,
          own,
          roster,
          self._reductions,
          authentication,
          of_server,
      )
      self._port = server.port
      if callable(peer_addresses):
        try:
          peer_addresses = peer_addresses(self._port)
          _check_peers(peer_addresses, num_tasks)
        except BaseException:
          server.close()
          raise
      self._exchange = _import_over_grpc("_exchange").Exchange(
          peer_addresses,
          own,
          roster,
          self._reductions,
          timeouts,
          authentication,
          of_channels,
      )
      resources = [server, self._exchange]
    self._close = weakref.finalize(
        self, _close, task_id, self._reductions, resources
    )

  @property
  def port(self) -> int:
    """Where this node listens, if it has peers."""
    return self._port

  def get_all_reduce_interface(self) -> converter.AllReduceInterface:
    """What preprocessing takes. Keeps this node alive."""
    return _Interface(self)

  def reduce(self, sync_key: int, value: bool | int) -> bool | int:
    """The OR of the values of all hosts, each of which calls this once.

    Args:
      sync_key: names the reduction; of 32 bits, with a sign.
      value: a bool, or an integer of 64 bits, without a sign; the same kind on
        all hosts.

    Raises:
      ValueError, TypeError: for another sync_key or value. No host has heard of
        it: it may be called again.
      RuntimeError: naming the host, if one is gone, does not answer in time,
        restarted or does not fit this one; if `sync_key` was used before.
    """
    sync_key = _checked_integer("sync_key", sync_key, -(2**31), 2**31)
    if isinstance(value, (bool, np.bool_)):
      value = bool(value)
    else:
      value = _checked_integer("value", value, 0, 2**64)
    reductions = self._reductions
    reductions.start(sync_key, value)
    try:
      if self._exchange is None:
        return value
      return self._exchange.run(sync_key)
    except BaseException as error:
      reductions.fail(
          str(error) or f"Reduction with sync_key {sync_key}: interrupted."
      )
      raise
    finally:
      reductions.end(sync_key)

  def close(self) -> None:
    """Stops listening. Peers that still need this host get an error."""
    self._close()

  def __enter__(self) -> MinibatchingNode:
    return self

  def __exit__(self, *unused_exception: Any) -> None:
    self.close()


class _Interface(converter.AllReduceInterface):
  """A node as the converter sees it."""

  def __init__(self, node: MinibatchingNode):
    super().__init__()
    self._node = node

  def any_of(self, sync_key: int, value: bool) -> bool:
    return self._node.reduce(sync_key, value)

  def bitwise_or(self, sync_key: int, value: int) -> int:
    return self._node.reduce(sync_key, value)


def get_all_reduce_interface(
    peer_addresses: Sequence[str],
    minibatching_port: int,
    host_id: int | None = None,
    host_count: int | None = None,
    *,
    timeouts: Timeouts = Timeouts(),
    listen_addresses: Sequence[str] | None = None,
    secret: str | bytes | None = None,
    certificates: Certificates | None = None,
) -> converter.AllReduceInterface:
  """The `all_reduce_interface` of this host, listening until it is dropped.

  Call it once per process and pass the result to every preprocessing call; all
  hosts give their calls the same batch numbers, each once.

  Args:
    peer_addresses: "host:port" of each other host, in any order; [] for one
      host, which neither listens nor needs grpcio.
    minibatching_port: where to listen.
    host_id: this host's rank; default: jax.process_index().
    host_count: the number of hosts; default: jax.process_count().
    timeouts: how long to wait for the others.
    listen_addresses: see MinibatchingNode; so are the following.
    secret: what all hosts of the job know; default: the environment variable
      JTE_ALL_REDUCE_SECRET.
    certificates: for TLS.

  Raises:
    As MinibatchingNode.
  """
  if host_id is None or host_count is None:
    jax = importlib.import_module("jax")  # only hosts that do not say need it
    host_id = jax.process_index() if host_id is None else host_id
    host_count = jax.process_count() if host_count is None else host_count
  return MinibatchingNode(
      host_id,
      host_count,
      peer_addresses,
      minibatching_port,
      timeouts=timeouts,
      listen_addresses=listen_addresses,
      secret=secret,
      certificates=certificates,
  ).get_all_reduce_interface()


def _check_arguments(task_id: int, num_tasks: int, port: int) -> None:
  for name, value in (
      ("task_id", task_id),
      ("num_tasks", num_tasks),
      ("port", port),
  ):
    if not isinstance(value, numbers.Integral):
      raise TypeError(f"{name} must be an integer, got {value!r}.")
  if not 0 <= task_id < num_tasks:
    raise ValueError(
        f"task_id must be in [0, num_tasks), got {task_id} of {num_tasks}."
    )
  if not 0 <= port < 2**16:
    raise ValueError(f"port must be in [0, 65536), got {port}.")


def _checked_integer(name: str, value: Any, least: int, end: int) -> int:
  try:
    integer = operator.index(value)
  except TypeError as error:
    raise TypeError(
        f"{name} of a reduction must be an integer, got {value!r}."
    ) from error
  if not least <= integer < end:
    raise ValueError(
        f"{name} of a reduction must be in [{least}, {end}), got {integer}."
    )
  return integer


def _check_peers(peer_addresses: Sequence[str], num_tasks: int) -> None:
  if isinstance(peer_addresses, str):
    raise TypeError(
        f"peer_addresses must be a list of addresses, got {peer_addresses!r}."
    )
  if len(peer_addresses) != num_tasks - 1:
    raise ValueError(
        "peer_addresses must list every other host once: with num_tasks"
        f" {num_tasks} that is {num_tasks - 1}, got {len(peer_addresses)}:"
        f" {list(peer_addresses)}."
    )
  if len(set(peer_addresses)) != len(peer_addresses):
    raise ValueError(
        f"peer_addresses has an address twice: {list(peer_addresses)}."
    )
  for address in peer_addresses:
    port = address.rpartition(":")[2] if isinstance(address, str) else ""
    if not port.isdecimal() or not 0 < int(port) < 2**16:
      raise ValueError(
          "peer_addresses must be 'host:port' with a port in [1, 65535], got"
          f" {address!r}."
      )


def _warn_unless_loopback(listen_addresses: Sequence[str]) -> None:
  if not _addresses.are_loopback(listen_addresses):
    logging.warning(
        "The all-reduce between hosts listens on %s without a secret: whoever"
        " reaches it can end a step. Set %s to the same secret on all hosts.",
        ", ".join(listen_addresses),
        SECRET_VARIABLE,
    )


def _credentials(certificates: Certificates | None) -> tuple[Any, Any]:
  """Those of gRPC, of the server and of channels."""
  if certificates is None:
    return None, None
  grpc = _import_grpc()
  of_server = grpc.ssl_server_credentials(
      [(certificates.key, certificates.chain)],
      root_certificates=certificates.root,
      require_client_auth=True,
  )
  of_channels = grpc.ssl_channel_credentials(
      certificates.root, certificates.key, certificates.chain
  )
  return of_server, of_channels


def _import_grpc() -> types.ModuleType:
  try:
    return importlib.import_module("grpc")
  except ImportError as error:
    raise ImportError(
        "Reductions between hosts need grpcio. Install it with: pip install"
        " 'jax_tpu_embedding[multihost]'"
    ) from error


def _import_over_grpc(name: str) -> types.ModuleType:
  _import_grpc()
  return importlib.import_module(f"{__name__.rpartition('.')[0]}.{name}")


def _close(
    task_id: int, reductions: _reductions.Reductions, resources: list[Any]
) -> None:
  # First, so that those who call during the rest get a reason.
  reductions.fail(f"The MinibatchingNode of host {task_id} is closed.")
  for resource in resources:
    resource.close()
