# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs cases of whole_way.py in other processes, so that a crash is a failure.

    bazel run //.../tests/properties:whole_way_1_devices_test -- --cases=50000
    bazel run //.../tests/properties:whole_way_1_devices_test -- \
        --first_case=123 --cases=1

A child process runs one case after another, says which one it begins, and is
replaced when it crashes or does not answer.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import connection
import traceback

from absl import flags
from absl.testing import absltest
from jax_tpu_embedding.sparsecore.tests.properties import whole_way

_CASES = flags.DEFINE_integer("cases", 500, "How many cases to run.")
_FIRST_CASE = flags.DEFINE_integer("first_case", 0, "The number of the first.")

_SPAWN = multiprocessing.get_context("spawn")
# A case takes some milliseconds, but a program is compiled for its first one.
_TIMEOUT_SECONDS = 120
# No more failures than a person reads.
_MOST_FAILURES = 10


def _run_cases(pipe: connection.Connection, first: int, end: int) -> None:
  """Sends (case, what went wrong or None) for each of a range of cases."""
  for case in range(first, end):
    failure = None
    try:
      whole_way.check(case)
    except Exception as error:  # pylint: disable=broad-exception-caught
      failure = "".join(traceback.format_exception(error))
    pipe.send((case, failure))


def _failures(first: int, end: int) -> dict[int, str]:
  """What went wrong, by case."""
  failures = {}
  while first < end and len(failures) < _MOST_FAILURES:
    pipe, of_child = _SPAWN.Pipe(duplex=False)[0:2]
    child = _SPAWN.Process(
        target=_run_cases, args=(of_child, first, end), daemon=True
    )
    child.start()
    of_child.close()  # So that a child that dies closes the last one open.
    while first < end and len(failures) < _MOST_FAILURES:
      if not pipe.poll(_TIMEOUT_SECONDS):
        failures[first] = f"No answer within {_TIMEOUT_SECONDS} s."
      else:
        try:
          case, failure = pipe.recv()
          if failure is not None:
            failures[case] = failure
          first = case + 1
          continue
        except EOFError:
          child.join()
          failures[first] = f"The process ended with {child.exitcode}."
      first += 1
      break
    child.kill()
    child.join()
  return failures


class WholeWayTest(absltest.TestCase):

  def test_cases_give_what_numpy_says_or_an_error(self):
    first = _FIRST_CASE.value
    failures = _failures(first, first + _CASES.value)
    self.assertFalse(
        failures,
        "\n".join(
            f"--first_case={case} --cases=1:\n{failure}"
            for case, failure in failures.items()
        ),
    )


if __name__ == "__main__":
  absltest.main()
