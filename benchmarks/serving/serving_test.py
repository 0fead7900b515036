# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every contender runs, and float32 has the bits of the training lookup."""

import pathlib

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables

from benchmarks import turns
from benchmarks.serving import serving
from benchmarks.serving import workload


class _Peers:
  """In place of the process, whose packages may not be installed."""

  def command(self, name, rows, num_checked):
    assert (name, rows, num_checked) == ("load", 500, 500)
    return {"peers": {"torch, int8": (72, 0.005, 0.016)}}

  def timed(self, peer):
    assert peer == "torch, int8"
    return lambda calls: turns.time_calls(lambda: None, calls)


class ServingTest(absltest.TestCase):

  @flagsaver.flagsaver(rows=500, rounds=2, requests=10)
  def test_contenders_run(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    values = workload.values(500)
    opened = {}
    for encoding in ("float32", "int8"):
      written_tables.write_full(
          directory / encoding,
          {"items": written_tables.WrittenTable(values, encoding)},
          features={f"f{i}": "items" for i in range(26)},
      )
      opened[encoding] = embedding_tables.open(directory / encoding)
    table, [of_peer] = serving.measure_batches(
        values, opened, directory, _Peers()
    )
    self.assertEqual(of_peer[:4], ("torch, int8", 72, "0.005", "0.016"))
    self.assertLess(float(of_peer[5].partition(" ")[0]), 1)
    self.assertEqual(
        [row[0] for row in table], ["lookup_ids", "float32", "int8"]
    )
    self.assertEqual([row[1] for row in table], [256, 256, 72])
    self.assertEqual(float(table[1][2]), 0)
    self.assertBetween(float(table[2][2]), 0.002, 0.01)
    memory = serving.measure_memory(directory / "memory", values)
    self.assertEqual(
        [row[:2] for row in memory],
        [
            ("float32", "mapped"),
            ("float32", "copied"),
            ("int8", "mapped"),
            ("int8", "copied"),
        ],
    )
    self.assertLen(serving.measure_requests(opened["int8"]), 2)
    self.assertLen(serving.measure_stop(directory / "stop", values), 2)
    self.assertIsNone(flags.FLAGS.output_dir)


if __name__ == "__main__":
  absltest.main()
