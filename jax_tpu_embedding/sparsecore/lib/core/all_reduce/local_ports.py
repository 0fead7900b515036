# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Ports for tests in which hosts are threads or processes of one machine."""

from __future__ import annotations

import contextlib
import socket


def free(n: int) -> list[int]:
  """n different ports that nobody listens on."""
  with contextlib.ExitStack() as sockets:
    held = [sockets.enter_context(socket.socket()) for _ in range(n)]
    for each in held:
      each.bind(("localhost", 0))
    return [each.getsockname()[1] for each in held]
