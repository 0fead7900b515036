# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Commands, and what becomes of errors. This module is the worker, too."""

import os

from absl.testing import absltest

from benchmarks import worker_process


class Worker:

  def run(self, calls, extra):
    print("not an answer")
    return {"calls": calls, "extra": extra, "pid": os.getpid()}

  def fail(self):
    raise ValueError("what was wrong")

  def die(self):
    os._exit(3)

  def variable(self, name):
    return {"value": os.environ.get(name)}


class WorkerProcessTest(absltest.TestCase):

  def _start(self, **kwargs):
    worker = worker_process.WorkerProcess(
        "benchmarks.worker_process_test", **kwargs
    )
    return self.enter_context(worker)

  def test_runs_in_a_process_of_its_own(self):
    answer = self._start().timed(extra="x")(5)
    self.assertEqual(answer["calls"], 5)
    self.assertEqual(answer["extra"], "x")
    self.assertNotEqual(answer["pid"], os.getpid())

  def test_sets_variables(self):
    worker = self._start(environment={"SOME_VARIABLE": "1"})
    answer = worker.command("variable", name="SOME_VARIABLE")
    self.assertEqual(answer, {"value": "1"})

  def test_error_is_raised_and_the_worker_goes_on(self):
    worker = self._start()
    with self.assertRaisesRegex(
        worker_process.WorkerError, "ValueError: what was wrong"
    ):
      worker.command("fail")
    self.assertEqual(worker.command("run", calls=1, extra=2)["calls"], 1)

  def test_death_is_an_error(self):
    worker = self._start()
    with self.assertRaisesRegex(
        worker_process.WorkerError, "ended with code 3 in 'die'"
    ):
      worker.command("die")


if __name__ == "__main__":
  absltest.main()
