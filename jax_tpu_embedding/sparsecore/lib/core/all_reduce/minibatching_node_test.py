# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts as threads; those that are processes are in multi_process_test."""

from concurrent import futures
import contextlib
import gc
import queue
import sys
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import grpc
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _server
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
import numpy as np

MinibatchingNode = minibatching_node.MinibatchingNode

# Long enough to never end a test that passes.
_PATIENT = minibatching_node.Timeouts(
    call_seconds=60, reduction_seconds=60, reconnect_seconds=0.5
)


_METHOD = "/jax_sc_embedding.AllReduceGrpcService/ContributeData"


class _RawPeer(grpc.GenericRpcHandler):
  """Host 1 of 2, as bytes: it answers, and sends what a test tells it to.

  Without metadata it is a host of another implementation.
  """

  def __init__(self, metadata=()):
    self.received = queue.Queue()
    self._metadata = metadata
    self._server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[self])
    self.port = self._server.add_insecure_port("localhost:0")
    self._server.start()

  def service(self, handler_call_details):
    if handler_call_details.method != _METHOD:
      return None

    def contribute(message, context):
      context.set_trailing_metadata(self._metadata)
      self.received.put(message)
      return b""

    return grpc.unary_unary_rpc_method_handler(contribute)

  def send(self, port, message, metadata=None):
    """Returns the status code of the answer."""
    with grpc.insecure_channel(f"localhost:{port}") as channel:
      call = channel.unary_unary(_METHOD).future(
          message, timeout=60, metadata=metadata or self._metadata
      )
      return call.code()

  def stop(self):
    self._server.stop(None).wait()

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    self.stop()


_IDENTITY = _identity.Identity(task_id=1, num_tasks=2).to_metadata()


class MinibatchingNodeTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._nodes = self.enter_context(contextlib.ExitStack())

  def node(self, task_id, ports, *, port=None, timeouts=_PATIENT, **arguments):
    """The node of a host, listening at ports[task_id] unless told otherwise."""
    peers = [f"localhost:{p}" for p in ports[:task_id] + ports[task_id + 1 :]]
    return self._nodes.enter_context(
        MinibatchingNode(
            task_id,
            len(ports),
            peers,
            ports[task_id] if port is None else port,
            timeouts=timeouts,
            **arguments,
        )
    )

  def run_all(self, *calls):
    """Runs calls in threads; returns their results or exceptions."""
    with futures.ThreadPoolExecutor(len(calls)) as threads:
      running = [threads.submit(*call) for call in calls]
      return [call.exception() or call.result() for call in running]

  def assert_each_raises(self, errors, message):
    for error in errors:
      self.assertIsInstance(error, RuntimeError)
      self.assertRegex(str(error), message)

  def test_peers_may_be_found_when_the_port_is_known(self):
    found = queue.Queue()
    (port,) = local_ports.free(1)
    other = self.node(1, [port, 0], port=0)

    def find(own_port):
      found.put(own_port)
      return [f"localhost:{other.port}"]

    host = self._nodes.enter_context(
        MinibatchingNode(0, 2, find, port, listen_addresses=["127.0.0.1"])
    )
    self.assertEqual(found.get(), port)
    self.assertEqual(host.port, port)
    self.assertEqual(
        self.run_all((host.reduce, 0, 1), (other.reduce, 0, 2)), [3, 3]
    )

  def test_who_finds_no_peers_does_not_listen(self):
    (port,) = local_ports.free(1)
    with self.assertRaisesRegex(ValueError, "listen_addresses must be given"):
      MinibatchingNode(0, 2, lambda own_port: [], port)
    for find, error, message in (
        (lambda own_port: [], ValueError, "with num_tasks 2 that is 1, got 0"),
        (lambda own_port: 1 / 0, ZeroDivisionError, ""),
    ):
      with self.assertRaisesRegex(error, message):
        MinibatchingNode(0, 2, find, port, listen_addresses=["127.0.0.1"])
      self.node(0, [port, 1]).close()  # The port is free.

  @parameterized.parameters(1, 2, 4, 6)
  def test_every_host_gets_the_or_of_all(self, n):
    ports = local_ports.free(n)
    hosts = [self.node(i, ports).get_all_reduce_interface() for i in range(n)]
    any_of = self.run_all(*((h.any_of, 0, i == 0) for i, h in enumerate(hosts)))
    self.assertEqual(any_of, [True] * n)
    any_of = self.run_all(*((h.any_of, 2, False) for h in hosts))
    self.assertEqual(any_of, [False] * n)
    bits = self.run_all(
        *((h.bitwise_or, 1, 1 << (63 - i)) for i, h in enumerate(hosts))
    )
    self.assertEqual(bits, [sum(1 << (63 - i) for i in range(n))] * n)

  @parameterized.parameters(2, 5)
  def test_reductions_of_several_threads_overlap(self, n):
    # Of five hosts, some know all others before the others do.
    ports = local_ports.free(n)
    first, *others = [self.node(i, ports) for i in range(n)]
    keys = range(0, 40, 2)
    results = self.run_all(
        *((first.reduce, key, key % 4 == 0) for key in keys),
        *((host.reduce, key, False) for host in others for key in keys[::-1]),
    )
    expected = [key % 4 == 0 for key in keys]
    self.assertEqual(results, expected + (n - 1) * expected[::-1])

  def test_hosts_that_know_each_other_talk_in_rounds(self):
    ports = local_ports.free(6)
    hosts = [self.node(i, ports) for i in range(6)]
    received = self.enter_context(
        mock.patch.object(
            hosts[0]._reductions, "receive", wraps=hosts[0]._reductions.receive
        )
    )
    self.run_all(*((host.reduce, 0, True) for host in hosts))
    self.assertEqual({call.args[3] for call in received.mock_calls}, {0})
    received.reset_mock()
    results = self.run_all(
        *((h.reduce, 2, i == 5) for i, h in enumerate(hosts))
    )
    self.assertEqual(results, [True] * 6)
    self.assertCountEqual(
        [(call.args[1], call.args[3]) for call in received.mock_calls],
        [(5, 1), (4, 2), (2, 3)],
    )

  def test_host_that_stays_silent_among_many_is_named_by_all(self):
    ports = local_ports.free(6)
    impatient = minibatching_node.Timeouts(reduction_seconds=2)
    hosts = [self.node(i, ports, timeouts=impatient) for i in range(6)]
    self.run_all(*((host.reduce, 0, True) for host in hosts))
    del hosts[4]
    errors = self.run_all(*((host.reduce, 2, True) for host in hosts))
    self.assert_each_raises(
        errors, f"no contribution of host 4 at localhost:{ports[4]} after"
    )

  def test_waits_for_a_host_that_starts_later(self):
    ports = local_ports.free(2)
    first = self.node(0, ports)
    with futures.ThreadPoolExecutor() as threads:
      early = threads.submit(first.reduce, 0, False)
      self.assertIs(self.node(1, ports).reduce(0, True), True)
      self.assertIs(early.result(), True)

  def test_interface_is_what_the_converter_takes_and_keeps_the_node(self):
    node = MinibatchingNode(0, 2, ["localhost:1"], 0)
    gone = weakref.ref(node)
    interface = node.get_all_reduce_interface()
    self.assertIsInstance(interface, converter.AllReduceInterface)
    port = node.port
    del node
    gc.collect()
    self.assertIsNotNone(gone())
    del interface
    gc.collect()
    self.assertIsNone(gone())
    MinibatchingNode(0, 2, ["localhost:1"], port).close()  # the port is free

  def test_native_module_has_the_node(self):
    self.assertIs(converter.MinibatchingNode, MinibatchingNode)
    with self.assertRaisesRegex(AttributeError, "has no attribute 'Missing'"):
      _ = converter.Missing

  def test_key_used_twice_is_an_error_that_spoils_nothing(self):
    ports = local_ports.free(2)
    hosts = [self.node(i, ports) for i in range(2)]
    self.run_all(*((host.reduce, 0, True) for host in hosts))
    with self.assertRaisesRegex(RuntimeError, "sync_key 0 before"):
      hosts[0].reduce(0, True)
    results = self.run_all(*((host.reduce, 2, True) for host in hosts))
    self.assertEqual(results, [True, True])

  @parameterized.parameters(
      (2**31, True, ValueError, r"sync_key .* in \[-2147483648, .* 2147483648"),
      (1.0, True, TypeError, "sync_key .* must be an integer, got 1.0"),
      (1, -1, ValueError, r"value .* in \[0, 18446744073709551616\), got -1"),
      (1, 2**64, ValueError, "value .* got 18446744073709551616"),
      (1, None, TypeError, "value .* must be an integer, got None"),
      (1, 0.5, TypeError, "value .* must be an integer, got 0.5"),
  )
  def test_what_cannot_be_sent_is_an_error_that_spoils_nothing(
      self, key, value, error, message
  ):
    ports = local_ports.free(2)
    hosts = [self.node(i, ports) for i in range(2)]
    with self.assertRaisesRegex(error, message):
      hosts[0].reduce(key, value)
    results = self.run_all(*((host.reduce, 1, 3) for host in hosts))
    self.assertEqual(results, [3, 3])

  @parameterized.parameters(
      (np.uint64(2**63), 1, 2**63 + 1),
      (np.int32(2), 1, 3),
      (np.True_, False, True),
  )
  def test_numbers_of_numpy_are_numbers(self, first, second, expected):
    ports = local_ports.free(2)
    hosts = [self.node(i, ports) for i in range(2)]
    results = self.run_all(
        (hosts[0].reduce, np.int64(1), first), (hosts[1].reduce, 1, second)
    )
    self.assertEqual(results, [expected, expected])
    self.assertIs(type(results[0]), type(expected))

  def test_host_that_stays_silent_is_named(self):
    ports = local_ports.free(2)
    silent = self.node(1, ports)
    impatient = minibatching_node.Timeouts(reduction_seconds=0.5)
    node = self.node(0, ports, timeouts=impatient)
    message = (
        "sync_key 6: no contribution of host 1 at"
        f" localhost:{ports[1]} after .* seconds"
    )
    with self.assertRaisesRegex(RuntimeError, message):
      node.reduce(6, True)
    # That is final, and the host is told when it speaks at last.
    with self.assertRaisesRegex(RuntimeError, message):
      node.reduce(8, True)
    with self.assertRaisesRegex(RuntimeError, f"refused.*{message}"):
      silent.reduce(6, True)

  def test_slow_start_is_named(self):
    ports = local_ports.free(3)
    self.node(1, ports)
    impatient = minibatching_node.Timeouts(reduction_seconds=0.5)
    with self.assertRaisesRegex(
        RuntimeError,
        "no contribution of host 1.*, no contribution of host 2, no answer of"
        f" localhost:{ports[2]} after",
    ):
      self.node(0, ports, timeouts=impatient).reduce(6, True)

  def test_interrupted_host_tells_the_others(self):
    ports = local_ports.free(2)
    hosts = [self.node(0, ports), self.node(1, ports)]
    with mock.patch.object(
        hosts[0]._exchange, "run", side_effect=KeyboardInterrupt
    ):
      with self.assertRaises(KeyboardInterrupt):
        hosts[0].reduce(0, True)
    with self.assertRaisesRegex(RuntimeError, "sync_key 0: interrupted"):
      hosts[1].reduce(0, True)

  def test_host_that_never_comes_up_is_named(self):
    ports = local_ports.free(2)
    impatient = minibatching_node.Timeouts(call_seconds=0.5)
    with self.assertRaisesRegex(
        RuntimeError,
        f"host at localhost:{ports[1]} did not come up within 0.5 seconds",
    ):
      self.node(0, ports, timeouts=impatient).reduce(0, True)

  def test_host_that_goes_while_it_is_waited_for_is_named(self):
    with _RawPeer(_IDENTITY) as peer:
      node = self.node(0, [0, peer.port])
      with futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(node.reduce, 0, True)
        # It has answered when it is asked again.
        for _ in range(2):
          peer.received.get(timeout=60)
        peer.stop()
        self.assert_each_raises(
            [waiting.exception()], f"the host at localhost:{peer.port} is gone"
        )

  def test_host_that_goes_after_its_contribution_fails_the_next_one(self):
    with _RawPeer(_IDENTITY) as peer:
      node = self.node(0, [0, peer.port])
      peer.send(node.port, bytes.fromhex("0800 1001 1801"))
      self.assertIs(node.reduce(0, False), True)
      peer.send(node.port, bytes.fromhex("0802 1001 1801"))
      peer.stop()
      self.assertIs(node.reduce(2, False), True)
      with self.assertRaisesRegex(RuntimeError, f":{peer.port} is gone"):
        node.reduce(4, False)

  def test_host_that_calls_but_cannot_be_called_is_named(self):
    (port,) = local_ports.free(1)
    impatient = minibatching_node.Timeouts(call_seconds=0.5)
    node = self.node(0, [0, port], timeouts=impatient)
    with _RawPeer() as peer:
      peer.send(node.port, bytes.fromhex("0800 1001 1801"))
    with self.assertRaisesRegex(RuntimeError, f":{port} did not come up"):
      node.reduce(0, True)

  @parameterized.named_parameters(
      ("version", {"jte-protocol-version": "9"}),
      ("num_tasks", {"jte-num-tasks": "3"}),
      ("another_host", {"jte-task-id": "0"}),
      ("restarted", {"jte-instance-id": "again"}),
      ("sender", {"jte-task-id": "5"}),
      ("no_number", {"jte-task-id": "x"}),
  )
  def test_misfit_that_calls_is_refused_and_disturbs_nothing(self, change):
    with _RawPeer(_IDENTITY) as peer:
      node = self.node(0, [0, peer.port])
      with futures.ThreadPoolExecutor() as threads:
        waiting = threads.submit(node.reduce, 0, False)
        # When it is asked again, it is known.
        for _ in range(2):
          peer.received.get(timeout=60)
        with self.assertLogs(level="WARNING") as logs:
          # Against the stops between warnings.
          with mock.patch.object(_server, "_SECONDS_BETWEEN_WARNINGS", 0):
            code = peer.send(
                node.port,
                bytes.fromhex("0800 1001 1800"),
                metadata=tuple((dict(_IDENTITY) | change).items()),
            )
        self.assertIn(
            code,
            (
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.UNAUTHENTICATED,
            ),
        )
        self.assertIn("Host 0 refused a call of", logs.output[0])
        peer.send(node.port, bytes.fromhex("0800 1001 1801"))
        self.assertIs(waiting.result(), True)

  @parameterized.parameters(3, 6)
  def test_failure_reaches_every_host_and_stays(self, n):
    ports = local_ports.free(n)
    *hosts, closed = [self.node(i, ports) for i in range(n)]
    self.run_all(*((host.reduce, 0, True) for host in [*hosts, closed]))
    closed.close()
    for key in (2, 4):
      errors = self.run_all(*((host.reduce, key, True) for host in hosts))
      self.assert_each_raises(errors, f"localhost:{ports[-1]}")
    with self.assertRaisesRegex(
        RuntimeError, f"Node of host {n - 1} is closed"
    ):
      closed.reduce(6, True)

  def test_hosts_of_another_protocol_version_are_told(self):
    ports = local_ports.free(2)
    hosts = [self.node(0, ports)]
    with mock.patch.object(_identity, "PROTOCOL_VERSION", 9):
      hosts.append(self.node(1, ports))
    errors = self.run_all(*((host.reduce, 0, True) for host in hosts))
    self.assert_each_raises(errors, "speaks version [29].*the same release")

  def test_hosts_that_expect_another_number_of_hosts_are_told(self):
    ports = local_ports.free(2)
    hosts = [self.node(0, ports), self.node(1, ports + [1])]
    errors = self.run_all(*((host.reduce, 0, True) for host in hosts))
    self.assert_each_raises(
        errors, "expects [23] hosts, this host [23].*the same num_tasks"
    )

  def test_restarted_host_is_named(self):
    ports = local_ports.free(2)
    stays = self.node(0, ports)
    leaves = self.node(1, ports)
    self.run_all((stays.reduce, 0, True), (leaves.reduce, 0, True))
    leaves.close()
    again = self.node(1, ports)
    errors = self.run_all((stays.reduce, 2, True), (again.reduce, 2, True))
    self.assert_each_raises(errors, "it restarted.*Restart all hosts")

  def test_own_address_among_the_peers_is_an_error(self):
    (port,) = local_ports.free(1)
    node = self.node(0, [port, port])
    with self.assertRaisesRegex(
        RuntimeError, f"localhost:{port} is this host itself"
    ):
      node.reduce(0, True)

  def test_hosts_of_another_implementation_can_take_part(self):
    with _RawPeer() as other:
      node = self.node(0, [0, other.port])
      code = other.send(node.port, bytes.fromhex("0802 1001 1800"))
      self.assertEqual(code, grpc.StatusCode.OK)
      self.assertIs(node.reduce(2, True), True)
      # sync_key = 2, bool_val = true; src_rank = 0 needs no byte.
      self.assertEqual(other.received.get(), bytes.fromhex("0802 1801"))
      other.send(node.port, bytes.fromhex("0803 1001 2005"))
      self.assertEqual(node.reduce(3, 1 << 63), 1 << 63 | 5)
      # uint64_val, varint of 2**63.
      self.assertEqual(
          other.received.get(), bytes.fromhex("0803 20 80808080808080808001")
      )

  @parameterized.named_parameters(
      ("own_rank", "1000 1801"),
      ("rank_too_large", "1002 1801"),
      ("rank_negative", "10ffffffffffffffffff01 1801"),
      ("no_value", "1001"),
      ("round_too_late", "1001 1801 c03e02"),
      ("round_negative", "1001 1801 c03effffffffffffffffff01"),
  )
  def test_messages_that_make_no_sense_are_refused(self, message):
    with _RawPeer() as other:
      node = self.node(0, [0, other.port])
      code = other.send(node.port, bytes.fromhex(message))
      self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)

  def test_port_in_use_is_an_error(self):
    taken = self.node(0, [0, 1])
    with self.assertRaisesRegex(
        RuntimeError,
        f"Cannot listen on port {taken.port} of .*: another process",
    ):
      MinibatchingNode(0, 2, ["localhost:1"], taken.port)

  @parameterized.named_parameters(
      ("task_id", (2, 2, ["a:1"], 0), ValueError, "task_id.* got 2 of 2"),
      ("negative_task_id", (-1, 2, ["a:1"], 0), ValueError, "task_id"),
      ("too_few_peers", (0, 3, ["a:1"], 0), ValueError, "that is 2, got 1"),
      ("itself_listed", (0, 1, ["a:1"], 0), ValueError, "that is 0, got 1"),
      ("twice", (0, 3, ["a:1", "a:1"], 0), ValueError, "address twice"),
      ("no_port", (0, 2, ["a"], 0), ValueError, "'host:port' .* got 'a'"),
      ("bad_port", (0, 2, ["a:65536"], 0), ValueError, "got 'a:65536'"),
      ("no_address", (0, 2, [1], 0), ValueError, "'host:port' .* got 1"),
      ("one_string", (0, 2, "a:1", 0), TypeError, "list of addresses.*'a:1'"),
      ("text", ("0", 2, ["a:1"], 0), TypeError, "task_id must .* got '0'"),
      ("number", (0, 2.0, ["a:1"], 0), TypeError, "num_tasks must .* got 2.0"),
      ("port", (0, 2, ["a:1"], 65536), ValueError, "port must.*65536"),
  )
  def test_bad_arguments(self, arguments, error, message):
    with self.assertRaisesRegex(error, message):
      MinibatchingNode(*arguments)

  @parameterized.parameters(0, -1, float("nan"))
  def test_bad_timeouts(self, seconds):
    with self.assertRaisesRegex(ValueError, "call_seconds must be positive"):
      minibatching_node.Timeouts(call_seconds=seconds)

  def test_only_several_hosts_need_grpcio(self):
    with mock.patch.dict(sys.modules, {"grpc": None}):
      self.assertIs(MinibatchingNode(0, 1, [], 0).reduce(0, True), True)
      with self.assertRaisesRegex(
          ImportError, r"pip install 'jax_tpu_embedding\[multihost\]'"
      ):
        MinibatchingNode(0, 2, ["localhost:1"], 0)

  def test_default_host_is_that_of_jax(self):
    interface = minibatching_node.get_all_reduce_interface([], 0)
    self.assertIs(interface.any_of(0, True), True)


if __name__ == "__main__":
  absltest.main()
