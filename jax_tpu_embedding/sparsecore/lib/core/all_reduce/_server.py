# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How a host hears from the others. Needs grpcio."""

from __future__ import annotations

from concurrent import futures

import grpc
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _reductions
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import all_reduce_pb2

SERVICE = "jax_sc_embedding.AllReduceGrpcService"
METHOD = "ContributeData"

# Calls only store a value: more threads would not help.
_NUM_THREADS = 2


class Server:
  """Receives contributions until it is closed.

  Args:
    port: on all interfaces; 0 for any free one.
    own: what callers are told of this host.
    roster: checks callers; used under the lock of `reductions`.
    reductions: takes the contributions.

  Raises:
    RuntimeError: if the port cannot be had.
  """

  def __init__(
      self,
      port: int,
      own: _identity.Identity,
      roster: _identity.Roster,
      reductions: _reductions.Reductions,
  ):
    self._own = own
    self._roster = roster
    self._reductions = reductions
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
    self.port = self._bind(port)
    self._server.start()

  def close(self) -> None:
    # Hosts whose calls are under way get their answers. The wait is limited,
    # because a garbage collector may close a node on a thread of its server.
    self._server.stop(grace=1).wait(timeout=2)
    self._threads.shutdown(wait=False)

  def _bind(self, port: int) -> int:
    # The first one takes IPv4 as well; a machine may have no IPv6.
    for interface in ("[::]", "0.0.0.0"):
      try:
        bound = self._server.add_insecure_port(f"{interface}:{port}")
      except RuntimeError:
        continue
      if bound:  # older releases of grpcio return 0 instead of raising
        return bound
    raise RuntimeError(
        f"Cannot listen on port {port}: another process has it, or it needs"
        " privileges. Pass a free port as minibatching_port."
    )

  def _contribute(
      self, data: all_reduce_pb2.AllReduceData, context: grpc.ServicerContext
  ) -> all_reduce_pb2.AllReduceResponse:
    context.set_trailing_metadata(self._own.to_metadata())
    field = data.WhichOneof("value")
    if data.src_rank == self._own.task_id or not (
        0 <= data.src_rank < self._own.num_tasks
    ):
      context.abort(
          grpc.StatusCode.INVALID_ARGUMENT,
          f"src_rank {data.src_rank} is not another host of host"
          f" {self._own.task_id}, which expects {self._own.num_tasks} hosts.",
      )
    if field is None:
      context.abort(
          grpc.StatusCode.INVALID_ARGUMENT,
          f"No value for sync_key {data.sync_key}.",
      )
    caller = _identity.Identity.from_metadata(context.invocation_metadata())
    try:
      with self._reductions.changed:
        self._admit(caller, context.peer())
        self._reductions.receive(
            data.sync_key, data.src_rank, getattr(data, field)
        )
    except RuntimeError as error:
      context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    return all_reduce_pb2.AllReduceResponse()

  def _admit(self, caller: _identity.Identity | None, seen_at: str) -> None:
    try:
      self._roster.admit(caller, seen_at=seen_at)
    except RuntimeError as error:
      # The host that the caller stands for will not contribute any more.
      self._reductions.fail(str(error))
      raise
