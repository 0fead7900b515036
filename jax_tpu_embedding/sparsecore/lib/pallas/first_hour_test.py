# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The first hour on a TPU, run to its end on the engine; most kernels left out.

Without --every it takes minutes of CPU.
"""

import contextlib
import io
import re
from unittest import mock

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core.sparsecore_kernels import gather_rows
from jax_tpu_embedding.sparsecore.lib.pallas import first_hour


def _printed(*arguments):
  with contextlib.redirect_stdout(io.StringIO()) as out:
    status = first_hour.main(arguments)
  return status, out.getvalue()


class FirstHourTest(absltest.TestCase):

  def test_some_of_each_kind(self):
    for only, answer in (
        ("operation", "right"),
        ("int8", "right"),
        ("add, at once", "right"),
        ("sqrt", "right"),
        ("sgd by calls", "not here"),  # they are for TPUs
    ):
      with self.subTest(only):
        status, text = _printed("--only", only, "--every", "40")
        self.assertEqual(status, 0, text)
        answers = re.findall(f"(?m)^(right|not here) .*{only}", text)
        self.assertEqual(set(answers), {answer}, text)
        self.assertIn("Nothing is wrong.", text)

  def test_wrong_rows_are_found(self):
    with mock.patch.object(
        gather_rows, "gather_rows", lambda table, rows, buffers: table[rows] + 1
    ):
      status, text = _printed("--only", "int8")
    self.assertEqual(status, 1)
    self.assertRegex(text, "(?m)^WRONG .*int8")
    self.assertIn("1 lines are wrong or fail.", text)

  def test_errors_are_lines(self):
    with mock.patch.object(gather_rows, "gather_rows", None):
      status, text = _printed("--only", "int8")
    self.assertEqual(status, 1)
    self.assertRegex(text, "(?m)^FAILS .*int8.*TypeError")


if __name__ == "__main__":
  absltest.main()
