# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import gc
import importlib.util
import json
import pathlib
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_HAS_GRAIN = importlib.util.find_spec("grain") is not None
if _HAS_GRAIN:
  import grain  # pylint: disable=g-import-not-at-top
  from jax_tpu_embedding.sparsecore.lib.input import grain_input  # pylint: disable=g-import-not-at-top

jax.config.update("jax_num_cpu_devices", 2)

_NUM = 8


def _records():
  rng = np.random.default_rng(0)
  return [
      {"ids": rng.integers(1000, size=4), "label": np.float32(i)}
      for i in range(_NUM * 24)
  ]


def _specs(num_devices=1):
  table = two_table_model.table(vocabulary_size=1000)
  specs = {"f": two_table_model.feature("f", table, valency=4)}
  embedding.prepare_feature_specs_for_training(specs, num_devices, 1)
  return specs


def _batches():
  return grain.MapDataset.source(_records()).shuffle(seed=1).batch(24)


def _options():
  return dict(
      ids=lambda batch: {"f": batch["ids"]},
      mesh=jax.sharding.Mesh(jax.devices()[:1], ("x",)),
      sharding_axis="x",
  )


def _num_threads():
  """Of pipelines; grain has some of its own."""
  return sum(t.name.startswith("input ") for t in threading.enumerate())


def _dataset(before=None, specs=None, **options):
  return grain_input.preprocess(
      before or _batches(), specs or _specs(), **(_options() | options)
  )


