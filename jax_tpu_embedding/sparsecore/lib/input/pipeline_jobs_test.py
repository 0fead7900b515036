# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Pipelines of several processes, each of which is a thread here."""

import collections
from collections.abc import Iterator
import contextlib
import gc
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.input.testing import small_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)


class _Nodes:
  """The nodes of two threads that stand for processes, each with a device."""

  def __init__(self, test):
    self._changed = threading.Condition()
    self._values = collections.defaultdict(list)
    self._numbers = collections.Counter()  # thread -> nodes
    self._closed = set()  # numbers of nodes; the peers are told
    two = mock.PropertyMock(return_value=small_pipeline.mesh_of_one())
    for target, name, replacement in (
        (job_nodes, "make_node", self._make_node),
        (jax.sharding.Mesh, "local_mesh", two),
        (input_pipeline, "_send", lambda tree, sharding: tree),
    ):
      test.enter_context(mock.patch.object(target, name, replacement))

  def _make_node(self):
    self._numbers[threading.current_thread()] += 1
    number = self._numbers[threading.current_thread()]
    node = mock.create_autospec(minibatching_node.MinibatchingNode)

    def reduce(key, value):
      with self._changed:
        values = self._values[number, key]
        values.append(value)
        self._changed.notify_all()
        self._changed.wait_for(
            lambda: len(values) == 2 or number in self._closed, 60
        )
        if len(values) < 2:
          raise RuntimeError("The node is closed.")
        return values[0] | values[1]

    def close():
      with self._changed:
        self._closed.add(number)
        self._changed.notify_all()

    node.reduce, node.close = reduce, close
    return node

  @property
  def num_made(self):
    return list(self._numbers.values())

  def run(self, process):
    """What process(0) and process(1) return."""
    results, errors = [None, None], []

    def call(i):
      try:
        results[i] = process(i)
      except BaseException as error:  # pylint: disable=broad-except
        errors.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    if errors:
      raise errors[0]
    return results


@jax.tree_util.register_pytree_node_class
class _Node:
  """Of which each has another repr."""

  def __init__(self, x):
    self.x = x

  def tree_flatten(self):
    return [self.x], None

  @classmethod
  def tree_unflatten(cls, aux, children):
    del aux
    return cls(*children)


def _half(i, process):
  item = small_pipeline.item(i)
  half = slice(12 * process, 12 * process + 12)
  return {"ids": item["ids"][half], "label": item["label"][half]}


@contextlib.contextmanager
def _node_of_a_job() -> Iterator[tuple[mock.Mock, mock.Mock]]:
  """A node that agrees with itself, and what makes it, in one of two processes."""
  node = mock.create_autospec(minibatching_node.MinibatchingNode)
  node.reduce = lambda key, value: value
  one_of_two = mock.PropertyMock(return_value=small_pipeline.mesh_of_one())
  with (
      mock.patch.object(job_nodes, "make_node", return_value=node) as make,
      mock.patch.object(jax.sharding.Mesh, "local_mesh", one_of_two),
  ):
    yield node, make


def _of_two(source):
  """A pipeline of two processes with a device each."""
  return small_pipeline.pipeline(
      source,
      mesh=jax.sharding.Mesh(jax.devices()[:2], ("x",)),
      specs=small_pipeline.specs(num_devices=2),
  )


