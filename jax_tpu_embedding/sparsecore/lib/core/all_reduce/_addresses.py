# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where a host listens: at the addresses at which its peers reach it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import ipaddress
import socket

_LOOPBACK = ("127.0.0.1", "::1")


def facing(peer_addresses: Sequence[str]) -> list[str]:
  """The addresses of this host from which its peers can be reached.

  Peers on other machines are reached from an address of a network that they are
  in, or can reach; peers on this machine from the address that they have. A
  peer whose name is not known yet may be anywhere: for it, the addresses of
  this host's own name count.

  Args:
    peer_addresses: "host:port" of each peer.

  Raises:
    RuntimeError: if none is found.
  """
  found = {}  # in order
  for peer in peer_addresses:
    sources = _sources_towards(peer) or _addresses_of(socket.gethostname())
    found |= dict.fromkeys(sources)
  if not found:
    raise RuntimeError(
        "Cannot tell at which address the peers"
        f" {', '.join(peer_addresses)} reach this host. Pass listen_addresses."
    )
  return list(found)


def are_loopback(addresses: Iterable[str]) -> bool:
  """Whether only processes of this machine reach all of the addresses."""
  return all(
      any(ipaddress.ip_address(ip).is_loopback for ip in _addresses_of(address))
      for address in addresses
  )


def is_loopback_by_name(host: str) -> bool:
  """Whether a name or an address is one of loopback on every machine."""
  try:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
  except ValueError:  # a name
    return False


def as_target(address: str, port: int) -> str:
  """As gRPC wants it."""
  return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_of(target: str) -> str:
  """The address or name in "host:port"."""
  return target.rpartition(":")[0].strip("[]")


def _sources_towards(peer: str) -> list[str]:
  sources = []
  for address in _addresses_of(host_of(peer)):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
      with socket.socket(family, socket.SOCK_DGRAM) as udp:
        udp.connect((address, 9))  # sends nothing; any port will do
        sources.append(udp.getsockname()[0])
    except OSError:  # no route, or no IPv6
      continue
  return sources


def _addresses_of(host: str) -> list[str]:
  """The IP addresses of a name; none if it is unknown."""
  if host == "localhost":
    # A system may know one of them only, and gRPC tries both (RFC 6761, 6.3).
    return list(_LOOPBACK)
  try:
    infos = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)
  except OSError:
    return []
  return list(dict.fromkeys(info[4][0] for info in infos))
