# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where a pipeline goes on, by its state, and that of its source."""

import copy
import json
import os
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.input import input_pipeline
from jax_tpu_embedding.sparsecore.lib.input.testing import small_pipeline
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

# By hand: 20.
_RESUMES = int(os.environ.get("RESUMES", "10"))


class PipelineStatesTest(small_pipeline.TestCase):

  def test_the_state_is_that_of_the_last_batch_that_a_thread_has(self):
    first_is_out, second_is_out = threading.Event(), threading.Event()

    def on_batch(number, *_):
      if number == 0:  # holds this thread up, while another one overtakes it
        first_is_out.set()
        second_is_out.wait()

    with small_pipeline.pipeline(
        [small_pipeline.item(k) for k in range(4)], on_batch=on_batch
    ) as batches:
      thread = threading.Thread(target=next, args=(batches,))
      thread.start()
      first_is_out.wait()
      self.assertEqual(next(batches).number, 1)
      second_is_out.set()
      thread.join()
      self.assertEqual(batches.get_state()["number"], 2)

  @parameterized.parameters(
      (small_pipeline.Source, 3),
      (small_pipeline.Source, 0),
      (small_pipeline.items, 3),
      (small_pipeline.items, small_pipeline.NUM),
  )
  def test_resumes_after_the_batch_handed_out(self, make_source, num_before):
    with small_pipeline.pipeline(make_source()) as batches:
      expected = list(batches)
    with small_pipeline.pipeline(make_source()) as batches:
      got = [next(batches) for _ in range(num_before)]
      state = json.loads(json.dumps(batches.get_state()))
    with small_pipeline.pipeline(make_source()) as batches:
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
        return iter(small_pipeline.items()[self.first :])

    class SkippingSource(Source):

      def skip(self, n):
        skipped.append(n)
        if way == "another":
          return Source(n)
        self.first += n

    make_source = Source if way == "no skip" else SkippingSource
    with small_pipeline.pipeline(make_source()) as batches:
      expected = list(batches)
    with small_pipeline.pipeline(make_source()) as batches:
      first_state = batches.get_state()
      for _ in range(5):
        next(batches)
      state = json.loads(json.dumps(batches.get_state()))
    with (
        small_pipeline.pipeline(make_source()) as batches,
        self.assertLogs(input_pipeline.__name__, "INFO") as log,
    ):
      batches.set_state(state)
      self.assert_same(list(batches), expected[5:])
    said = "5 were read and dropped" if way == "no skip" else r"skip\(5\) was"
    self.assertRegex(log.output[0], f"Source.* after 5 batches: {said}")
    self.assertEqual(skipped, [] if way == "no skip" else [5])
    with small_pipeline.pipeline(make_source()) as batches:
      batches.set_state(first_state)  # skips nothing
      self.assert_same([next(batches)], expected[:1])
    self.assertLen(skipped, 0 if way == "no skip" else 1)

  def test_a_source_with_a_state_is_set_and_does_not_skip(self):
    class Source(small_pipeline.Source):

      def skip(self, n):
        raise NotImplementedError(n)

    with small_pipeline.pipeline(Source()) as batches:
      next(batches)
      state = batches.get_state()
    with self.assertLogs(input_pipeline.__name__, "INFO") as log:
      small_pipeline.pipeline(Source()).set_state(state)
    self.assertIn("after 1 batches: its state was set", log.output[0])
    with self.assertRaisesRegex(ValueError, r"\[\{'ids': .* has no set_state"):
      small_pipeline.pipeline(small_pipeline.items()).set_state(state)

  @parameterized.parameters(False, True)
  def test_a_source_that_was_advanced_before_goes_on_from_there(self, starts):
    source = small_pipeline.Source()
    for _ in range(3):
      next(source)
    with small_pipeline.pipeline(source) as batches:
      if starts:
        batches.start()  # reads ahead
      state = json.loads(json.dumps(batches.get_state()))
      expected = list(batches)
    self.assertLen(expected, small_pipeline.NUM - 3)
    with small_pipeline.pipeline(small_pipeline.Source()) as batches:
      batches.set_state(state)
      self.assertEqual(batches.get_state(), state)
      self.assert_same(list(batches), expected)

  def test_a_state_that_cannot_be_had_is_no_end(self):
    class Source(small_pipeline.Source):

      def get_state(self):
        return next(iter([self.position][: 3 - self.position]))

      def __repr__(self):
        return "Source()"

    with small_pipeline.pipeline(Source()) as batches:
      self.assertEqual([next(batches).number for _ in range(2)], [0, 1])
      with self.assertRaisesRegex(
          RuntimeError, r"get_state\(Source\(\)\) raised StopIteration"
      ):
        next(batches)

  def test_states_that_do_not_fit_are_refused(self):
    with small_pipeline.pipeline(small_pipeline.items()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
      with self.assertRaisesRegex(RuntimeError, "before the first batch"):
        batches.set_state(state)
    with self.assertRaisesRegex(ValueError, "after 5 batches.*source has 2"):
      small_pipeline.pipeline(small_pipeline.items(2)).set_state(state)
    with self.assertRaisesRegex(ValueError, "version 7, expected 1"):
      small_pipeline.pipeline(small_pipeline.items()).set_state(
          state | {"version": 7}
      )
    for other in (None, [state], "state"):
      with self.assertRaisesRegex(ValueError, "version None, expected 1. Pass"):
        small_pipeline.pipeline(small_pipeline.items()).set_state(other)
    for number in (-1, None, 1.5, "5", True):
      with self.assertRaisesRegex(
          ValueError, f"has number {number!r}, expected how many batches"
      ):
        small_pipeline.pipeline(small_pipeline.items()).set_state(
            state | {"number": number}
        )
    for key in ("number", "source"):
      with self.assertRaisesRegex(ValueError, f"The state has no '{key}'"):
        small_pipeline.pipeline(small_pipeline.items()).set_state(
            {k: v for k, v in state.items() if k != key}
        )

  def test_limits_that_are_refused_leave_the_source_where_it_is(self):
    with small_pipeline.pipeline(small_pipeline.Source()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
    specs = small_pipeline.specs()
    limits = embedding.AdaptiveLimits(specs, 1, 1, enable_minibatching=True)
    source = small_pipeline.Source()
    with small_pipeline.pipeline(source, specs=specs, limits=limits) as batches:
      with self.assertRaisesRegex(
          ValueError, "enable_minibatching False.*None may take its place"
      ):
        batches.set_state(state)
      self.assertEqual(source.position, 0)
      # What the error says to do.
      batches.set_state(state | {"limits": None})
      self.assertEqual(source.position, 5)
      self.assertEmpty(limits.growths)
      self.assertEqual(
          [batch.number for batch in batches], [*range(5, small_pipeline.NUM)]
      )
      self.assertNotEmpty(limits.growths)
    with small_pipeline.pipeline(small_pipeline.Source()) as batches:
      state.pop("limits")
      batches.set_state(state)
      self.assertEqual(next(batches).number, 5)

  def test_a_source_that_fails_leaves_limits_as_they_are(self):
    with small_pipeline.pipeline(small_pipeline.items()) as batches:
      for _ in range(5):
        next(batches)
      state = batches.get_state()
    with small_pipeline.pipeline(small_pipeline.items(2)) as batches:
      before = batches.limits.state_dict()
      with self.assertRaisesRegex(ValueError, "source has 2"):
        batches.set_state(state)
      self.assertEqual(batches.limits.state_dict(), before)

  def test_states_are_shared_with_nobody(self):
    # It changes the state that it was given.
    class Source(small_pipeline.Source):

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

    with small_pipeline.pipeline(Source()) as batches:
      for _ in range(3):
        next(batches)
      state = batches.get_state()
      expected = copy.deepcopy(state)
    for _ in range(2):
      with small_pipeline.pipeline(Source()) as batches:
        batches.set_state(state)
        got = batches.get_state()
        got["source"]["position"][0] = 7
        self.assertEqual(batches.get_state(), expected)
        self.assertEqual(
            [batch.number for batch in batches], [*range(3, small_pipeline.NUM)]
        )
        self.assertEqual(state, expected)

  @parameterized.parameters(small_pipeline.Source, small_pipeline.items)
  def test_resumes_after_any_batch(self, make_source):
    with small_pipeline.pipeline(make_source(), host_prefetch=4) as batches:
      expected = list(batches)
    for number in np.random.default_rng(0).integers(
        1, small_pipeline.NUM, _RESUMES
    ):
      with small_pipeline.pipeline(
          make_source(), host_prefetch=4, workers=3
      ) as batches:
        for _ in range(number):
          next(batches)
        state = json.loads(json.dumps(batches.get_state()))
      with small_pipeline.pipeline(make_source(), workers=2) as batches:
        batches.set_state(state)
        self.assert_same(list(batches), expected[number:])


if __name__ == "__main__":
  absltest.main()
