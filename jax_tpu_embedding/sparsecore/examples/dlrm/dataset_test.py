# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.dlrm import click_log
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import dataset
from jax_tpu_embedding.sparsecore.examples.dlrm import samples as samples_lib
import numpy as np

_CONFIG = config_lib.Config(
    batch_size=4, heldout_samples=5, table_rows=100, num_devices=2
)


def _samples(n: int) -> samples_lib.Samples:
  """Sample i has the category i in every column."""
  return samples_lib.Samples(
      labels=np.arange(n) % 2,
      dense=np.ones((n, 13), np.float32),
      categories=np.arange(n)[:, np.newaxis].repeat(26, axis=1),
  )


def _numbers(batch) -> list[int]:
  """The number of each sample of a batch."""
  return (batch.rows[:, 3] - 1).tolist()


class DatasetTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._path = pathlib.Path(self.create_tempdir().full_path, "log.tsv")
    click_log.write(self._path, [_samples(20)])

  def test_the_end_is_held_out(self):
    data = dataset.load(self._path, _CONFIG)
    self.assertEqual(_numbers(data.heldout), [15, 16, 17, 18, 19])
    self.assertEqual(data.heldout.labels.tolist(), [1, 0, 1, 0, 1])
    # Fifteen are left, of which three make no whole batch.
    self.assertEqual((data.num_train, data.steps_per_pass), (12, 3))
    self.assertEqual(data.log.sha256, click_log.index(self._path).sha256)

  def test_a_part_of_a_log_has_its_own_end(self):
    config = config_lib.Config(
        batch_size=4, heldout_samples=5, table_rows=100, num_samples=11
    )
    data = dataset.load(self._path, config)
    self.assertEqual(_numbers(data.heldout), [6, 7, 8, 9, 10])
    self.assertEqual(data.num_train, 4)

  @parameterized.parameters(0, 1, 2, 3, 4, 8)
  def test_batches_continue_at_any_step(self, first_step):
    data = dataset.load(self._path, _CONFIG)
    of_step = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    batches = itertools.islice(data.train_batches(first_step), 5)
    self.assertEqual(
        [_numbers(batch) for batch in batches],
        [of_step[step % 3] for step in range(first_step, first_step + 5)],
    )

  def test_processes_divide_batches(self):
    parts = [dataset.load(self._path, _CONFIG, i, 2) for i in range(2)]
    batches = [next(part.train_batches(1)) for part in parts]
    self.assertEqual(list(map(_numbers, batches)), [[4, 5], [6, 7]])
    # What another process has to read may be wrong.
    text = self._path.read_bytes().splitlines(keepends=True)
    text[6] = b"?".ljust(len(text[6]) - 1) + b"\n"
    self._path.write_bytes(b"".join(text))
    self.assertEqual(_numbers(next(parts[0].train_batches(1))), [4, 5])
    with self.assertRaisesRegex(config_lib.UsageError, "log.tsv:7: expected"):
      next(parts[1].train_batches(1))
    heldout = [list(part.heldout_batches())[1] for part in parts]
    self.assertEqual(
        [(_numbers(batch), count) for batch, count in heldout],
        [([19, 19], 1), ([19, 19], 1)],
    )

  def test_batches_do_not_end_where_blocks_of_the_file_do(self):
    click_log.write(self._path, [_samples(40_000)])
    config = config_lib.Config(
        batch_size=7000, heldout_samples=5, table_rows=1 << 20
    )
    data = dataset.load(self._path, config)
    self.assertGreater(len(list(click_log.read(self._path))), 1)
    for step, batch in zip(range(data.steps_per_pass), data.train_batches(0)):
      self.assertEqual(
          _numbers(batch), list(range(7000 * step, 7000 * (step + 1)))
      )

  def test_heldout_batches_are_filled_up(self):
    data = dataset.load(self._path, _CONFIG)
    batches = [
        (_numbers(batch), count) for batch, count in data.heldout_batches()
    ]
    self.assertEqual(batches, [([15, 16, 17, 18], 4), ([19, 19, 19, 19], 1)])

  @parameterized.parameters((3, [0, 1, 2]), (100, list(range(12))))
  def test_first_train_samples(self, count, expected):
    data = dataset.load(self._path, _CONFIG)
    samples = data.first_train_samples(count)
    self.assertEqual(samples.categories[:, 0].tolist(), expected)

  @parameterized.parameters(0, 8)
  def test_refuses_a_log_without_a_batch_to_learn_from(self, num_lines):
    click_log.write(self._path, [_samples(num_lines)])
    with self.assertRaisesRegex(
        config_lib.UsageError,
        f"log.tsv gives {num_lines} samples, .* less than a batch of 4",
    ):
      dataset.load(self._path, _CONFIG)

  def test_refuses_a_malformed_line_among_those_held_out(self):
    with self._path.open("ab") as stream:
      stream.write(b"?\n")
    with self.assertRaisesRegex(config_lib.UsageError, "log.tsv:21: expected"):
      dataset.load(self._path, _CONFIG)


if __name__ == "__main__":
  absltest.main()
