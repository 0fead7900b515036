# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""That contenders do what is compared; nothing is timed."""

import pathlib

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
        write(directory / name)
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

  def test_reports_ratios(self):
    best = {
        ("raw files", "write"): (2.0, 3.0),
        ("checkpoint", "write"): (5.0, 9.0),
    }
    self.assertEndsWith(
        checkpoint.report(best, 0.5),
        "| checkpoint | write | 10.00 | 18.00 | 2.50 |",
    )


if __name__ == "__main__":
  absltest.main()
