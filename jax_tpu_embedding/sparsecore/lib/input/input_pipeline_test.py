# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import contextlib
import copy
import gc
import os
import signal
import threading
import traceback
import tracemalloc
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.input.testing import small_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

# By hand: 1000 and 200000.
_DROPS = int(os.environ.get("DROPS", "300"))
_BATCHES = int(os.environ.get("BATCHES", "2000"))


class InputPipelineTest(small_pipeline.TestCase):

  @parameterized.product(workers=(1, 4), prefetch=(0, 1, 8))
  def test_batches_are_those_of_a_plain_loop(self, workers, prefetch):
    limits = embedding.AdaptiveLimits(small_pipeline.specs(), 1, 1)
    with small_pipeline.pipeline(
        small_pipeline.items(),
        workers=workers,
        host_prefetch=prefetch,
        device_prefetch=prefetch,
    ) as batches:
      got = list(batches)
    self.assertLen(got, small_pipeline.NUM)
    for i, batch in enumerate(got):
      inputs, _ = limits.preprocess({"f": small_pipeline.item(i)["ids"]})
      self.assertEqual(batch.number, i)
      self.assertEqual(batch.inputs.settings, inputs.settings)
      jax.tree.map(
          np.testing.assert_array_equal,
          small_pipeline.arrays(batch),
          (inputs, small_pipeline.item(i)["label"]),
      )

  def test_ended_stays_ended(self):
    with small_pipeline.pipeline(small_pipeline.items(2)) as batches:
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
        yield small_pipeline.item(i % 3)

    pipeline = small_pipeline.pipeline(
        source(), host_prefetch=host, device_prefetch=device, workers=workers
    )
    with pipeline:
      next(pipeline)
      for _ in range(room + 1):
        self.assertTrue(num_read.acquire(timeout=60))
      self.assertFalse(num_read.acquire(timeout=0.2))

  @parameterized.product(
      stage=("read", "preprocess", "send"),
      number=(0, 5, small_pipeline.NUM - 1),
  )
  def test_errors_come_where_the_batch_would_have(self, stage, number):
    def source():
      for i in range(small_pipeline.NUM):
        if stage == "read" and i == number:
          raise OSError("no such file")
        item = small_pipeline.item(i)
        if stage == "preprocess" and i == number:
          item["ids"][0] = 1000
        if stage == "send" and i == number:
          item["label"] = np.full(24, "text")
        yield item

    with small_pipeline.pipeline(source(), workers=2) as batches:
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
    class Source(small_pipeline.Source):

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

    with small_pipeline.pipeline(small_pipeline.Source()) as batches:
      for _ in range(resumed):
        next(batches)
      state = batches.get_state()
    with small_pipeline.pipeline(
        Source(), on_batch=on_batch, workers=2
    ) as batches:
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
      yield small_pipeline.item(0)
      if what == "failed":
        raise OSError("no such file")
      if what == "failed to send":
        yield small_pipeline.item(1) | {"label": np.full(24, "text")}
      yield from small_pipeline.items(2)

    before = set(small_pipeline.threads())
    pipeline = small_pipeline.pipeline(source(), workers=3)
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
    for thread in set(small_pipeline.threads()) - before:
      thread.join(60)  # without its being dropped, or closed
    self.assertEmpty(set(small_pipeline.threads()) - before)
    del pipeline
    if what != "ended":  # an error, and who raised it, refer to each other
      gc.collect()
    self.assertIsNone(gone())

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
      specs = small_pipeline.specs()
      limits = embedding.AdaptiveLimits(specs, 1, 1, on_growth=take)
      options = dict(specs=specs, limits=limits)
    with (
        small_pipeline.pipeline(small_pipeline.items(), **options) as batches,
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
        small_pipeline.pipeline(Source()) as batches,
        self.assertRaisesRegex(
            RuntimeError, r"iter\(Source\(\)\) raised StopIteration"
        ),
    ):
      list(batches)

  def test_the_name_of_a_list_is_not_the_text_of_its_batches(self):
    class Item(dict):
      __repr__ = mock.Mock(return_value="Item")

    source = [Item(item) for item in small_pipeline.items()]
    with small_pipeline.pipeline(source) as batches:
      next(batches)
    self.assertLessEqual(Item.__repr__.call_count, 1)

  def test_copies_of_a_buffer_that_is_filled_again(self):
    def refilled():
      buffer = small_pipeline.item(0)
      for i in range(small_pipeline.NUM):
        buffer["ids"][:] = buffer["label"][:] = i
        yield buffer

    limits = embedding.AdaptiveLimits(small_pipeline.specs(), 1, 1)
    with small_pipeline.pipeline(map(copy.deepcopy, refilled())) as batches:
      for item in refilled():
        inputs, _ = limits.preprocess({"f": item["ids"]})
        jax.tree.map(
            np.testing.assert_array_equal,
            small_pipeline.arrays(next(batches)),
            (inputs, item["label"]),
        )

  def test_threads_may_race_for_the_first_batch(self):
    both_begin = threading.Barrier(2)

    class Source(small_pipeline.Source):

      def __iter__(self):
        with contextlib.suppress(threading.BrokenBarrierError):
          both_begin.wait(0.5)
        return self

    labels = []

    def take():
      for batch in batches:
        labels.append(batch.rest[0])

    with small_pipeline.pipeline(Source()) as batches:
      threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join(60)
    self.assertEqual(sorted(labels), list(range(small_pipeline.NUM)))

  def test_buffers_are_in_memory_as_large_as_what_is_ahead(self):
    pools = []

    def make_pool():
      pools.append(output_pool())
      return pools[-1]

    output_pool = embedding.OutputPool
    items = [small_pipeline.item(300)] * 50
    with mock.patch.object(embedding, "OutputPool", make_pool):
      pipeline = small_pipeline.pipeline(
          items, host_prefetch=1, device_prefetch=1, workers=1
      )
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
      small_pipeline.pipeline(small_pipeline.items(), num_threads=3)
    self.assertEqual(made.call_args.kwargs["num_threads"], 3)

  @parameterized.parameters("num_threads", "all_reduce_interface")
  def test_what_given_limits_have_already_is_refused(self, name):
    specs = small_pipeline.specs()
    limits = embedding.AdaptiveLimits(specs, 1, 1)
    with self.assertRaisesRegex(
        ValueError, f"{name}=3 .*Pass {name} to AdaptiveLimits"
    ):
      small_pipeline.pipeline(
          small_pipeline.items(), specs=specs, limits=limits, **{name: 3}
      )

  @parameterized.parameters(
      dict(mesh=None),
      dict(sharding_axis=None),
      dict(mesh=None, sharding_axis=None),
  )
  def test_specs_need_a_mesh(self, **options):
    with self.assertRaisesRegex(
        ValueError, "specs need mesh and sharding_axis"
    ):
      small_pipeline.pipeline(small_pipeline.items(), **options)

  def test_what_the_program_lets_go_of_is_freed_by_a_thread_of_its_own(self):
    threads = []

    def watch(batch):
      array = jax.tree.leaves(batch.inputs)[0]
      weakref.finalize(
          array, lambda: threads.append(threading.current_thread().name)
      )

    num_batches = 20
    with small_pipeline.pipeline(small_pipeline.items(num_batches)) as batches:
      for batch in batches:
        watch(batch)
      # Of the last ones, nobody is left to do it.
      self.assertEqual(set(threads[:10]), {"input sender"})
    del batch
    self.assertLen(threads, num_batches)

  def test_threads_and_memory_go_when_it_is_dropped(self):
    def resident_bytes():
      with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    items, specs = small_pipeline.items(), small_pipeline.specs()
    before = threading.active_count()
    for i in range(_DROPS):
      pipeline = small_pipeline.pipeline(items, specs=specs, workers=2)
      for _ in range(3):
        next(pipeline)
      del pipeline
      if i == 50:  # what is made once is there
        resident = resident_bytes()
    gc.collect()
    self.assertEqual(threading.active_count(), before)
    self.assertLess(resident_bytes() - resident, 20e6)

  def test_many_small_batches_take_no_more_memory(self):
    specs = small_pipeline.specs()
    num_batches = _BATCHES
    source = (
        {"ids": np.full((24, 1), i % 7), "label": np.zeros(24, np.float32)}
        for i in range(num_batches)
    )
    most = 0
    with small_pipeline.pipeline(source, specs=specs) as batches:
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

  def test_closed_is_closed(self):
    pipeline = small_pipeline.pipeline(small_pipeline.items())
    next(pipeline)
    pipeline.close()
    pipeline.close()
    with self.assertRaisesRegex(RuntimeError, "pipeline is closed"):
      next(pipeline)
    pipeline = small_pipeline.pipeline(small_pipeline.items())
    pipeline.close()
    with self.assertRaisesRegex(RuntimeError, "pipeline is closed"):
      pipeline.start()

  @parameterized.parameters("get_state", "close")
  def test_a_source_may_use_its_pipeline_when_it_begins(self, name):
    # As the handler of a signal does that comes then.
    class Source:

      def __iter__(self):
        getattr(batches, name)()
        return iter(small_pipeline.items(2))

    batches = small_pipeline.pipeline(Source())
    errors, numbers = [], []

    def use():
      try:
        numbers.extend(batch.number for batch in batches)
      except RuntimeError as error:
        errors.append(str(error))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(30)
    self.assertFalse(thread.is_alive(), "it waits for itself")
    if name == "close":
      self.assertEqual(
          (errors, numbers), (["The input pipeline is closed."], [])
      )
    else:
      self.assertEqual((errors, numbers), ([], [0, 1]))

  @parameterized.parameters("source", "ids")
  def test_threads_of_a_pipeline_cannot_wait_for_its_batches(self, what):
    def source():
      yield small_pipeline.item(0)
      if what == "source":
        next(batches)
      yield small_pipeline.item(1)

    def ids(item):
      if what == "ids":
        next(batches)
      return {"f": item["ids"]}

    with small_pipeline.pipeline(source(), ids=ids) as batches:
      with self.assertRaisesRegex(RuntimeError, "asks for one of its batches"):
        list(batches)

  @parameterized.parameters("close", "start", "finalizer")
  def test_a_forked_process_leaves_threads_and_locks_alone(self, what):
    batches = small_pipeline.pipeline(small_pipeline.items())
    next(batches)
    held = batches._stages._lock, batches._lock
    use = batches._finalizer if what == "finalizer" else getattr(batches, what)
    children = []

    def fork():
      child = os.fork()
      if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
          use()
        except RuntimeError as error:
          os._exit(3 if "in another process" in str(error) else 4)
        os._exit(0)
      children.append(os.waitpid(child, 0)[1])

    # Some thread has the locks when the process is forked by another one.
    with held[0], held[1]:
      thread = threading.Thread(target=fork)
      thread.start()
      thread.join()
    status = os.waitstatus_to_exitcode(children[0])
    self.assertEqual(status, 3 if what == "start" else 0)
    self.assertEqual(next(batches).number, 1)
    batches.close()

  def test_a_forked_process_makes_its_own(self):
    pipeline = small_pipeline.pipeline(small_pipeline.items())
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
      small_pipeline.pipeline(small_pipeline.items(), **options)

  def test_limits_must_be_those_that_adapt(self):
    with self.assertRaisesRegex(
        TypeError, "must be AdaptiveLimits, got 'grow'"
    ):
      small_pipeline.pipeline(small_pipeline.items(), limits="grow")

  def test_limits_must_be_of_the_specs(self):
    limits = embedding.AdaptiveLimits(small_pipeline.specs(), 1, 1)
    with self.assertRaisesRegex(ValueError, "limits are of other feature_spec"):
      small_pipeline.pipeline(small_pipeline.items(), limits=limits)
    specs = small_pipeline.specs()
    limits = embedding.AdaptiveLimits(specs, 1, 1)
    with small_pipeline.pipeline(
        small_pipeline.items(), specs=specs, limits=limits
    ) as batches:
      next(batches)
      self.assertIs(batches.limits, limits)

  @parameterized.parameters((1, 2), (2, 1))
  def test_limits_must_be_of_the_devices_of_the_mesh(self, num, num_of_mesh):
    specs = small_pipeline.specs(num_devices=num)
    limits = embedding.AdaptiveLimits(specs, num, num)
    mesh = jax.sharding.Mesh(jax.devices()[:num_of_mesh], ("x",))
    with self.assertRaisesRegex(
        ValueError,
        f"limits are for {num} devices .* the mesh has {num_of_mesh}",
    ):
      small_pipeline.pipeline(
          small_pipeline.items(), specs=specs, limits=limits, mesh=mesh
      )


if __name__ == "__main__":
  absltest.main()
