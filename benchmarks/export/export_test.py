# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""That contenders do what is compared; nothing is timed."""

import pathlib

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
import numpy as np

from benchmarks.export import export


class BenchmarkTest(absltest.TestCase):

  def test_contenders_do_what_is_compared(self):
    refs, specs = export.make(rows=3000)
    directory = pathlib.Path(self.create_tempdir().full_path)
    checkpoint.save(directory / "saved", refs, specs)
    contenders = export.contenders(refs, specs, directory / "saved")
    written = {}
    for name, (prepare, run) in contenders.items():
      (directory / name).mkdir()
      prepare(directory / name)
      version = run(directory / name)
      if version is not None:
        table = version.tables["items"]
        self.assertIn(table.encoding, name)
        written[name] = version.kind, table.written_rows
    raw = b"".join(
        path.read_bytes()
        for path in sorted(
            (directory / "raw files").iterdir(), key=lambda path: int(path.name)
        )
    )
    self.assertLen(raw, np.asarray(jax.tree.leaves(refs)[0][...]).nbytes)
    for name in "float32", "int8", "int8, of a checkpoint":
      self.assertEqual(written[name], ("full", 3000))
    for kind, rows in list(written.values())[-2:]:
      self.assertEqual(kind, "delta")
      self.assertBetween(rows, 25, 31)  # some are padding of the stack

  def test_takes_turns_and_leaves_nothing(self):
    calls = []
    directory = pathlib.Path(self.create_tempdir().full_path)
    prepare = lambda path: calls.append(("prepare", path.name))
    run = lambda path: calls.append(("run", path.name))
    best = export.take_turns(
        {"a": (prepare, run), "b": (prepare, run)}, directory, turns=1
    )
    turn = [(task, name) for name in "ab" for task in ("prepare", "run")]
    self.assertEqual(calls, turn * 3)
    self.assertEqual(set(best), {"a", "b"})
    self.assertEmpty(list(directory.iterdir()))

  def test_reports_rates_and_ratios(self):
    best = {"raw files": (0.5, 3.0, 0), "int8": (2.0, 9.0, 5 << 20)}
    self.assertEndsWith(
        export.report(best, 4_000_000_000),
        "| int8 | 2.00 | 9.00 | 2.00 | 4.00 | 5 |",
    )


if __name__ == "__main__":
  absltest.main()
