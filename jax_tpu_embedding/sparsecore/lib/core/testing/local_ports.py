# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Ports for tests in which hosts are threads or processes of one machine."""

from __future__ import annotations

import contextlib
import errno
import socket


def free(n: int) -> list[int]:
  """n different ports that nobody listens on, by IPv4 or IPv6."""
  ports = []
  with contextlib.ExitStack() as sockets:
    while len(ports) < n:
      held = sockets.enter_context(socket.socket())
      held.bind(("127.0.0.1", 0))
      port = held.getsockname()[1]
      if not _is_taken("::1", port):
        ports.append(port)
  return ports


def _is_taken(address: str, port: int) -> bool:
  try:
    with socket.socket(socket.AF_INET6) as held:
      held.bind((address, port))
  except OSError as error:
    return error.errno == errno.EADDRINUSE  # and not that there is no IPv6
  return False
