# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import threading

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.metrics import hot_rows
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np


def _specs(vocabulary_size):
  table = embedding_spec.TableSpec(
      name="items",
      vocabulary_size=vocabulary_size,
      embedding_dim=8,
      optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=0.5),
  )
  return {
      name: embedding_spec.FeatureSpec(
          name=name, table_spec=table, input_shape=(16, 2), output_shape=(16, 8)
      )
      for name in ("clicked", "seen")
  }


class HotRowsTest(parameterized.TestCase):

  def test_counts_of_small_tables_are_exact(self):
    hot = hot_rows.HotRows(_specs(10), k=3, every=1)
    for _ in range(2):
      features = {
          "clicked": np.array([[1, 1], [2, 11]]),
          "seen": (np.array([3, 1, -1]), np.array([0, 2, 3])),
      }
      self.assertIs(hot.seen(features), features)
    self.assertEqual(hot.top("items"), [(1, 6), (2, 2), (3, 2)])
    self.assertEqual(hot.share("items"), 1.0)

  def test_one_batch_of_so_many_counts(self):
    hot = hot_rows.HotRows(_specs(10), every=4)
    for i in range(8):
      ids = np.full((4, 1), i)
      hot.seen({"clicked": ids, "seen": ids[:0]})
    self.assertEqual(hot.top("items"), [(0, 4), (4, 4)])

  def test_no_ids_have_no_top(self):
    hot = hot_rows.HotRows(_specs(10))
    self.assertEqual((hot.top("items"), hot.share("items")), ([], 0.0))

  def test_the_hottest_of_a_million_rows_are_found(self):
    # Zipf's law with exponent 1.05.
    vocabulary_size = 1_000_000
    p = np.arange(1, vocabulary_size + 1) ** -1.05
    cumulative = np.cumsum(p / p.sum())
    rng = np.random.default_rng(0)
    rows = rng.permutation(vocabulary_size)
    hot = hot_rows.HotRows(_specs(vocabulary_size), k=100)
    num_batches, size = 208, 60_000
    for i in range(num_batches):
      # What is not counted need not be made.
      n = size if i % 16 == 0 else 0
      ids = rows[np.searchsorted(cumulative, rng.random((n, 1)))]
      hot.seen({"clicked": ids, "seen": ids[:0]})
    found = {row for row, _ in hot.top("items")}
    self.assertGreaterEqual(len(found & set(rows[:100].tolist())), 95)
    self.assertAlmostEqual(hot.share("items"), cumulative[99], delta=0.02)
    # It has not kept a counter for each row.
    self.assertLessEqual(len(hot._summaries["items"].rows), 10_000)  # pylint: disable=protected-access

  def test_few_ids_of_a_large_batch_are_read(self):
    hot = hot_rows.HotRows(_specs(10), every=1, max_ids=10)
    ids = np.arange(1000).reshape(-1, 1) // 500
    hot.seen({"clicked": ids, "seen": ids[:0]})
    self.assertEqual(hot.top("items"), [(0, 5), (1, 5)])

  def test_all_columns_of_the_samples_count(self):
    hot = hot_rows.HotRows(_specs(1000), k=1, every=1, max_ids=4096)
    ids = np.random.default_rng(0).integers(8, 1000, (4096, 4))
    ids[:, 0] = 7
    hot.seen({"clicked": ids, "seen": ids[:0]})
    self.assertAlmostEqual(hot.share("items"), 0.25, delta=0.02)

  def test_rows_are_integers_whatever_the_type_of_ids(self):
    hot = hot_rows.HotRows(_specs(10), every=1)
    ids = np.array([[3], [3]])
    hot.seen({"clicked": ids.astype(np.uint64), "seen": ids})
    ragged = np.array([[], [3, 3]], object)
    hot.seen({"clicked": ragged, "seen": ids[:0]})
    self.assertEqual(str(hot.top("items")), "[(3, 6)]")

  def test_threads_may_share_it(self):
    hot = hot_rows.HotRows(_specs(100), k=100, every=1)
    ids = np.arange(100).reshape(-1, 1)

    def work():
      for _ in range(50):
        hot.seen({"clicked": ids, "seen": ids})
        hot.top("items")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEqual({count for _, count in hot.top("items")}, {400})

  def test_plot_is_a_picture(self):
    hot = hot_rows.HotRows(_specs(10), every=1)
    ids = np.arange(8).reshape(-1, 1)
    hot.seen({"clicked": ids, "seen": ids})
    path = self.create_tempdir().full_path + "/hot.png"
    hot.plot(path)
    with open(path, "rb") as file:
      self.assertEqual(file.read(4), b"\x89PNG")

  @parameterized.parameters("k", "every", "max_ids")
  def test_numbers_that_make_no_sense_are_refused(self, name):
    with self.assertRaisesRegex(ValueError, f"{name} must be a positive int"):
      hot_rows.HotRows(_specs(10), **{name: 0})


if __name__ == "__main__":
  absltest.main()
