# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""That contenders do what is compared; nothing is timed."""

import os
import pathlib
from unittest import mock

from absl.testing import absltest
import jax
import numpy as np

from benchmarks.checkpoint import checkpoint


class BenchmarkTest(absltest.TestCase):

  def test_contenders_read_what_they_wrote(self):
    refs, specs, sharding = checkpoint.make(rows=3000)
    expected = [np.array(ref[...]) for ref in jax.tree.leaves(refs)]
    directory = pathlib.Path(self.create_tempdir().full_path)
    contenders = checkpoint.contenders(refs, specs, sharding)
    self.assertIn("raw files", contenders)
    for name, (write, read) in contenders.items():
      with self.subTest(name):
        for ref, array in zip(jax.tree.leaves(refs), expected, strict=True):
          ref[...] = array
        write(directory / name)
        # Else what reads into copies of these would have nothing to do. It
        # leaves padding, which is behind these rows, as it is.
        for ref in jax.tree.leaves(refs):
          ref[:1000] = jax.numpy.zeros_like(ref[:1000])
        found = read(directory / name)
        self.assertTrue((directory / name).is_dir())
        if found is not None:
          for a, b in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_array_equal(a[...], b)

  def test_takes_turns_and_leaves_nothing(self):
    calls = []
    directory = pathlib.Path(self.create_tempdir().full_path)

    def write(path):
      path.mkdir()
      calls.append(("write", path.name))

    def read(path):
      calls.append(("read", path.name))

    best = checkpoint.take_turns(
        {"a": (write, read), "b": (write, read)}, directory, turns=1
    )
    turn = [(task, name) for name in "ab" for task in ("write", "read")]
    # The first one, which compiles, is not counted.
    self.assertEqual(calls, turn * 2)
    self.assertCountEqual(best, [(name, task) for task, name in turn])
    self.assertEmpty(list(directory.iterdir()))

  def test_cold_reads_find_no_file_in_the_page_cache(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    calls = []

    def write(path):
      (path / "of").mkdir(parents=True)
      (path / "of" / "file").touch()
      calls.append("write")

    def drop(descriptor, *args):
      self.assertEqual(args, (0, 0, os.POSIX_FADV_DONTNEED))
      path = os.readlink(f"/proc/self/fd/{descriptor}")
      calls.append(str(pathlib.Path(path).relative_to(directory)))

    contenders = {"a": (write, lambda path: calls.append("read"))}
    with mock.patch.object(os, "posix_fadvise", side_effect=drop):
      checkpoint.take_turns(contenders, directory, turns=1)
      self.assertEqual(calls, ["write", "read"] * 2)
      calls.clear()
      checkpoint.take_turns(contenders, directory, turns=1, cold=True)
    self.assertEqual(calls, ["write", "a/of/file", "read"] * 2)

  def test_reports_ratios(self):
    best = {
        ("raw files", "write"): (2.0, 3.0),
        ("checkpoint", "write"): (5.0, 9.0),
    }
    self.assertEndsWith(
        checkpoint.report(best, 0.5),
        "| checkpoint | write | 10.00 | 18.00 | 2.50, 3.00 |",
    )


if __name__ == "__main__":
  absltest.main()