@absltest.skipIf(not _HAS_GRAIN, "grain is not installed: pip install grain.")
class GrainInputTest(parameterized.TestCase):

  def assert_same(self, got, expected):
    self.assertEqual(
        [batch.number for batch in got], [batch.number for batch in expected]
    )
    for a, b in zip(got, expected):
      self.assertEqual(a.inputs.settings, b.inputs.settings)
      jax.tree.map(
          np.testing.assert_array_equal, (a.inputs, a.rest), (b.inputs, b.rest)
      )

  @parameterized.parameters(False, True)
  def test_batches_are_those_of_the_pipeline(self, is_iter_dataset):
    before = _batches()
    if is_iter_dataset:
      before = before.to_iter_dataset()
    with input_pipeline.InputPipeline(
        before, _specs(), **_options()
    ) as batches:
      expected = list(batches)
    ds = _dataset(before)
    self.assertIsInstance(ds, grain.IterDataset)
    got = list(ds)
    self.assertLen(got, _NUM)
    self.assert_same(got, expected)

  def test_iterators_share_limits(self):
    ids = np.random.default_rng(0).integers(1000, size=(24, 60))
    batches = [{"ids": ids[:, :1]}, {"ids": ids}]
    ds = _dataset(grain.MapDataset.source(batches))
    small, large = ds
    self.assertNotEqual(small.inputs.settings, large.inputs.settings)
    for batch in ds:
      self.assertEqual(batch.inputs.settings, large.inputs.settings)

  @parameterized.parameters(*range(_NUM + 1))
  def test_resumes_after_any_batch(self, num_before):
    expected = list(_dataset())
    iterator = iter(_dataset())
    for _ in range(num_before):
      next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    rest = list(iterator)
    self.assert_same(rest, expected[num_before:])
    # Back, which iterators of grain may be set to; and in a new one.
    for resumed in iterator, iter(_dataset()):
      resumed.set_state(state)
      self.assertEqual(resumed.get_state(), state)
      self.assert_same(list(resumed), rest)
      resumed.close()

  def test_the_state_is_of_what_was_handed_out_whatever_is_read(self):
    iterator = iter(_dataset(host_prefetch=3))
    state = iterator.get_state()
    iterator.start_prefetch()
    self.assertEqual(iterator.get_state(), state)
    expected = list(iterator)
    self.assertLen(expected, _NUM)
    iterator.set_state(state)
    self.assert_same(list(iterator), expected)

  def test_checkpoints_of_grain_take_it(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    expected = list(_dataset())
    iterator = iter(_dataset())
    for _ in range(3):
      next(iterator)
    grain.checkpoint.CheckpointHandler().save(directory, iterator)
    resumed = iter(_dataset())
    grain.checkpoint.CheckpointHandler().restore(directory, resumed)
    self.assert_same(list(resumed), expected[3:])

  def test_reads_ahead_when_told_to(self):
    before = _num_threads()
    iterator = iter(_dataset())
    self.assertEqual(_num_threads(), before)
    iterator.start_prefetch()
    # A reader, two workers and a sender.
    self.assertEqual(_num_threads(), before + 4)
    iterator.close()
    self.assertEqual(_num_threads(), before)

  def test_iterators_that_share_limits_share_their_options(self):
    ds = _dataset(num_threads=1)
    self.assertEqual([batch.number for batch in ds], [*range(_NUM)])
    self.assertEqual([batch.number for batch in ds], [*range(_NUM)])

  def test_threads_go_with_close_and_with_the_iterator(self):
    before = _num_threads()
    iterator = iter(_dataset())
    next(iterator)
    iterator.close()
    iterator.close()
    self.assertEqual(_num_threads(), before)
    with self.assertRaisesRegex(ValueError, "closed iterator"):
      next(iterator)
    iterator = iter(_dataset())
    next(iterator)
    del iterator
    gc.collect()
    self.assertEqual(_num_threads(), before)

  def test_a_state_that_is_refused_leaves_it_where_it_is(self):
    expected = list(_dataset())
    iterator = iter(_dataset())
    for num_before in (0, 3):
      state = iterator.get_state()
      for change in (
          {"number": -1},
          {"limits": {"version": 7}},
          {"source": {"next_index": "x", "no": "state"}},
      ):
        with self.assertRaises(Exception):
          iterator.set_state(state | change)
        self.assertEqual(iterator.get_state(), state)
      self.assert_same(
          [next(iterator) for _ in range(3)],
          expected[num_before : num_before + 3],
      )
    self.assert_same(list(iterator), expected[6:])
    iterator.set_state(state | {"limits": None})
    self.assertEqual(next(iterator).number, 3)

  def test_states_are_copies(self):
    iterator = iter(_dataset())
    for num_before in (0, 1):
      state = iterator.get_state()
      state["source"].clear()
      self.assertNotEmpty(iterator.get_state()["source"])
      self.assertEqual(next(iterator).number, num_before)

  def test_of_several_processes_each_pipeline_has_a_node(self):
    nodes = []

    def make_node():  # of a process whose peer agrees to everything
      node = mock.create_autospec(minibatching_node.MinibatchingNode)

      def reduce(key, value):
        del key
        if node.close.called:
          raise RuntimeError("The node is closed.")
        return value

      node.reduce = reduce
      nodes.append(node)
      return node

    one_of_two = mock.PropertyMock(
        return_value=jax.sharding.Mesh(jax.devices()[:1], ("x",))
    )
    records = _records()
    before = grain.MapDataset.source(records).batch(12)
    with (
        mock.patch.object(job_nodes, "make_node", make_node),
        mock.patch.object(jax.sharding.Mesh, "local_mesh", one_of_two),
        mock.patch.object(input_pipeline, "_send", lambda tree, _: tree),
    ):
      mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
      ds = _dataset(before, _specs(2), mesh=mesh)
      iterator = iter(ds)
      state = iterator.get_state()
      iterator.set_state(state)
      self.assertEmpty(nodes)
      for _ in range(2):
        self.assertEqual([next(iterator).number for _ in range(3)], [0, 1, 2])
        iterator.set_state(state)
      next(iterator)
      iterator.close()
      self.assertEqual([batch.number for batch in ds], [*range(2 * _NUM)])
    self.assertLen(nodes, 4)
    gc.collect()
    self.assertTrue(all(node.close.called for node in nodes))

  def test_worker_processes_come_before_it(self):
    ds = _dataset().mp_prefetch(
        grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    )
    with self.assertRaisesRegex(TypeError, "put it after mp_prefetch"):
      next(iter(ds))

  def test_bad_arguments_are_told_at_once(self):
    with self.assertRaisesRegex(ValueError, "workers must be"):
      _dataset(workers=0)
    with self.assertRaisesRegex(ValueError, "need mesh and sharding_axis"):
      _dataset(mesh=None)


if __name__ == "__main__":
  absltest.main()
