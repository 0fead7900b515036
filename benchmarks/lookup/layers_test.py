# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares this version with itself, at a size at which that means nothing."""

import contextlib
import io
import pathlib
from unittest import mock

from absl import app
from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks import worker_process
from benchmarks.lookup import layers


class LayersTest(absltest.TestCase):

  def test_measures_both_with_every_malloc(self):
    root = str(pathlib.Path(layers.__file__).parents[2])
    printed = io.StringIO()
    with (
        flagsaver.flagsaver(before=root, rounds=2),
        mock.patch.object(layers, "_CASES", ((64, 2),)),
        contextlib.redirect_stdout(printed),
    ):
      layers.main(["layers"])
    for part in ("forward", "SGD"):
      self.assertEqual(
          printed.getvalue().count(f"\n| 64 x 2 | {part} | "),
          len(worker_process.allocators()),
      )

  def test_an_earlier_version_that_is_not_there_is_an_error(self):
    with (
        flagsaver.flagsaver(before="/nowhere"),
        self.assertRaisesRegex(app.UsageError, "^--before=/nowhere has no"),
    ):
      layers.main(["layers"])


if __name__ == "__main__":
  absltest.main()
