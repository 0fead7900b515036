# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts of a job, and processes that are none of them, on one machine."""

from concurrent import futures
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import grpc
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _addresses
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _authentication
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import _identity
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import all_reduce_pb2
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports

_METHOD = "/jax_sc_embedding.AllReduceGrpcService/ContributeData"
_SECRET = "what only the hosts know"
_TIMEOUTS = minibatching_node.Timeouts(
    call_seconds=60, reduction_seconds=60, reconnect_seconds=0.5
)
_IMPATIENT = minibatching_node.Timeouts(call_seconds=2)


def _call(port, message, metadata=(), method=_METHOD):
  """The status code of what the host at `port` answers to bytes."""
  with grpc.insecure_channel(f"localhost:{port}") as channel:
    return (
        channel.unary_unary(method)
        .future(message, timeout=60, metadata=metadata)
        .code()
    )


def _message(key, value, sender=1):
  return all_reduce_pb2.AllReduceData(
      sync_key=key, src_rank=sender, bool_val=value
  ).SerializeToString()


class _Caller:
  """Calls as host 1 of 2, without being a node."""

  def __init__(self, secret=_SECRET):
    self._by_secret = _authentication.BySecret(
        secret, _identity.Identity(task_id=1, num_tasks=2)
    )

  def metadata(self, receiver, key, value, round_number=0):
    return self._by_secret.call(
        receiver, (key, 1, "bool_val", value, round_number)
    )


class StrangersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._nodes = self.enter_context(contextlib.ExitStack())

  def nodes(self, *secrets, timeouts=_TIMEOUTS, **arguments):
    ports = local_ports.free(len(secrets))
    return [
        self._nodes.enter_context(
            minibatching_node.MinibatchingNode(
                i,
                len(ports),
                [f"localhost:{p}" for p in ports if p != port],
                port,
                timeouts=timeouts,
                secret=secret,
                **arguments,
            )
        )
        for i, (port, secret) in enumerate(zip(ports, secrets))
    ]

  def reduce(self, nodes, key, values):
    with futures.ThreadPoolExecutor(len(nodes)) as threads:
      running = [
          threads.submit(node.reduce, key, value)
          for node, value in zip(nodes, values)
      ]
      return [call.exception() or call.result() for call in running]

  def instance_of(self, node):
    return node._exchange._own.instance_id

  @parameterized.parameters(2, 3)
  def test_hosts_with_one_secret_reduce(self, n):
    nodes = self.nodes(*[_SECRET] * n)
    for key in range(0, 8, 2):
      values = [i == key // 2 for i in range(n)]
      self.assertEqual(self.reduce(nodes, key, values), [any(values)] * n)

  def test_secret_may_be_in_the_environment(self):
    with mock.patch.dict(os.environ, {"JTE_ALL_REDUCE_SECRET": _SECRET}):
      nodes = self.nodes(None, None)
    self.assertEqual(
        _call(nodes[0].port, _message(0, True)),
        grpc.StatusCode.UNAUTHENTICATED,
    )
    self.assertEqual(self.reduce(nodes, 0, [False, False]), [False] * 2)

  def test_what_strangers_send_is_refused_and_disturbs_nothing(self):
    nodes = self.nodes(_SECRET, _SECRET)
    port, instance = nodes[0].port, self.instance_of(nodes[0])
    identity = _identity.Identity(task_id=1, num_tasks=2)
    genuine = _Caller().metadata(instance, 2, True)
    calls = {
        "nothing": (),
        "identity": identity.to_metadata(),
        "other_num_tasks": _identity.Identity(
            task_id=1, num_tasks=9
        ).to_metadata(),
        "other_version": (("jte-protocol-version", "9"),),
        "other_secret": _Caller("another secret, long").metadata(
            instance, 2, True
        ),
        "another_key": _Caller().metadata(instance, 0, True),
        "another_value": _Caller().metadata(instance, 2, False),
        "another_round": _Caller().metadata(instance, 2, True, 1),
        "another_sender": tuple(
            (dict(genuine) | {"jte-instance-id": "me"}).items()
        ),
        "another_receiver": tuple(
            (dict(genuine) | {"jte-receiver-id": ""}).items()
        ),
        "another_number": tuple(
            (dict(genuine) | {"jte-call-number": "7"}).items()
        ),
        "mac_of_bytes": (*genuine[:-1], ("jte-mac-bin", b"\xff")),
    }
    for name, metadata in calls.items():
      with self.subTest(name):
        self.assertEqual(
            _call(port, _message(2, True), metadata),
            grpc.StatusCode.UNAUTHENTICATED,
        )
    for garbage in (b"\xff" * 9, b"\x08", os.urandom(100)):
      self.assertNotEqual(_call(port, garbage), grpc.StatusCode.OK)
    self.assertEqual(
        _call(port, b"", method="/a/b"), grpc.StatusCode.UNIMPLEMENTED
    )
    # None of the values arrived.
    self.assertEqual(self.reduce(nodes, 2, [False, False]), [False] * 2)

  def test_a_recorded_call_is_of_no_use(self):
    nodes = self.nodes(_SECRET, _SECRET)
    port, instance = nodes[0].port, self.instance_of(nodes[0])
    caller = _Caller()
    recorded = caller.metadata(instance, 0, True)
    codes = [_call(port, _message(0, True), recorded) for _ in range(2)]
    self.assertEqual(
        codes, [grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED]
    )
    # At another host, or at the process that has the place in the next job.
    self.assertEqual(
        _call(nodes[1].port, _message(0, True), recorded),
        grpc.StatusCode.ABORTED,
    )
    self.assertEqual(self.reduce(nodes, 2, [True, False]), [True] * 2)

  def test_hosts_with_two_secrets_are_told(self):
    nodes = self.nodes(_SECRET, _SECRET + "!")
    for error in self.reduce(nodes, 0, [True, True]):
      self.assertIsInstance(error, RuntimeError)
      self.assertRegex(str(error), "all hosts the same secret")

  def test_who_answers_has_to_know_the_secret_too(self):
    nodes = self.nodes(_SECRET, None, timeouts=_IMPATIENT)
    with self.assertRaisesRegex(
        RuntimeError, f"localhost:{nodes[1].port} is not of this job: .*secret"
    ):
      nodes[0].reduce(0, True)

  @parameterized.parameters(
      ("short", ValueError, "at least 16 bytes, got 5"),
      ("", ValueError, "at least 16 bytes, got 0"),
      (7, TypeError, "str or bytes, got int"),
  )
  def test_bad_secrets(self, secret, error, message):
    with self.assertRaisesRegex(error, message):
      self.nodes(secret, secret)

  def test_reordered_and_repeated_calls(self):
    window = _authentication._Window()
    numbers = [5, 3, 5, 4, 3, 5000, 3900, 5000, 4999, *range(5001, 9000), 5001]
    self.assertEqual(
        [window.admit(n) for n in numbers],
        [True, True, False, True, False, True, False, False, True]
        + [True] * 3999
        + [False],
    )
    self.assertLess(len(window._seen), 2100)

  def test_calls_to_others_do_not_make_a_call_late(self):
    caller, receiver = (
        _identity.Identity(task_id=i, num_tasks=2048) for i in range(2)
    )
    calls, answers = (
        _authentication.BySecret(b"x" * 32, own) for own in (caller, receiver)
    )
    contribution = (1, 0, "bool_val", True, 0)
    call = lambda to: calls.call(to, contribution)
    first = call(receiver.instance_id)
    for i in range(2 * 2047):  # twice everyone
      call(f"other {i % 2047}")
    second = call(receiver.instance_id)
    for metadata in (second, first):
      self.assertEqual(answers.read_call(metadata, contribution), caller)
    with self.assertRaisesRegex(RuntimeError, "was made before"):
      answers.read_call(first, contribution)

  def test_unprotected_port_that_others_reach_is_a_warning(self):
    with self.assertLogs(level="WARNING") as logs:
      self.nodes(None, None, listen_addresses=["0.0.0.0"])
    self.assertRegex(
        logs.output[0], "on 0.0.0.0 without a secret.*JTE_ALL_REDUCE_SECRET"
    )
    with self.assertNoLogs(level="WARNING"):
      self.nodes(_SECRET, _SECRET, listen_addresses=["0.0.0.0"])
      self.nodes(None, None)


class AddressesTest(parameterized.TestCase):

  def test_peers_of_this_machine_are_heard_on_it_only(self):
    found = _addresses.facing(["localhost:1", "127.0.0.1:2"])
    self.assertContainsSubset({"127.0.0.1"}, found)
    self.assertContainsSubset(found, {"127.0.0.1", "::1"})
    self.assertTrue(_addresses.are_loopback(found))

  def test_peers_elsewhere_are_heard_on_the_way_to_them(self):
    # A socket that is bound to no address takes the one of the route.
    with (
        mock.patch.object(
            _addresses, "_addresses_of", return_value=["192.0.2.1"]
        ),
        mock.patch.object(socket, "socket") as make,
    ):
      udp = make.return_value.__enter__.return_value
      udp.getsockname.return_value = ("10.0.0.5", 1234)
      self.assertEqual(_addresses.facing(["far:1"]), ["10.0.0.5"])
      udp.connect.assert_called_with(("192.0.2.1", 9))

  def test_peer_without_an_address_yet_is_heard_at_this_hosts_name(self):
    with mock.patch.object(socket, "gethostname", return_value="127.0.0.1"):
      self.assertEqual(_addresses.facing(["no.such.invalid:1"]), ["127.0.0.1"])

  def test_no_address_is_an_error(self):
    with mock.patch.object(_addresses, "_addresses_of", return_value=[]):
      with self.assertRaisesRegex(RuntimeError, "a:1, b:2.*listen_addresses"):
        _addresses.facing(["a:1", "b:2"])

  @parameterized.parameters(
      (["127.0.0.1", "::1", "localhost"], True),
      (["127.0.0.1", "0.0.0.0"], False),
      (["::"], False),
      (["192.0.2.1"], False),
  )
  def test_are_loopback(self, addresses, expected):
    self.assertEqual(_addresses.are_loopback(addresses), expected)

  def test_address_that_this_machine_does_not_have_is_an_error(self):
    with self.assertRaisesRegex(RuntimeError, "Cannot listen on .*192.0.2.1"):
      minibatching_node.MinibatchingNode(
          0, 2, ["localhost:1"], 0, listen_addresses=["192.0.2.1"]
      )


class TlsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    if shutil.which("openssl") is None:
      self.skipTest("openssl makes the certificates, and is not installed.")
    self._dir = pathlib.Path(self.create_tempdir().full_path)
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out chain"
        " -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost",
        shell=True,
        check=True,
        capture_output=True,
        cwd=self._dir,
    )

  def test_hosts_with_certificates_reduce_and_others_do_not(self):
    chain = (self._dir / "chain").read_bytes()
    certificates = minibatching_node.Certificates(
        root=chain, chain=chain, key=(self._dir / "key").read_bytes()
    )
    ports = local_ports.free(2)
    with contextlib.ExitStack() as stack:
      nodes = [
          stack.enter_context(
              minibatching_node.MinibatchingNode(
                  i,
                  2,
                  [f"localhost:{ports[1 - i]}"],
                  ports[i],
                  timeouts=_TIMEOUTS,
                  certificates=certificates,
              )
          )
          for i in range(2)
      ]
      self.assertEqual(
          _call(ports[0], _message(0, True)), grpc.StatusCode.UNAVAILABLE
      )
      with futures.ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda n: n.reduce(0, False), nodes))
      self.assertEqual(results, [False, False])


if __name__ == "__main__":
  absltest.main()
