# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares this version with itself, at a size at which that means nothing."""

import contextlib
import io
import pathlib
import re
from unittest import mock

from absl import app
from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks import earlier_version
from benchmarks.lookup import updates


class UpdatesTest(absltest.TestCase):

  def test_measures_every_optimizer_and_dtype(self):
    printed = io.StringIO()
    with (
        flagsaver.flagsaver(
            before=str(pathlib.Path(updates.__file__).parents[2]),
            optimizers=["SGD", "FTRL"],
            rounds=2,
            row_options=["l2_weight_decay=0.1"],
            valency=2,
        ),
        mock.patch.multiple(
            updates,
            _BATCH_SIZE=64,
            _COLUMNS=(8, 16),
            _DTYPES=("float32", "bfloat16"),
            _TABLE_BYTES=1 << 16,
        ),
        contextlib.redirect_stdout(printed),
    ):
      updates.main(["updates"])
    lines = printed.getvalue().splitlines()
    self.assertEqual(lines[2], "| columns | | 8 | 16 |")
    rows = [
        f"| {optimizer} | {dtype} |"
        for optimizer in ("SGD", "FTRL")
        for dtype in ("float32", "bfloat16")
    ]
    for line, row in zip(lines[4:], rows, strict=True):
      ratio = r" \d+\.\d\d \|"
      self.assertRegex(line, f"^{re.escape(row)}{ratio}{ratio}$")

  def test_other_sums_are_an_error(self):
    with (
        flagsaver.flagsaver(
            before=str(pathlib.Path(updates.__file__).parents[2])
        ),
        mock.patch.object(earlier_version, "start", _Different),
        self.assertRaisesRegex(RuntimeError, "do not compute the same"),
    ):
      updates.main(["updates"])

  def test_without_an_earlier_version_there_is_nothing_to_compare(self):
    with self.assertRaisesRegex(app.UsageError, "^--before names the earlier"):
      updates.main(["updates"])


class _Different(contextlib.nullcontext):
  """Workers whose tables are not the same."""

  num_made = 0

  def __init__(self, *unused):
    super().__init__(self)
    _Different.num_made += 1
    self._sum = _Different.num_made

  def command(self, *unused, **unused_arguments):
    return {"sum": self._sum}


if __name__ == "__main__":
  absltest.main()