class PipelineJobsTest(small_pipeline.TestCase):

  def test_the_shortest_source_of_two_processes_ends_both(self):
    barrier = threading.Barrier(2, timeout=60)
    values, lock = {}, threading.Lock()

    class Together:  # reductions between threads that stand for processes

      def bitwise_or(self, key, value):
        with lock:
          values[key] = values.get(key, 0) | value
        barrier.wait()
        return values[key]

    counts = []

    def process(num_batches):
      table = two_table_model.table(vocabulary_size=1000)
      specs = {"f": two_table_model.feature("f", table, batch=48)}
      embedding.prepare_feature_specs_for_training(specs, 2, 1)
      limits = embedding.AdaptiveLimits(
          specs, 1, 2, num_sc_per_device=1, all_reduce_interface=Together()
      )
      pipeline = small_pipeline.pipeline(
          small_pipeline.items(num_batches), specs=specs, limits=limits
      )
      with pipeline as batches:
        counts.append((num_batches, sum(1 for _ in batches)))
        with self.assertRaises(StopIteration):
          next(batches)

    threads = [
        threading.Thread(target=process, args=(n,), daemon=True) for n in (7, 9)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(60)
    self.assertEqual(sorted(counts), [(7, 7), (9, 7)])

  @parameterized.parameters("closed", "dropped", "failed")
  def test_the_node_of_a_job_goes_with_the_pipeline(self, what):
    with _node_of_a_job() as (node, make):
      pipeline = _of_two(small_pipeline.items())
      make.assert_not_called()
      if what == "failed":
        node.reduce = mock.Mock(side_effect=RuntimeError("is gone"))
        with self.assertRaisesRegex(RuntimeError, "is gone"):
          pipeline.start()
      else:
        pipeline.start()
        node.close.assert_not_called()
        if what == "closed":
          pipeline.close()
        pipeline = None
    gc.collect()
    node.close.assert_called_once_with()

  @parameterized.parameters("state", "threads")
  def test_a_start_that_fails_leaves_no_node_open(self, what):
    class Source(small_pipeline.Source):

      def get_state(self):
        if what == "state":
          raise RuntimeError("cannot start")
        return super().get_state()

    def start(thread):
      del thread
      raise RuntimeError("cannot start")

    with _node_of_a_job() as (node, make):
      pipeline = _of_two(Source())
      with self.assertRaisesRegex(RuntimeError, "cannot start"):
        with mock.patch.object(threading.Thread, "start", start):
          pipeline.start()
    self.assertEqual(node.close.call_count, make.call_count)

  def test_limits_of_a_job_agree_with_it_by_their_pipeline(self):
    nodes = _Nodes(self)
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    specs = small_pipeline.specs(num_devices=2)
    pipeline = small_pipeline.pipeline(
        small_pipeline.items(), mesh=two, specs=specs
    )
    with self.assertRaisesRegex(RuntimeError, "from its first batch on"):
      pipeline.limits.preprocess({"f": _half(0, 0)["ids"]})
    self.assertEmpty(nodes.num_made)

  @parameterized.parameters(
      (
          np.zeros((12, 3)),
          np.zeros((12, 4)),
          r", with rest as float32\[12, [34]\] per device",
      ),
      (
          np.zeros(12),
          np.zeros(12, np.int8),
          r", with rest as (float32|int8)\[12\] per device",
      ),
      (np.zeros(12), None, r"(, with rest as .*)?"),
      # As they are on devices, in whatever tree.
      (np.zeros(12), np.zeros(12, np.float32), None),
      (_Node(np.zeros(12)), _Node(np.zeros(12)), None),
  )
  def test_another_rest_is_an_error_on_all_processes(
      self, first, second, message
  ):
    nodes = _Nodes(self)
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))

    def process(i):
      item = _half(0, i) | {"label": (first, second)[i]}
      with small_pipeline.pipeline(
          [_half(0, i), item],
          mesh=two,
          specs=small_pipeline.specs(num_devices=2),
      ) as batches:
        next(batches)
        try:
          return next(batches).number
        except ValueError as error:
          return f"{error} {error.__notes__}"

    for result in nodes.run(process):
      if message is None:
        self.assertEqual(result, 1)
      else:
        self.assertRegex(
            result,
            f"Batch 1: .* of the declared size{message}. Give all .* batch 1,"
            " stage send",
        )

  @parameterized.parameters("set_state", "limits", "not closed", "minibatches")
  def test_a_pipeline_of_a_job_goes_on_with_earlier_limits(self, how):
    nodes = _Nodes(self)
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))

    def process(i):
      specs = small_pipeline.specs(num_devices=2)
      items = [_half(number, i) for number in range(small_pipeline.NUM)]

      def make(**options):
        if how == "minibatches" and "limits" not in options:
          options["limits"] = embedding.AdaptiveLimits(
              specs,
              1,
              2,
              num_sc_per_device=1,
              enable_minibatching=True,
              # pylint: disable-next=protected-access
              all_reduce_interface=input_pipeline._OfJob(),
          )
        return small_pipeline.pipeline(items, mesh=two, specs=specs, **options)

      with make() as whole:
        expected = list(whole)
      # Different numbers of batches are ahead when it is closed.
      first = make(host_prefetch=4 * i)
      got = [next(first) for _ in range(4)]
      state = first.get_state()
      if how != "not closed":
        first.close()
      with make(limits=first.limits) as second:
        if how in ("set_state", "minibatches"):
          second.set_state(state)
        else:
          got = []
        got += second
      with self.assertRaisesRegex(RuntimeError, "pipeline is closed"):
        next(first)
      return expected, got, first.limits.limits

    (expected, got, limits), (_, also_got, also_limits) = nodes.run(process)
    self.assertEqual(nodes.num_made, [3, 3])
    self.assertEqual(limits, also_limits)
    self.assertLen(got, small_pipeline.NUM)
    for batch, also in zip(got, also_got):
      self.assertEqual(batch.inputs.settings, also.inputs.settings)
    if how in ("set_state", "minibatches"):
      self.assert_same(got, expected)


if __name__ == "__main__":
  absltest.main()
