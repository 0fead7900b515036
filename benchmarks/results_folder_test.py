# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
from unittest import mock

from absl import app
from absl.testing import absltest

from benchmarks import results_folder


class ResultsFolderTest(absltest.TestCase):

  def test_it_is_made_from_the_workspace_and_may_be_there(self):
    workspace = self.create_tempdir().full_path
    with mock.patch.dict(os.environ, BUILD_WORKSPACE_DIRECTORY=workspace):
      for _ in range(2):
        folder = results_folder.make("new/folder")
        self.assertEqual(folder, pathlib.Path(workspace, "new", "folder"))
        self.assertTrue(folder.is_dir())

  def test_no_name_is_no_folder(self):
    self.assertIsNone(results_folder.make(None))
    self.assertIsNone(results_folder.make(""))
    self.assertIsNone(results_folder.make("", part_by="--only"))

  def test_a_part_does_not_take_the_place_of_other_results(self):
    folder = self.create_tempdir().full_path
    results_folder.make(folder, part_by="--only")
    results = pathlib.Path(folder, "RESULTS.md")
    results.write_text("found before")
    results_folder.make(folder)
    with self.assertRaisesRegex(app.UsageError, "another run, and --only mea"):
      results_folder.make(folder, part_by="--only")
    self.assertEqual(results.read_text(), "found before")


if __name__ == "__main__":
  absltest.main()
