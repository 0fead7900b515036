# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every contender runs, and float32 has the bits of the training lookup."""

import pathlib

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

from benchmarks.serving import serving


class ServingTest(absltest.TestCase):

  @flagsaver.flagsaver(rows=500, rounds=2, requests=10)
  def test_contenders_run(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    values = np.random.default_rng(0).standard_normal((500, 64), np.float32)
    opened = {}
    for encoding in ("float32", "int8"):
      written_tables.write_full(
          directory / encoding,
          {"items": written_tables.WrittenTable(values, encoding)},
          features={f"f{i}": "items" for i in range(26)},
      )
      opened[encoding] = embedding_tables.open(directory / encoding)
    table = serving.measure_batches(values, opened, directory)
    self.assertEqual(
        [row[0] for row in table], ["lookup_ids", "float32", "int8"]
    )
    self.assertEqual([row[1] for row in table], [256, 256, 72])
    self.assertEqual(float(table[1][2]), 0)
    self.assertBetween(float(table[2][2]), 0.002, 0.01)
    self.assertLen(serving.measure_requests(opened["int8"]), 2)
    self.assertLen(serving.measure_stop(directory / "stop", values), 2)
    self.assertIsNone(flags.FLAGS.output_dir)


if __name__ == "__main__":
  absltest.main()
