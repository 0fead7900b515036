# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A text as vocabulary, word ids and batches."""

from __future__ import annotations

import collections
from collections.abc import Iterator
import dataclasses
import hashlib
import pathlib
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import tokens
import numpy as np

_DEFAULT_TEXT = pathlib.Path(__file__).parent / "data" / "as_you_like_it.txt"
# The end of the text, not a sample of it: neighbours of a training word would
# be easier to predict than a text that is still to be written.
_HELDOUT_SHARE = 0.1
# Fewer leave a held-out part of a sentence or two.
_MIN_TOKENS = 200


class Batch(NamedTuple):
  """Words to predict, with what the model may look at.

  `features` is what the embedding layer is called with, by feature name.
  """

  features: dict[str, np.ndarray]  # words i32[B, C], pair i32[B, 1]
  labels: np.ndarray  # i32[B]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
  """A text, tokenized; its first part to learn from, the rest held out."""

  name: str
  sha256: str  # Of the file, so that a checkpoint can tell two texts apart.
  words: tuple[str, ...]  # The vocabulary: id -> word; id 0 is <unk>.
  word_ids: np.ndarray  # i32[tokens], the whole text.
  num_train: int  # word_ids[:num_train] are learned from.
  context_length: int
  pair_table_rows: int

  @property
  def train_ids(self) -> np.ndarray:
    return self.word_ids[: self.num_train]

  @property
  def heldout_ids(self) -> np.ndarray:
    return self.word_ids[self.num_train :]

  def features(self, contexts: np.ndarray) -> dict[str, np.ndarray]:
    """Ids to look up for `contexts` i32[B, C], the latest word last."""
    previous, last = contexts[:, -2].astype(np.int64), contexts[:, -1]
    pair = previous * len(self.words) + last
    # The remainder is the hash: frequent words have small ids, so that
    # frequent pairs rarely share a row.
    pair %= self.pair_table_rows
    return {
        "words": contexts.astype(np.int32),
        "pair": pair.astype(np.int32)[:, np.newaxis],
    }

  def _batch(self, positions: np.ndarray) -> Batch:
    offsets = np.arange(-self.context_length, 0)
    contexts = self.word_ids[positions[:, np.newaxis] + offsets]
    return Batch(self.features(contexts), self.word_ids[positions])

  def train_batch(self, seed: int, step: int, batch_size: int) -> Batch:
    """The batch of one step: a function of its arguments and nothing else.

    A resumed run so continues with the batches it would have seen.
    """
    rng = np.random.default_rng((seed, step))
    positions = rng.integers(self.context_length, self.num_train, batch_size)
    return self._batch(positions)

  def heldout_batches(self, batch_size: int) -> Iterator[tuple[Batch, int]]:
    """Every held-out word once, in order, in batches of equal size.

    Args:
      batch_size: samples per batch, B.

    Yields:
      A batch and how many of its samples count. The last batch is filled up
      with copies of its last word.
    """
    for start in range(self.num_train, len(self.word_ids), batch_size):
      positions = np.arange(start, start + batch_size)
      count = int(np.sum(positions < len(self.word_ids)))
      yield self._batch(np.minimum(positions, len(self.word_ids) - 1)), count


def _read(path: pathlib.Path) -> tuple[str, str]:
  """The file's text and SHA-256."""
  try:
    content = path.read_bytes()
  except FileNotFoundError:
    raise config_lib.UsageError(
        f"--text_file: there is no file {path}."
    ) from None
  except OSError as error:
    raise config_lib.UsageError(
        f"--text_file: cannot read {path}: {error.strerror}."
    ) from None
  try:
    text = content.decode("utf-8")
  except UnicodeDecodeError as error:
    raise config_lib.UsageError(
        f"--text_file: {path} is not UTF-8 text (byte {error.start})."
    ) from None
  return text.replace("\r\n", "\n"), hashlib.sha256(content).hexdigest()


def _vocabulary(train_tokens: list[str], size: int) -> tuple[str, ...]:
  """<unk> and the most frequent training words, the most frequent first."""
  counts = collections.Counter(train_tokens)
  by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
  return (tokens.UNKNOWN, *by_frequency[: size - 1])


def load(config: config_lib.Config) -> Dataset:
  """Reads and splits the text that `config` names.

  Raises:
    UsageError: the text cannot be read, or is empty or too short.
  """
  path = pathlib.Path(config.text_file or _DEFAULT_TEXT)
  text, sha256 = _read(path)
  text_tokens = tokens.tokenize(text)
  if not text.strip():
    raise config_lib.UsageError(f"--text_file: {path} is empty.")
  required = max(_MIN_TOKENS, 2 * config.context_length)
  if len(text_tokens) < required:
    raise config_lib.UsageError(
        f"--text_file: {path} has {len(text_tokens)} words and punctuation"
        f" marks, at least {required} are needed."
    )
  num_train = len(text_tokens) - round(_HELDOUT_SHARE * len(text_tokens))
  words = _vocabulary(text_tokens[:num_train], config.vocabulary_size)
  ids = {word: word_id for word_id, word in enumerate(words)}
  return Dataset(
      name=path.name,
      sha256=sha256,
      words=words,
      word_ids=np.array([ids.get(word, 0) for word in text_tokens], np.int32),
      num_train=num_train,
      context_length=config.context_length,
      pair_table_rows=config.pair_table_rows,
  )
