# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import collections
import contextlib
import copy
import gc
import json
import os
import threading
import traceback
import tracemalloc
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import job_nodes
from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.input import _stages
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_NUM = 12
# By hand: 1000, 20 and 200000.
_DROPS = int(os.environ.get("DROPS", "300"))
_RESUMES = int(os.environ.get("RESUMES", "10"))
_BATCHES = int(os.environ.get("BATCHES", "2000"))


def _specs(num_devices=1):
  table = two_table_model.table(vocabulary_size=1000)
  specs = {"f": two_table_model.feature("f", table)}
  embedding.prepare_feature_specs_for_training(specs, num_devices, 1)
  return specs


def _mesh_of_one():
  return jax.sharding.Mesh(jax.devices()[:1], ("x",))


def _item(i):
  rng = np.random.default_rng(i)
  ids = rng.integers(1000, size=(24, 3 + i))  # needs grow
  return {"ids": ids, "label": np.full(24, i, np.float32)}


class _Source:
  """An iterator with a state."""

  def __init__(self):
    self.position = 0

  def __iter__(self):
    return self

  def __next__(self):
    if self.position == _NUM:
      raise StopIteration
    self.position += 1
    return _item(self.position - 1)

  def get_state(self):
    return {"position": self.position}

  def set_state(self, state):
    self.position = state["position"]


def _pipeline(source, **options):
  return input_pipeline.InputPipeline(
      source,
      options.pop("specs", None) or _specs(),
      **dict(
          ids=lambda item: {"f": item["ids"]},
          rest=lambda item: item["label"],
          mesh=_mesh_of_one(),
          sharding_axis="x",
      )
      | options,
  )


def _items(n=_NUM):
  return [_item(i) for i in range(n)]


def _threads():
  """Of pipelines."""
  return [t for t in threading.enumerate() if t.name.startswith("input ")]


class _Nodes:
  """The nodes of two threads that stand for processes, each with a device."""

  def __init__(self, test):
    self._changed = threading.Condition()
    self._values = collections.defaultdict(list)
    self._numbers = collections.Counter()  # thread -> nodes
    self._closed = set()  # numbers of nodes; the peers are told
    two = mock.PropertyMock(return_value=_mesh_of_one())
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


def _half(i, process):
  item = _item(i)
  half = slice(12 * process, 12 * process + 12)
  return {"ids": item["ids"][half], "label": item["label"][half]}


def _arrays(batch):
  return jax.tree.map(np.asarray, (batch.inputs, batch.rest))


