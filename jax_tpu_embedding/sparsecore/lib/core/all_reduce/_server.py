# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How a host hears from the others. Needs grpcio."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from typing import NoReturn

from absl import logging
import grpc
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _addresses
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _authentication
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import all_reduce_pb2

SERVICE = "jax_sc_embedding.AllReduceGrpcService"
METHOD = "ContributeData"

# The answer to a call that names no process, or another one.
UNKNOWN_RECEIVER = grpc.StatusCode.ABORTED
# Answers that say who gives them.
CODES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    UNKNOWN_RECEIVER,
)

# Calls only store a value: more threads would not help.
_NUM_THREADS = 2
# A stranger may call as often as it likes.
_SECONDS_BETWEEN_WARNINGS = 10


def contribution_of(
    data: all_reduce_pb2.AllReduceData,
) -> _authentication.Contribution:
  """All that a message says."""
  field = data.WhichOneof("value")
  value = None if field is None else getattr(data, field)
  return data.sync_key, data.src_rank, field, value, data.round_number


class Server:
  """Receives contributions until it is closed.

  Whoever is not a host of the job is refused, and changes nothing here.

  Args:
    addresses: where to listen.
    port: at each address; 0 for any free one.
    own: what callers are told of this host.
    roster: checks callers; used under the lock of `reductions`.
    reductions: takes the contributions.
    authentication: tells calls of the job from others.
    credentials: for TLS, if that is wanted.

  Raises:
    RuntimeError: if the port cannot be had.
  """

  def __init__(
      self,
      addresses: Sequence[str],
      port: int,
      own: _identity.Identity,
      roster: _identity.Roster,
      reductions: _reductions.Reductions,
      authentication: _authentication.Authentication,
      credentials: grpc.ServerCredentials | None,
  ):
    self._own = own
    self._roster = roster
    self._reductions = reductions
    self._authentication = authentication
    self._threads = futures.ThreadPoolExecutor(
        _NUM_THREADS, thread_name_prefix="all_reduce"
    )
    self._server = grpc.server(
        self._threads,
        handlers=[
            grpc.method_handlers_generic_handler(
                SERVICE,
                {
                    METHOD: grpc.unary_unary_rpc_method_handler(
                        self._contribute,
                        all_reduce_pb2.AllReduceData.FromString,
                        all_reduce_pb2.AllReduceResponse.SerializeToString,
                    )
                },
            )
        ],
        # Otherwise two servers may share a port, each getting some of the calls.
        options=[("grpc.so_reuseport", 0)],
    )
    self.port = port
    for address in addresses:
      self.port = self._bind(address, self.port, credentials)
    self._server.start()

  def close(self) -> None:
    # Hosts whose calls are under way get their answers. The wait is limited,
    # because a garbage collector may close a node on a thread of its server.
    self._server.stop(grace=1).wait(timeout=2)
    self._threads.shutdown(wait=False)

  def _bind(
      self,
      address: str,
      port: int,
      credentials: grpc.ServerCredentials | None,
  ) -> int:
    target = _addresses.as_target(address, port)
    try:
      bound = (
          self._server.add_insecure_port(target)
          if credentials is None
          else self._server.add_secure_port(target, credentials)
      )
    except RuntimeError:
      bound = 0
    if not bound:  # older releases of grpcio do not raise
      raise RuntimeError(
          f"Cannot listen on port {port} of {address}: another process has it,"
          " it needs privileges, or the address is not one of this machine."
          " Pass a free port as minibatching_port."
      )
    return bound

  def _contribute(
      self, data: all_reduce_pb2.AllReduceData, context: grpc.ServicerContext
  ) -> all_reduce_pb2.AllReduceResponse:
    metadata = context.invocation_metadata()
    try:
      caller = self._authentication.read_call(metadata, contribution_of(data))
    except _authentication.RefusedError as error:
      self._refuse(
          context,
          grpc.StatusCode.UNAUTHENTICATED,
          f"{error} Give all hosts the same secret.",
      )
    except _authentication.UnknownReceiverError as error:
      context.set_trailing_metadata(self._authentication.answer(metadata))
      context.abort(UNKNOWN_RECEIVER, str(error))
    context.set_trailing_metadata(self._authentication.answer(metadata))
    field = data.WhichOneof("value")
    if data.src_rank == self._own.task_id or not (
        0 <= data.src_rank < self._own.num_tasks
    ):
      self._refuse(
          context,
          grpc.StatusCode.INVALID_ARGUMENT,
          f"src_rank {data.src_rank} is not another host of host"
          f" {self._own.task_id}, which expects {self._own.num_tasks} hosts.",
      )
    if field is None:
      self._refuse(
          context,
          grpc.StatusCode.INVALID_ARGUMENT,
          f"No value for sync_key {data.sync_key}.",
      )
    if not 0 <= data.round_number < self._own.num_tasks:
      self._refuse(
          context,
          grpc.StatusCode.INVALID_ARGUMENT,
          f"round_number {data.round_number} of sync_key {data.sync_key}, of"
          f" {self._own.num_tasks} hosts.",
      )
    try:
      with self._reductions.changed:
        # A host that does not fit is told. This one finds it out, if the host
        # is at an address of its peers, when it calls there.
        self._roster.admit(caller, seen_at=context.peer())
        if caller is not None and caller.task_id != data.src_rank:
          raise RuntimeError(
              f"Host {caller.task_id} contributes as host {data.src_rank}."
          )
        self._reductions.receive(
            data.sync_key,
            data.src_rank,
            getattr(data, field),
            data.round_number,
        )
    except RuntimeError as error:
      self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
    return all_reduce_pb2.AllReduceResponse()

  def _refuse(
      self,
      context: grpc.ServicerContext,
      code: grpc.StatusCode,
      reason: str,
  ) -> NoReturn:
    logging.log_every_n_seconds(
        logging.WARNING,
        "Host %d refused a call of %s: %s",
        _SECONDS_BETWEEN_WARNINGS,
        self._own.task_id,
        context.peer(),
        reason,
    )
    context.abort(code, reason)
