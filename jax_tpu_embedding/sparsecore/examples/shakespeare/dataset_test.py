# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
import numpy as np

# 20 sentences of 11 tokens: 198 to learn from, 22 held out.
_SENTENCE = "the cat and the dog and the bird saw me .\n"
_TEXT = 18 * _SENTENCE + 2 * _SENTENCE.replace("cat", "newt")


class DatasetTest(parameterized.TestCase):

  def _file(self, content: bytes) -> str:
    return self.create_tempfile(content=content, mode="wb").full_path

  def _load(self, text=_TEXT.replace("\n", " "), **settings) -> dataset.Dataset:
    return dataset.load(
        config_lib.Config(text_file=self._file(text.encode()), **settings)
    )

  def test_the_last_tenth_is_held_out(self):
    data = self._load()
    self.assertLen(data.word_ids, 220)
    self.assertLen(data.train_ids, 198)
    self.assertLen(data.heldout_ids, 22)

  def test_words_are_sorted_by_frequency_in_the_training_text(self):
    data = self._load()
    # 3, 2, then 1 per sentence; ties in order of the alphabet.
    self.assertEqual(
        data.words,
        ("<unk>", "the", "and", ".", "bird", "cat", "dog", "me", "saw"),
    )

  def test_words_that_only_the_heldout_text_has_are_unknown(self):
    data = self._load()
    newt = data.heldout_ids[1]
    self.assertEqual(data.words[newt], "<unk>")

  def test_rare_words_are_unknown(self):
    text = " ".join(f"w{i}" for i in range(15)) + 200 * " common"
    data = self._load(text, vocabulary_size=16)
    self.assertLen(data.words, 16)
    self.assertEqual(data.words[1], "common")
    # "w9" is the last of w0, w1, w10, ... w14, w2, ... in the alphabet.
    self.assertNotIn("w9", data.words)
    self.assertEqual(data.word_ids[9], 0)

  def test_batches_hold_the_words_before_each_label(self):
    data = self._load(context_length=3)
    batch = data.train_batch(seed=0, step=0, batch_size=500)
    ids = data.word_ids.tolist()
    windows = {tuple(ids[i - 3 : i + 1]) for i in range(3, data.num_train)}
    seen = {
        (*context, label)
        for context, label in zip(
            batch.features["words"].tolist(), batch.labels.tolist()
        )
    }
    self.assertEqual(seen, windows)

  def test_training_never_sees_heldout_words(self):
    data = self._load(99 * "to be " + 22 * "newt ")
    labels = data.train_batch(seed=0, step=0, batch_size=5000).labels
    self.assertNotIn(0, labels)

  def test_a_batch_depends_on_seed_and_step_only(self):
    data = self._load()
    batch = lambda **kwargs: data.train_batch(batch_size=32, **kwargs)
    first = batch(seed=1, step=2)
    np.testing.assert_array_equal(first.labels, batch(seed=1, step=2).labels)
    self.assertFalse(np.array_equal(first.labels, batch(seed=1, step=3).labels))
    self.assertFalse(np.array_equal(first.labels, batch(seed=2, step=2).labels))

  def test_shapes_and_dtypes(self):
    data = self._load(context_length=5)
    batch = data.train_batch(seed=0, step=0, batch_size=7)
    self.assertEqual(
        {name: ids.shape for name, ids in batch.features.items()},
        {"words": (7, 5), "pair": (7, 1)},
    )
    self.assertEqual(batch.labels.shape, (7,))
    for array in (*batch.features.values(), batch.labels):
      self.assertEqual(array.dtype, np.int32)

  def test_heldout_batches_have_every_word_once(self):
    data = self._load()
    batches = list(data.heldout_batches(batch_size=8))
    self.assertEqual([count for _, count in batches], [8, 8, 6])
    labels = [batch.labels[:count] for batch, count in batches]
    np.testing.assert_array_equal(np.concatenate(labels), data.heldout_ids)
    self.assertEqual([len(batch.labels) for batch, _ in batches], [8, 8, 8])

  def test_the_first_heldout_word_has_training_words_as_context(self):
    data = self._load(context_length=2)
    batch, _ = next(data.heldout_batches(batch_size=8))
    np.testing.assert_array_equal(
        batch.features["words"][0], data.train_ids[-2:]
    )

  def test_pairs_are_hashed_into_the_table(self):
    contexts = np.array([[7, 1, 2], [0, 8, 8]])
    # 9 words: 1 * 9 + 2 = 11 and 8 * 9 + 8 = 80, modulo 10.
    pair = self._load(pair_table_rows=10).features(contexts)["pair"]
    np.testing.assert_array_equal(pair, [[1], [0]])

  def test_pairs_of_a_big_vocabulary_do_not_overflow(self):
    data = dataset.Dataset(
        name="",
        sha256="",
        words=("",) * 100_000,
        word_ids=np.zeros(0),
        num_train=0,
        context_length=2,
        pair_table_rows=1 << 20,
    )
    contexts = np.array([[99_999, 7]], np.int32)
    pair = data.features(contexts)["pair"]
    self.assertEqual(int(pair[0, 0]), (99_999 * 100_000 + 7) % (1 << 20))

  def test_line_ends_of_other_systems_make_no_difference(self):
    here = self._load(_TEXT)
    there = self._load(_TEXT.replace("\n", "\r\n"))
    np.testing.assert_array_equal(here.word_ids, there.word_ids)
    self.assertNotEqual(here.sha256, there.sha256)

  def test_the_default_text_is_as_you_like_it(self):
    data = dataset.load(config_lib.Config())
    self.assertEqual(data.name, "as_you_like_it.txt")
    self.assertLen(data.words, 2000)
    self.assertGreater(len(data.word_ids), 30_000)
    self.assertIn("ROSALIND", data.words)

  @parameterized.named_parameters(
      ("empty", b"", "is empty"),
      ("blank", b" \n\t\n", "is empty"),
      ("short", b"so so", "has 2 words and .* at least 200 are needed"),
      ("not_text", b"\x7fELF\xff\x00", r"is not UTF-8 text \(byte 4\)"),
  )
  def test_refuses_a_text_that_is(self, content, message):
    with self.assertRaisesRegex(config_lib.UsageError, message):
      dataset.load(config_lib.Config(text_file=self._file(content)))

  def test_refuses_a_text_shorter_than_its_contexts(self):
    with self.assertRaisesRegex(
        config_lib.UsageError, "has 220 words .* at least 222 are needed"
    ):
      self._load(context_length=111)

  def test_refuses_a_missing_file(self):
    path = os.path.join(self.create_tempdir().full_path, "no.txt")
    with self.assertRaisesRegex(
        config_lib.UsageError, f"there is no file {path}"
    ):
      dataset.load(config_lib.Config(text_file=path))

  def test_refuses_a_directory(self):
    path = self.create_tempdir().full_path
    with self.assertRaisesRegex(config_lib.UsageError, "Is a directory"):
      dataset.load(config_lib.Config(text_file=path))


if __name__ == "__main__":
  absltest.main()
