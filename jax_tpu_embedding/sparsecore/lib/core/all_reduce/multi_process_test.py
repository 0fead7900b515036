# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts as processes, which can die."""

import dataclasses
import time

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import host_process
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
import numpy as np

TOPOLOGY = layout.Topology(
    local_device_count=4, global_device_count=4, num_sc_per_device=2
)
_VOCABULARY_SIZE = 4096


def random_ids(n, *, seed, num_crowded_hosts):
  """Ids of 32 samples for each host.

  A SparseCore gets 64 of them or more. On crowded hosts they go to one
  partition, beyond its limit of 40; elsewhere to eight.
  """
  ids = np.random.default_rng(seed).integers(_VOCABULARY_SIZE, size=(32 * n, 8))
  num_scs = TOPOLOGY.global_device_count * TOPOLOGY.num_sc_per_device
  ids[: 32 * num_crowded_hosts] //= num_scs
  ids[: 32 * num_crowded_hosts] *= num_scs
  return ids.astype(np.int32)


def stack_of(ids):
  feature = input_preprocessing.Feature(
      name="f", ids=ids, vocabulary_size=_VOCABULARY_SIZE
  )
  stack = input_preprocessing.Stack(
      combiner="mean",
      max_ids_per_partition=40,
      max_unique_ids_per_partition=40,
  )
  return stack, [feature]


def start_hosts(n):
  """n hosts that are up, and their ports."""
  ports = local_ports.free(n)
  hosts = [host_process.HostProcess(i, ports) for i in range(n)]
  for host in hosts:
    host.wait_until_up()
  return hosts, ports


def call_all(hosts, method, sync_key, values):
  """The results of a reduction on every host."""
  for host, value in zip(hosts, values, strict=True):
    host.start(method, sync_key, value)
  return [host.result() for host in hosts]


class MultiProcessTest(parameterized.TestCase):

  def assert_each_raises(self, errors, message):
    for error in errors:
      self.assertIsInstance(error, RuntimeError)
      self.assertRegex(str(error), message)

  @parameterized.parameters(2, 4)
  def test_processes_reduce_and_end(self, n):
    hosts, _ = start_hosts(n)
    values = [i == n - 1 for i in range(n)]
    self.assertEqual(call_all(hosts, "any_of", 0, values), [True] * n)
    self.assertEqual(
        call_all(hosts, "bitwise_or", 1, [1 << (63 - i) for i in range(n)]),
        [sum(1 << (63 - i) for i in range(n))] * n,
    )
    # None of them closed its node.
    self.assertEqual([host.stop() for host in hosts], [0] * n)

  @parameterized.parameters(2, 4)
  def test_processes_convert_to_what_one_process_does(self, n):
    hosts, _ = start_hosts(n)
    for batch_number in range(3):
      # The first batch needs no minibatches; then only some of the hosts do.
      ids = random_ids(n, seed=batch_number, num_crowded_hosts=batch_number)
      for i, host in enumerate(hosts):
        host.start(
            "convert_step",
            [stack_of(np.split(ids, n)[i])],
            dataclasses.replace(TOPOLOGY, local_device_count=4 // n),
            batch_number=batch_number,
        )
      of_host = [host.result() for host in hosts]
      (expected,), num_minibatches = converter_requests.convert_step(
          [stack_of(ids)], TOPOLOGY, enable_minibatching=True
      )
      self.assertEqual(num_minibatches > 1, batch_number > 0)
      self.assertEqual([num for _, num in of_host], [num_minibatches] * n)
      for field in ("row_pointers", "embedding_ids", "sample_ids", "gains"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(c, field) for (c,), _ in of_host]),
            getattr(expected, field),
            strict=True,
        )

  @parameterized.parameters("before", "during")
  def test_killed_host_is_named_within_seconds(self, moment):
    hosts, ports = start_hosts(3)
    call_all(hosts, "any_of", 0, [False] * 3)
    killed = hosts.pop()
    started = time.monotonic()
    if moment == "before":
      killed.kill()
    for host in hosts:
      host.start("any_of", 2, True)
    if moment == "during":
      killed.kill()
    errors = [host.result() for host in hosts]
    self.assertLess(time.monotonic() - started, 10)
    self.assert_each_raises(errors, f"localhost:{ports[2]}")
    self.assertEqual([host.stop() for host in hosts], [0, 0])

  def test_restarted_host_is_an_error_on_all(self):
    hosts, ports = start_hosts(2)
    call_all(hosts, "any_of", 0, [False] * 2)
    hosts[1].kill()
    hosts[1] = host_process.HostProcess(1, ports)
    hosts[1].wait_until_up()
    errors = call_all(hosts, "any_of", 2, [True] * 2)
    self.assert_each_raises(errors, "Host 1 at .* it restarted")
    self.assertEqual([host.stop() for host in hosts], [0, 0])


if __name__ == "__main__":
  absltest.main()
