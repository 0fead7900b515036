# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The nodes of a job of jax.distributed, whose processes find each other.

They know JAX's coordination service, by which each says where it listens.
"""

from __future__ import annotations

import itertools
import os
import secrets

import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _addresses
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node

# Of the nodes that this process has made.
_numbers = itertools.count()


def make_node(
    *,
    timeouts: minibatching_node.Timeouts = minibatching_node.Timeouts(),
    secret: str | bytes | None = None,
) -> minibatching_node.MinibatchingNode:
  """The node of this process; all processes of the job call it in one order.

  Waits until all have. The node of the only process reduces with nobody.

  Args:
    timeouts: as of MinibatchingNode; processes are waited for as for a call.
    secret: what all processes know, and nobody else; default: the environment
      variable JTE_ALL_REDUCE_SECRET, or else one that process 0 makes, which
      whoever can ask JAX's coordination service can know.

  Raises:
    RuntimeError: there are several processes, and no jax.distributed.
    TimeoutError: a process did not call it in time.
    As MinibatchingNode.
  """
  index, count = jax_private.place_in_job()
  if count == 1:
    if jax.process_count() > 1:
      raise RuntimeError(
          f"This is one of {jax.process_count()} processes, which find each"
          " other by jax.distributed: call jax.distributed.initialize() first,"
          " or get_all_reduce_interface with their addresses."
      )
    return minibatching_node.MinibatchingNode(0, 1, [], 0)
  keys = f"jax_tpu_embedding/all_reduce/{next(_numbers)}"
  secret = secret or os.environ.get(minibatching_node.SECRET_VARIABLE)
  if index == 0 and not secret:
    jax_private.tell_job(f"{keys}/secret", secrets.token_hex(32))
  coordinator = jax_private.coordinator_of_job()
  facing = _addresses.facing([coordinator])
  host, listen_addresses = facing[0], facing
  name = _addresses.host_of(coordinator)
  is_beside_coordinator = index == 0 or _addresses.are_loopback([host])
  if is_beside_coordinator and not _addresses.is_loopback_by_name(name):
    # The others know this machine by that name, which may be a loopback address
    # on this machine alone (Debian's 127.0.1.1).
    host, listen_addresses = name, ["::"]
  elif index == 0:
    host = name

  def ask(process: int, what: str) -> str:
    try:
      return jax_private.ask_job(f"{keys}/{what}", timeouts.call_seconds)
    except TimeoutError as error:
      raise TimeoutError(
          f"Process {process} of {count} does not want to agree with this one,"
          f" which is {index}: it has made no node in {timeouts.call_seconds}"
          " s. All processes start their input pipelines, and call"
          " all_reduce_interface_of_job, equally often and in one order."
      ) from error

  def peer_addresses(port: int) -> list[str]:
    own = _addresses.as_target(host, port)
    jax_private.tell_job(f"{keys}/address_of/{index}", own)
    return [ask(i, f"address_of/{i}") for i in range(count) if i != index]

  return minibatching_node.MinibatchingNode(
      index,
      count,
      peer_addresses,
      0,
      timeouts=timeouts,
      listen_addresses=listen_addresses,
      secret=secret or ask(0, "secret"),
  )


def all_reduce_interface_of_job(
    *,
    timeouts: minibatching_node.Timeouts = minibatching_node.Timeouts(),
    secret: str | bytes | None = None,
) -> converter.AllReduceInterface:
  """The `all_reduce_interface` of this process in a job of jax.distributed.

  As get_all_reduce_interface, without addresses and ports: the processes tell
  each other. All of them call it, in one order with other such calls; it waits
  until they have. A job of one process needs neither jax.distributed nor grpcio.

  Args:
    timeouts: how long to wait for the others.
    secret: what all processes know; default: the environment variable
      JTE_ALL_REDUCE_SECRET, or else one that process 0 makes, which whoever can
      ask JAX's coordination service can know.

  Raises:
    RuntimeError: there are several processes, and no jax.distributed.
    TimeoutError: a process did not call it in time.
    ImportError: without grpcio, if there are several processes.
  """
  node = make_node(timeouts=timeouts, secret=secret)
  return node.get_all_reduce_interface()
