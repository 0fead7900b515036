# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The threads of the native converter, and threads that call it."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
import numpy as np

_VARIABLE = "SPARSECORE_INPUT_PREPROCESSING_THREADS"


def _large_request():
  """Enough work for 16 threads: 180 k ids with weights."""
  rng = np.random.default_rng(7)
  features = [
      input_preprocessing.Feature(
          name=f"f{i}",
          ids=rng.integers(0, 5000, (4096, 5 + i), np.int32),
          weights=rng.random((4096, 5 + i), np.float32),
          vocabulary_size=5000,
          row_offset=4096 * i,
      )
      for i in range(4)
  ]
  stack = input_preprocessing.Stack(
      combiner="sqrtn",
      max_ids_per_partition=10000,
      max_unique_ids_per_partition=10000,
  )
  topology = layout.Topology(
      local_device_count=4, global_device_count=4, num_sc_per_device=2
  )
  return stack, features, topology


def _leaves(features, form):
  """Of types that have to be converted, in parallel too."""
  return [
      input_forms.FORMS[form](
          list(feature.ids.astype(">i2")),
          list(feature.weights.astype(np.float64)),
      )
      for feature in features
  ]


def _num_threads():
  return len(os.listdir("/proc/self/task"))


class ThreadsTest(parameterized.TestCase):

  def test_bytes_do_not_depend_on_the_number_of_threads(self):
    request = _large_request()
    expected = converter_requests.convert(*request, num_threads=1)
    for num_threads in (2, 3, 8, None):
      converter_requests.assert_same(
          converter_requests.convert(*request, num_threads=num_threads),
          expected,
      )

  def test_a_fork_between_two_calls_hurts_neither_process(self):
    # A pool of threads that outlived the first call would be waited for in the
    # child, which has none of them, for ever.
    request = _large_request()
    convert = lambda: converter_requests.convert(*request, num_threads=8)
    expected = convert()

    def child():
      for _ in range(3):
        converter_requests.assert_same(convert(), expected)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    self.addCleanup(process.kill)
    in_parent = [convert() for _ in range(3)]
    process.join(timeout=60)
    self.assertEqual(process.exitcode, 0)
    for result in [*in_parent, convert()]:
      converter_requests.assert_same(result, expected)

  @parameterized.parameters("splits", "rows", "shuffled_sparse", "coo")
  def test_conversions_do_not_depend_on_the_number_of_threads(self, form):
    request = _large_request()
    expected = converter_requests.convert(*request)
    for num_threads in (1, 2, 3, 8):
      converter_requests.assert_same(
          converter_requests.convert(
              *request,
              leaves=_leaves(request[1], form),
              num_threads=num_threads,
          ),
          expected,
      )

  @parameterized.parameters("1", "2", "64", "0", "-1", "many", "")
  def test_any_value_of_the_environment_variable_will_do(self, value):
    request = _large_request()
    expected = converter_requests.convert(*request, num_threads=1)
    with mock.patch.dict(os.environ, {_VARIABLE: value}):
      converter_requests.assert_same(
          converter_requests.convert(*request), expected
      )

  def test_the_number_of_threads_can_be_set(self):
    """Counted while the converter runs, by a thread that watches it."""
    request = _large_request()

    def numbers_of_threads(pool, **keywords):
      """While a call runs."""
      running = pool.submit(converter_requests.convert, *request, **keywords)
      while not running.done():
        yield _num_threads()

    def most_helpers(pool, calls, **keywords):
      for _ in range(calls):
        most = max(numbers_of_threads(pool, **keywords), default=alone)
        if most > alone:
          return most - alone
      return 0

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      # The least of many: threads of other tests may take a moment to go.
      alone = min(
          number
          for _ in range(20)
          for number in numbers_of_threads(pool, num_threads=1)
      )
      self.assertEqual(most_helpers(pool, calls=20, num_threads=1), 0)
      # A busy machine may not let the watching thread see them at once.
      seen = most_helpers(pool, calls=1000, num_threads=4)
      self.assertBetween(seen, 1, 3)
      with mock.patch.dict(os.environ, {_VARIABLE: "1"}):
        self.assertEqual(most_helpers(pool, calls=20), 0)

  def test_no_thread_outlives_a_call(self):
    request = _large_request()
    before = _num_threads()
    for form in ("rows", "shuffled_sparse"):
      converter_requests.convert(
          *request, leaves=_leaves(request[1], form), num_threads=8
      )
      # The system lists a thread for a moment after it was joined.
      deadline = time.monotonic() + 10
      while _num_threads() > before and time.monotonic() < deadline:
        pass
      self.assertLessEqual(_num_threads(), before)

  def test_sixteen_python_threads_at_once(self):
    request = _large_request()
    expected = converter_requests.convert(*request)
    forms = ["splits", "rows", "shuffled_sparse", "csr"] * 12
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      for actual in pool.map(
          lambda form: converter_requests.convert(
              *request, leaves=_leaves(request[1], form)
          ),
          forms,
      ):
        converter_requests.assert_same(actual, expected)

  def test_other_threads_run_in_the_meantime(self):
    request = _large_request()
    stop = threading.Event()
    count = 0

    def run():
      nonlocal count
      while not stop.is_set():
        count += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
      start = count
      for _ in range(10):
        converter_requests.convert(*request, num_threads=1)
      self.assertGreater(count, start)
    finally:
      stop.set()
      thread.join()

  def test_the_main_thread_may_end_first(self):
    """Daemon threads convert until the process is gone."""
    program = """
        import threading, time
        from jax_tpu_embedding.sparsecore.lib.core import (
            pybind_input_threads_test)
        from jax_tpu_embedding.sparsecore.lib.core.testing import (
            converter_requests)
        request = pybind_input_threads_test._large_request()
        has_converted = threading.Event()

        def run():
          while True:
            converter_requests.convert(*request, num_threads=2)
            has_converted.set()

        for _ in range(4):
          threading.Thread(target=run, daemon=True).start()
        has_converted.wait()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual((done.returncode, done.stderr), (0, ""))

  @parameterized.parameters("rows", "shuffled_sparse")
  def test_input_may_go_away_while_it_is_converted(self, form):
    """The converter keeps what it reads, whoever else lets go of it."""
    request = _large_request()
    expected = converter_requests.convert(*request)
    leaves = _leaves(request[1], form)

    def let_go():
      for ids, weights in leaves:
        if form == "rows":
          ids[:] = None
          weights[:] = None
        else:
          ids.values = ids.indices = None

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      converting = pool.submit(
          converter_requests.convert, *request, leaves=list(leaves)
      )
      letting_go = pool.submit(let_go)
      letting_go.result()
      try:
        converter_requests.assert_same(converting.result(), expected)
      except (TypeError, ValueError, AttributeError):
        pass  # They went away before they were read.


if __name__ == "__main__":
  absltest.main()
