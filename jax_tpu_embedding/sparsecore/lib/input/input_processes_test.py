# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelines of processes that end, or are killed."""

import json
import logging
import multiprocessing
import os
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
from jax_tpu_embedding.sparsecore.lib.core.testing import process_job
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_SECONDS = 120
_NUM = 12
# By hand: 20.
_KILLS = int(os.environ.get("KILLS", "1"))


class _Source:
  """An iterator with a state."""

  def __init__(self, num_batches=_NUM):
    self.position = 0
    self._num_batches = num_batches

  def __iter__(self):
    return self

  def __next__(self):
    if self.position == self._num_batches:
      raise StopIteration
    self.position += 1
    ids = np.random.default_rng(self.position).integers(
        1000, size=(24, 3 + self.position)  # needs grow
    )
    return {"ids": ids}

  def get_state(self):
    return {"position": self.position}

  def set_state(self, state):
    self.position = state["position"]


def _without_state():
  return list(_Source())


def _pipeline(source, num_processes=1, all_reduce_interface=None, **options):
  table = two_table_model.table(vocabulary_size=1000)
  specs = {
      "f": two_table_model.feature("f", table, batch=24 * num_processes),
  }
  embedding.prepare_feature_specs_for_training(specs, num_processes, 1)
  return input_pipeline.InputPipeline(
      source,
      specs,
      ids=lambda item: {"f": item["ids"]},
      mesh=jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      sharding_axis="x",
      limits=embedding.AdaptiveLimits(
          specs,
          1,
          num_processes,
          num_sc_per_device=1,
          all_reduce_interface=all_reduce_interface,
      ),
      **options,
  )


def _arrays(batch):
  return batch.number, jax.tree.map(np.asarray, jax.tree.leaves(batch.inputs))


def _count_batches(pipe, process, ports, num_batches):
  """Sends how many batches the pipeline of one of two processes has."""
  interface = minibatching_node.get_all_reduce_interface(
      [f"localhost:{ports[1 - process]}"], ports[process], process, 2
  )
  with _pipeline(_Source(num_batches), 2, interface) as batches:
    pipe.send(sum(1 for _ in batches))
    pipe.recv()  # that the other one is done, too


def _take_batches_of_job():
  """What a process of a job has of its pipelines, which find the others'.

  Of the first, all batches: process 1 has two more. Of the second, a few, and
  different numbers of them are ahead when it is closed. The third has its
  limits, and goes on after them.
  """
  index = jax.process_index()
  mesh = jax.sharding.Mesh(jax.devices(), ("x",))
  table = two_table_model.table(vocabulary_size=1000)
  specs = {"f": two_table_model.feature("f", table, batch=24 * mesh.size)}
  embedding.prepare_feature_specs_for_training(specs, mesh.size, 1)
  make = lambda source, **options: input_pipeline.InputPipeline(
      source,
      specs,
      ids=lambda item: {"f": item["ids"]},
      mesh=mesh,
      sharding_axis="x",
      **options,
  )
  with make(_Source(7 + 2 * index)) as batches:
    numbers = [batch.number for batch in batches]
  limits = batches.limits.limits
  warn = mock.Mock()
  with mock.patch.object(logging.Logger, "warning", warn):
    with make(_Source(), host_prefetch=2 + 3 * index) as batches:
      for _ in zip(batches, range(4)):
        if index:
          time.sleep(0.2)
    with make(_Source(), limits=batches.limits) as again:
      again.set_state(batches.get_state())
      shapes = {
          batch.number: [x.shape for x in jax.tree.leaves(batch.inputs)]
          for batch in again
      }
  return numbers, limits, shapes, [call.args for call in warn.mock_calls]


def _hand_out(pipe, make_source):
  """Sends each batch and the state after it, when it is asked."""
  with _pipeline(
      make_source(), host_prefetch=4, device_prefetch=4, workers=2
  ) as batches:
    for batch in batches:
      pipe.recv()
      pipe.send((_arrays(batch), json.dumps(batches.get_state())))


class InputProcessesTest(parameterized.TestCase):

  def _start(self, target, *args):
    pipe, of_process = _SPAWN.Pipe()
    process = _SPAWN.Process(
        target=target, args=(of_process, *args), daemon=True
    )
    process.start()
    of_process.close()  # The last one open is that of the process.
    self.addCleanup(process.kill)
    return process, pipe

  def _receive(self, pipe):
    self.assertTrue(pipe.poll(_TIMEOUT_SECONDS), "A process does not answer.")
    return pipe.recv()

  def assert_same(self, got, expected):
    self.assertEqual([n for n, _ in got], [n for n, _ in expected])
    for (_, arrays), (_, expected_arrays) in zip(got, expected):
      jax.tree.map(np.testing.assert_array_equal, arrays, expected_arrays)

  def test_the_shortest_source_ends_both(self):
    ports = local_ports.free(2)
    started = [
        self._start(_count_batches, i, ports, num_batches)
        for i, num_batches in enumerate((7, 9))
    ]
    self.assertEqual([self._receive(pipe) for _, pipe in started], [7, 7])
    for _, pipe in started:
      pipe.send("done")
    for process, _ in started:
      process.join(_TIMEOUT_SECONDS)
      self.assertEqual(process.exitcode, 0)

  def test_processes_of_a_job_find_each_other(self):
    job = process_job.ProcessJob(
        self, _take_batches_of_job, num_processes=2, num_devices=2
    )
    first, second = job.results()
    self.assertEqual(first, second)
    numbers, _, shapes, warnings = first
    self.assertEqual(numbers, list(range(7)))
    self.assertEqual(list(shapes), list(range(5, _NUM)))
    # No thread waits for a process that has taken what it wants.
    self.assertEqual(warnings, [])

  @parameterized.parameters(_Source, _without_state)
  def test_a_killed_process_resumes_after_the_batch_handed_out(
      self, make_source
  ):
    with _pipeline(make_source()) as batches:
      expected = [_arrays(batch) for batch in batches]
    for number in np.random.default_rng(0).integers(1, _NUM - 1, _KILLS):
      process, pipe = self._start(_hand_out, make_source)
      got = []
      for _ in range(number):
        pipe.send("next")
        arrays, state = self._receive(pipe)
        got.append(arrays)
      process.kill()
      process.join(_TIMEOUT_SECONDS)
      self.assertLess(process.exitcode, 0)
      with _pipeline(make_source()) as batches:
        batches.set_state(json.loads(state))
        got += [_arrays(batch) for batch in batches]
      self.assert_same(got, expected)


if __name__ == "__main__":
  absltest.main()