class InputPipelineTest(parameterized.TestCase):

  def assert_same(self, got, expected):
    self.assertEqual(
        [batch.number for batch in got], [batch.number for batch in expected]
    )
    for a, b in zip(got, expected):
      self.assertEqual(a.inputs.settings, b.inputs.settings)
      jax.tree.map(np.testing.assert_array_equal, _arrays(a), _arrays(b))

  @parameterized.product(workers=(1, 4), prefetch=(0, 1, 8))
  def test_batches_are_those_of_a_plain_loop(self, workers, prefetch):
    limits = embedding.AdaptiveLimits(_specs(), 1, 1)
    with _pipeline(
        _items(),
        workers=workers,
        host_prefetch=prefetch,
        device_prefetch=prefetch,
    ) as batches:
      got = list(batches)
    self.assertLen(got, _NUM)
    for i, batch in enumerate(got):
      inputs, _ = limits.preprocess({"f": _item(i)["ids"]})
      self.assertEqual(batch.number, i)
      self.assertEqual(batch.inputs.settings, inputs.settings)
      jax.tree.map(
          np.testing.assert_array_equal,
          _arrays(batch),
          (inputs, _item(i)["label"]),
      )

  def test_ended_stays_ended(self):
    with _pipeline(_items(2)) as batches:
      self.assertLen(list(batches), 2)
      for _ in range(2):
        with self.assertRaises(StopIteration):
          next(batches)

  @parameterized.parameters((0, 0, 1), (2, 2, 1), (1, 3, 4))
  def test_reads_no_more_than_its_room(self, host, device, workers):
    # One more than that would be read if there were room.
    room = host + device + workers + 1
    num_read = threading.Semaphore(0)

    def source():
      for i in range(100):
        num_read.release()
        yield _item(i % 3)

    pipeline = _pipeline(
        source(), host_prefetch=host, device_prefetch=device, workers=workers
    )
    with pipeline:
      next(pipeline)
      for _ in range(room + 1):
        self.assertTrue(num_read.acquire(timeout=60))
      self.assertFalse(num_read.acquire(timeout=0.2))

  @parameterized.product(
      stage=("read", "preprocess", "send"), number=(0, 5, _NUM - 1)
  )
  def test_errors_come_where_the_batch_would_have(self, stage, number):
    def source():
      for i in range(_NUM):
        if stage == "read" and i == number:
          raise OSError("no such file")
        item = _item(i)
        if stage == "preprocess" and i == number:
          item["ids"][0] = 1000
        if stage == "send" and i == number:
          item["label"] = np.full(24, "text")
        yield item

    with _pipeline(source(), workers=2) as batches:
      for i in range(number):
        self.assertEqual(next(batches).number, i)
      for _ in range(2):
        with self.assertRaises(Exception) as caught:
          next(batches)
        self.assertNotIsInstance(caught.exception, StopIteration)
        self.assertIn(
            f"input batch {number}, stage {stage}",
            getattr(caught.exception, "__notes__", ()),
        )

  @parameterized.product(
      stage=("read", "preprocess", "send", "on_batch"), resumed=(0, 3)
  )
  def test_errors_say_which_batch_of_the_source_it_was(self, stage, resumed):
    class Source(_Source):

      def __next__(self):
        item = super().__next__()
        if self.position == 6:
          if stage == "read":
            raise OSError("no such file")
          if stage == "preprocess":
            item["ids"][0] = 1000
          if stage == "send":
            item["label"] = np.full(24, "text")
        return item

    def on_batch(number, *_):
      if stage == "on_batch" and number == 5:
        raise ValueError(number)

    with _pipeline(_Source()) as batches:
      for _ in range(resumed):
        next(batches)
      state = batches.get_state()
    with _pipeline(Source(), on_batch=on_batch, workers=2) as batches:
      if resumed:
        batches.set_state(state)
      for number in range(resumed, 5):
        self.assertEqual(next(batches).number, number)
      with self.assertRaises(Exception) as caught:
        next(batches)
    self.assertEqual(
        caught.exception.__notes__, [f"input batch 5, stage {stage}"]
    )

  @parameterized.parameters("ended", "failed", "failed to send")
  def test_threads_and_pipeline_go_after_their_end(self, what):
    def source():
      yield _item(0)
      if what == "failed":
        raise OSError("no such file")
      if what == "failed to send":
        yield _item(1) | {"label": np.full(24, "text")}
      yield from _items(2)

    before = set(_threads())
    pipeline = _pipeline(source(), workers=3)
    gone = weakref.ref(pipeline)
    depths = []
    for _ in range(5):
      try:
        for _ in pipeline:
          pass
      except Exception as error:  # pylint: disable=broad-except
        depths.append(len(traceback.extract_tb(error.__traceback__)))
    self.assertLen(depths, 0 if what == "ended" else 5)
    self.assertLessEqual(len(set(depths)), 1)  # each has the same frames
    for thread in set(_threads()) - before:
      thread.join(60)  # without its being dropped, or closed
    self.assertEmpty(set(_threads()) - before)
    del pipeline
    if what != "ended":  # an error, and who raised it, refer to each other
      gc.collect()
    self.assertIsNone(gone())

  def test_closed_by_a_thread_that_holds_the_lock(self):
    made, closed = threading.Event(), threading.Event()

    def work(number, item):  # as where garbage is collected in a stage
      del number, item
      made.wait()
      with stages._lock:  # pylint: disable=protected-access
        stages.close()
      closed.set()

    with self.assertNoLogs(_stages.__name__, "WARNING"):
      items = iter(range(100))
      stages = _stages.Stages(
          lambda: next(items),
          work,
          lambda number, result: result,
          end=lambda: None,
          first=0,
          workers=2,
          room=4,
          num_finished=1,
          name="items",
      )
      made.set()
      self.assertTrue(closed.wait(10))
      stages.close()
    with self.assertRaisesRegex(RuntimeError, "is closed"):
      stages.next()

  @parameterized.parameters(
      ("ids", "preprocess"),
      ("weights", "preprocess"),
      ("rest", "preprocess"),
      ("on_growth", "send"),
      ("on_batch", "on_batch"),
  )
  def test_only_the_source_ends_with_stop_iteration(self, name, stage):
    take = lambda *_: next(iter(()))
    options = {name: take}
    if name == "on_growth":
      specs = _specs()
      limits = embedding.AdaptiveLimits(specs, 1, 1, on_growth=take)
      options = dict(specs=specs, limits=limits)
    with (
        _pipeline(_items(), **options) as batches,
        self.assertRaisesRegex(
            RuntimeError, f"{stage} raised StopIteration"
        ) as caught,
    ):
      next(batches)
    self.assertIsInstance(caught.exception.__cause__, StopIteration)
    self.assertEqual(
        caught.exception.__notes__, [f"input batch 0, stage {stage}"]
    )

  def test_a_source_that_cannot_begin_is_no_end(self):
    class Source:

      def __iter__(self):
        return next(iter(()))

      def __repr__(self):
        return "Source()"

    with (
        _pipeline(Source()) as batches,
        self.assertRaisesRegex(
            RuntimeError, r"iter\(Source\(\)\) raised StopIteration"
        ),
    ):
      list(batches)

  def test_copies_of_a_buffer_that_is_filled_again(self):
    def refilled():
      buffer = _item(0)
      for i in range(_NUM):
        buffer["ids"][:] = buffer["label"][:] = i
        yield buffer

    limits = embedding.AdaptiveLimits(_specs(), 1, 1)
    with _pipeline(map(copy.deepcopy, refilled())) as batches:
      for item in refilled():
        inputs, _ = limits.preprocess({"f": item["ids"]})
        jax.tree.map(
            np.testing.assert_array_equal,
            _arrays(next(batches)),
            (inputs, item["label"]),
        )

  def test_the_state_is_that_of_the_last_batch_that_a_thread_has(self):
    first_is_out, second_is_out = threading.Event(), threading.Event()

    def on_batch(number, *_):
      if number == 0:  # holds this thread up, while another one overtakes it
        first_is_out.set()
        second_is_out.wait()

    with _pipeline([_item(k) for k in range(4)], on_batch=on_batch) as batches:
      thread = threading.Thread(target=next, args=(batches,))
      thread.start()
      first_is_out.wait()
      self.assertEqual(next(batches).number, 1)
      second_is_out.set()
      thread.join()
      self.assertEqual(batches.get_state()["number"], 2)

  def test_threads_may_race_for_the_first_batch(self):
    both_begin = threading.Barrier(2)

    class Source(_Source):

      def __iter__(self):
        with contextlib.suppress(threading.BrokenBarrierError):
          both_begin.wait(0.5)
        return self

    labels = []

    def take():
      for batch in batches:
        labels.append(batch.rest[0])

    with _pipeline(Source()) as batches:
      threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join(60)
    self.assertEqual(sorted(labels), list(range(_NUM)))

  @parameterized.parameters(
      (_Source, 3), (_Source, 0), (_items, 3), (_items, _NUM)
  )
  def test_resumes_after_the_batch_handed_out(self, make_source, num_before):
    with _pipeline(make_source()) as batches:
      expected = list(batches)
    with _pipeline(make_source()) as batches:
      got = [next(batches) for _ in range(num_before)]
      state = json.loads(json.dumps(batches.get_state()))
    with _pipeline(make_source()) as batches:
      batches.set_state(state)
      self.assertEqual(batches.get_state(), state)
      got += list(batches)
    self.assert_same(got, expected)

  @parameterized.parameters("in place", "another", "no skip")
  def test_a_source_skips_what_was_handed_out(self, way):
    skipped = []

    class Source:  # iterates over items, from where it is

      def __init__(self, first=0):
        self.first = first

      def __iter__(self):
        return iter(_items()[self.first :])

    class SkippingSource(Source):

      def skip(self, n):
        skipped.append(n)
        if way == "another":
          return Source(n)
        self.first += n

    make_source = Source if way == "no skip" else SkippingSource
    with _pipeline(make_source()) as batches:
      expected = list(batches)
    with _pipeline(make_source()) as batches:
      first_state = batches.get_state()
      for _ in range(5):
        next(batches)
      state = json.loads(json.dumps(batches.get_state()))
    with (
        _pipeline(make_source()) as batches,
        self.assertLogs(input_pipeline.__name__, "INFO") as log,
    ):
      batches.set_state(state)
      self.assert_same(list(batches), expected[5:])
    said = "5 were read and dropped" if way == "no skip" else r"skip\(5\) was"
    self.assertRegex(log.output[0], f"Source.* after 5 batches: {said}")
    self.assertEqual(skipped, [] if way == "no skip" else [5])
    with _pipeline(make_source()) as batches:
      batches.set_state(first_state)  # skips nothing
      self.assert_same([next(batches)], expected[:1])
    self.assertLen(skipped, 0 if way == "no skip" else 1)

  def test_a_source_with_a_state_is_set_and_does_not_skip(self):
    class Source(_Source):

      def skip(self, n):
        raise NotImplementedError(n)

    with _pipeline(Source()) as batches:
      next(batches)
      state = batches.get_state()
    with self.assertLogs(input_pipeline.__name__, "INFO") as log:
      _pipeline(Source()).set_state(state)
    self.assertIn("after 1 batches: its state was set", log.output[0])
    with self.assertRaisesRegex(ValueError, r"\[\{'ids': .* has no set_state"):
      _pipeline(_items()).set_state(state)

  def test_the_rest_is_what_is_no_id(self):
    weights = np.ones(24 * 3, np.float32).reshape(24, 3)
    item = _item(0) | {"weights": weights, "dense": np.zeros((24, 2))}
    options = dict(rest=None, weights=lambda item: {"f": item["weights"]})
    with _pipeline([item], **options) as batches:
      rest = next(batches).rest
      self.assertCountEqual(rest, ["label", "dense"])
      self.assertEqual(rest["dense"].shape, (24, 2))
    ids = lambda item: {"f": item[0]["ids"]}
    with _pipeline([(item,)], rest=None, ids=ids) as batches:
      self.assertIsNone(next(batches).rest)
    item = {"values": item["ids"].ravel(), "splits": np.arange(25) * 3}
    ids = lambda item: {"f": (item["values"], item["splits"])}
    with _pipeline([item], rest=None, ids=ids) as batches:
      self.assertEqual(next(batches).rest, {})
    with (
        _pipeline([item | {"epoch": 1}], rest=None, ids=ids) as batches,
        self.assertRaisesRegex(
            ValueError, r"rest\['epoch'\] has shape \(\), .* with 24 samples"
        ) as caught,
    ):
      next(batches)
    self.assertIn("input batch 0, stage send", caught.exception.__notes__)

  def test_the_rest_is_what_is_no_id_anywhere_in_it(self):
    ids, label = np.zeros((24, 3), np.int64), np.zeros(24)
    pair = (ids.ravel(), np.arange(25) * 3)
    nested = {"ids": {"f": ids}}
    none = {"ids": {"f": ids, "mask": None}}
    mixed = {"x": {"f": ids, "y": label}, "z": [ids, {"f": ids}, label]}
    for more, get_ids, expected in (
        (nested, lambda item: item["ids"], {}),
        ({"a": nested}, lambda item: item["a"]["ids"], {}),
        ({"ids": pair}, lambda item: {"f": item["ids"]}, {}),
        ({"ids": {"f": pair}}, lambda item: item["ids"], {}),
        (none, lambda item: {"f": item["ids"]["f"]}, {}),
        (
            mixed,
            lambda item: {"f": item["x"]["f"]},
            {"x": {"y": label}, "z": [None, {"f": None}, label]},
        ),
        # Ids that are no longer the same array, as in a flat item.
        (
            {"ids": {"f": ids}},
            lambda item: {"f": item["ids"]["f"] + 1},
            {"ids": {"f": ids}},
        ),
        (
            {"ids": ids, "empty": {}, "none": None},
            lambda item: {"f": item["ids"]},
            {"empty": {}, "none": None},
        ),
    ):
      item = {"label": label, **more}
      with _pipeline([item], rest=None, ids=get_ids) as batches:
        rest = next(batches).rest
      expected = {"label": label, **expected}
      self.assertEqual(jax.tree.structure(rest), jax.tree.structure(expected))
      jax.tree.map(np.testing.assert_array_equal, rest, expected)

  @parameterized.parameters(
      (np.int32(7), None),
      (np.int64(2**31 - 1), None),
      (np.int64(-(2**31)), None),
      (np.uint64(2**32 - 1), None),
      (np.float64(0.1), None),
      (np.float64(np.inf), None),
      (np.float64(np.nan), None),
      (np.int64(2**31), "the value 2147483648, .* int64 .* not fit int32"),
      (np.int64(-(2**31) - 1), "the value -2147483649, .* not fit int32"),
      (np.uint64(2**32), "the value 4294967296, .* not fit uint32"),
      (np.float64(-1e300), r"the value -1e\+300, .* not fit float32"),
  )
  def test_the_rest_fits_32_bits(self, value, message):
    last = np.zeros((24, 2), value.dtype)
    last[-1, 1] = value
    with _pipeline([_item(0) | {"a": (last,)}], rest=None) as batches:
      if message is None:
        got = next(batches).rest["a"][0]
        np.testing.assert_array_equal(got, last.astype(got.dtype))
      else:
        with self.assertRaisesRegex(
            ValueError, rf"rest\['a'\]\[0\] has {message}.* Cast"
        ):
          next(batches)

  def test_the_rest_has_the_samples_of_ids(self):
    with (
        _pipeline([_item(0) | {"a": np.zeros((23, 2))}], rest=None) as batches,
        self.assertRaisesRegex(
            ValueError, r"rest\['a'\] has shape \(23, 2\), .* with 24 samples"
        ),
    ):
      next(batches)
    # A batch of another size than that of the specs.
    item = {"ids": np.zeros((8, 1), int), "label": np.zeros(8)}
    with _pipeline([item]) as batches:
      self.assertEqual(next(batches).rest.shape, (8,))
    # A number for each of three positions of a sample.
    with _pipeline([_item(0) | {"a": np.zeros(72)}], rest=None) as batches:
      self.assertEqual(next(batches).rest["a"].shape, (72,))

  def test_the_rest_may_have_the_leading_dimension_of_buffers(self):
    specs = _specs(num_devices=2)
    limits = embedding.AdaptiveLimits(specs, 2, 2, has_leading_dimension=True)
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    options = dict(rest=lambda item: item["label"].reshape(2, 12), mesh=mesh)
    with _pipeline(_items(), specs=specs, limits=limits, **options) as batches:
      self.assertEqual(next(batches).rest.shape, (2, 12))

  def test_buffers_are_in_memory_as_large_as_what_is_ahead(self):
    pools = []

    def make_pool():
      pools.append(output_pool())
      return pools[-1]

    output_pool = embedding.OutputPool
    items = [_item(300)] * 50
    with mock.patch.object(embedding, "OutputPool", make_pool):
      pipeline = _pipeline(items, host_prefetch=1, device_prefetch=1)
    of_process = output_pool.of_process().num_allocated
    with (
        pipeline as batches,
        self.assertLogs(input_pipeline.__name__, "INFO") as log,
    ):
      for batch in batches:
        num_bytes = sum(x.nbytes for x in jax.tree.leaves(batch.inputs))
      (pool,) = pools
      # What is ahead, and two of the step.
      self.assertEqual(pool.max_bytes, 6 * num_bytes)
      self.assertGreater(pool.num_reused, 2 * pool.num_allocated)
    each = num_bytes + items[0]["label"].nbytes
    self.assertIn(
        f"4 batches of {each} bytes are ahead, {4 * each} bytes", log.output[0]
    )
    self.assertLen(log.output, 1)
    self.assertEqual(output_pool.of_process().num_allocated, of_process)
    self.assertEqual(pool.idle_bytes, 0)

  def test_new_limits_have_the_number_of_threads(self):
    with mock.patch.object(
        embedding, "AdaptiveLimits", wraps=embedding.AdaptiveLimits
    ) as made:
      _pipeline(_items(), num_threads=3)
    self.assertEqual(made.call_args.kwargs["num_threads"], 3)

  @parameterized.parameters(
      dict(mesh=None),
      dict(sharding_axis=None),
      dict(mesh=None, sharding_axis=None),
  )
  def test_specs_need_a_mesh(self, **options):
    with self.assertRaisesRegex(
        ValueError, "specs need mesh and sharding_axis"
    ):
      _pipeline(_items(), **options)

  def test_states_that_do_not_fit_are_refused(self):
    with _pipeline(_items()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
      with self.assertRaisesRegex(RuntimeError, "before the first batch"):
        batches.set_state(state)
    with self.assertRaisesRegex(ValueError, "after 5 batches.*source has 2"):
      _pipeline(_items(2)).set_state(state)
    with self.assertRaisesRegex(ValueError, "version 7, expected 1"):
      _pipeline(_items()).set_state(state | {"version": 7})
    for number in (-1, None, 1.5, "5"):
      with self.assertRaisesRegex(
          ValueError, f"has number {number!r}, expected how many batches"
      ):
        _pipeline(_items()).set_state(state | {"number": number})
    for key in ("number", "source"):
      with self.assertRaisesRegex(ValueError, f"The state has no '{key}'"):
        _pipeline(_items()).set_state(
            {k: v for k, v in state.items() if k != key}
        )

  def test_limits_that_are_refused_leave_the_source_where_it_is(self):
    with _pipeline(_Source()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
    specs = _specs()
    limits = embedding.AdaptiveLimits(specs, 1, 1, enable_minibatching=True)
    source = _Source()
    with _pipeline(source, specs=specs, limits=limits) as batches:
      with self.assertRaisesRegex(
          ValueError, "enable_minibatching False.*None may take their place"
      ):
        batches.set_state(state)
      self.assertEqual(source.position, 0)
      # What the error says to do.
      batches.set_state(state | {"limits": None})
      self.assertEqual(source.position, 5)
      self.assertEmpty(limits.growths)
      self.assertEqual([batch.number for batch in batches], [*range(5, _NUM)])
      self.assertNotEmpty(limits.growths)
    with _pipeline(_Source()) as batches:
      state.pop("limits")
      batches.set_state(state)
      self.assertEqual(next(batches).number, 5)

  def test_a_source_that_fails_leaves_limits_as_they_are(self):
    with _pipeline(_items()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
    with _pipeline(_items(2)) as batches:
      before = batches.limits.state_dict()
      with self.assertRaisesRegex(ValueError, "source has 2"):
        batches.set_state(state)
      self.assertEqual(batches.limits.state_dict(), before)

  def test_states_are_shared_with_nobody(self):
    class Source(_Source):  # that changes the state that it was given

      def __init__(self):
        self.state = {"position": [0]}

      position = property(
          lambda self: self.state["position"][0],
          lambda self, value: self.state["position"].__setitem__(0, value),
      )

      def get_state(self):
        return self.state

      def set_state(self, state):
        self.state = state

    with _pipeline(Source()) as batches:
      for _ in range(3):
        next(batches)
      state = batches.get_state()
      expected = copy.deepcopy(state)
    for _ in range(2):
      with _pipeline(Source()) as batches:
        batches.set_state(state)
        got = batches.get_state()
        got["source"]["position"][0] = 7
        self.assertEqual(batches.get_state(), expected)
        self.assertEqual([batch.number for batch in batches], [*range(3, _NUM)])
        self.assertEqual(state, expected)

  def test_threads_and_memory_go_when_it_is_dropped(self):
    def resident_bytes():
      with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    items, specs = _items(), _specs()
    before = threading.active_count()
    for i in range(_DROPS):
      pipeline = _pipeline(items, specs=specs, workers=2)
      for _ in range(3):
        next(pipeline)
      del pipeline
      if i == 50:  # what is made once is there
        resident = resident_bytes()
    gc.collect()
    self.assertEqual(threading.active_count(), before)
    self.assertLess(resident_bytes() - resident, 20e6)

  @parameterized.parameters(_Source, _items)
  def test_resumes_after_any_batch(self, make_source):
    with _pipeline(make_source(), host_prefetch=4) as batches:
      expected = list(batches)
    for number in np.random.default_rng(0).integers(1, _NUM, _RESUMES):
      with _pipeline(make_source(), host_prefetch=4, workers=3) as batches:
        for _ in range(number):
          next(batches)
        state = json.loads(json.dumps(batches.get_state()))
      with _pipeline(make_source(), workers=2) as batches:
        batches.set_state(state)
        self.assert_same(list(batches), expected[number:])

  def test_many_small_batches_take_no_more_memory(self):
    specs = _specs()
    num_batches = _BATCHES
    source = (
        {"ids": np.full((24, 1), i % 7), "label": np.zeros(24, np.float32)}
        for i in range(num_batches)
    )
    most = 0
    with _pipeline(source, specs=specs) as batches:
      for batch in batches:
        if batch.number == 100:
          gc.collect()
          tracemalloc.start()
        if batch.number in (200, num_batches - 1):
          gc.collect()
          used, _ = tracemalloc.get_traced_memory()
          if batch.number == 200:
            most = used
    tracemalloc.stop()
    self.assertLess(used, most + 300_000)

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
      pipeline = _pipeline(_items(num_batches), specs=specs, limits=limits)
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

  def test_closed_is_closed(self):
    pipeline = _pipeline(_items())
    next(pipeline)
    pipeline.close()
    pipeline.close()
    with self.assertRaisesRegex(RuntimeError, "pipeline is closed"):
      next(pipeline)
    pipeline = _pipeline(_items())
    pipeline.close()
    with self.assertRaisesRegex(RuntimeError, "pipeline is closed"):
      pipeline.start()

  @parameterized.parameters("closed", "dropped", "failed")
  def test_the_node_of_a_job_goes_with_the_pipeline(self, what):
    node = mock.create_autospec(minibatching_node.MinibatchingNode)
    node.reduce = lambda key, value: value
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    one_of_two = mock.PropertyMock(return_value=_mesh_of_one())
    with (
        mock.patch.object(job_nodes, "make_node", return_value=node) as make,
        mock.patch.object(jax.sharding.Mesh, "local_mesh", one_of_two),
    ):
      pipeline = _pipeline(_items(), mesh=two, specs=_specs(num_devices=2))
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

  def test_limits_of_a_job_agree_with_it_by_their_pipeline(self):
    nodes = _Nodes(self)
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    specs = _specs(num_devices=2)
    pipeline = _pipeline(_items(), mesh=two, specs=specs)
    with self.assertRaisesRegex(RuntimeError, "from its first batch on"):
      pipeline.limits.preprocess({"f": _half(0, 0)["ids"]})
    self.assertEmpty(nodes.num_made)

  @parameterized.parameters("set_state", "limits", "not closed", "minibatches")
  def test_a_pipeline_of_a_job_goes_on_with_earlier_limits(self, how):
    nodes = _Nodes(self)
    two = jax.sharding.Mesh(jax.devices()[:2], ("x",))

    def process(i):
      specs = _specs(num_devices=2)
      items = [_half(number, i) for number in range(_NUM)]

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
        return _pipeline(items, mesh=two, specs=specs, **options)

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
    self.assertLen(got, _NUM)
    for batch, also in zip(got, also_got):
      self.assertEqual(batch.inputs.settings, also.inputs.settings)
    if how in ("set_state", "minibatches"):
      self.assert_same(got, expected)

  def test_a_forked_process_makes_its_own(self):
    pipeline = _pipeline(_items())
    pipeline._process = os.getpid() + 1  # pylint: disable=protected-access
    with self.assertRaisesRegex(RuntimeError, "Make it in the process"):
      next(pipeline)

  @parameterized.parameters(
      (dict(workers=0), "workers must be an integer of at least 1, got 0"),
      (dict(host_prefetch=-1), "host_prefetch must be .* got -1"),
      (dict(device_prefetch=1.5), "device_prefetch must be .* got 1.5"),
  )
  def test_numbers_that_make_no_sense_are_refused(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _pipeline(_items(), **options)

  def test_limits_must_be_of_the_specs(self):
    limits = embedding.AdaptiveLimits(_specs(), 1, 1)
    with self.assertRaisesRegex(ValueError, "limits are of other feature_spec"):
      _pipeline(_items(), limits=limits)
    specs = _specs()
    limits = embedding.AdaptiveLimits(specs, 1, 1)
    with _pipeline(_items(), specs=specs, limits=limits) as batches:
      next(batches)
      self.assertIs(batches.limits, limits)


if __name__ == "__main__":
  absltest.main()
