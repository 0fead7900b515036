# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Text that the trained model writes."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.examples.common import job
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import tokens
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np

# Below 1 the model keeps to what it is surer of.
_TEMPERATURE = 0.8


def _prompt(data: dataset.Dataset) -> np.ndarray:
  """The held-out words up to a paragraph's end, so that a new one begins.

  Returns: i32[context_length], the start of the held-out text where it has no
    such place.
  """
  ids = data.heldout_ids
  if tokens.PARAGRAPH_BREAK in data.words:
    (ends,) = np.nonzero(ids == data.words.index(tokens.PARAGRAPH_BREAK))
    ends = ends[ends >= data.context_length - 1]
    if ends.size:
      ids = ids[ends[0] + 1 - data.context_length :]
  return ids[: data.context_length]


def generate(
    trainer: training.Trainer,
    state: train_state.State,
    data: dataset.Dataset,
    config: config_lib.Config,
) -> str | None:
  """As many words as `config` asks for, the same for the same seed.

  None if a score of a word is not a finite number, as after training that
  diverged: there is nothing to choose words by.
  """
  rng = np.random.default_rng(config.seed)
  written = list(_prompt(data))
  for _ in range(config.generated_words):
    context = np.array(written[-data.context_length :], np.int32)
    # The layer's shapes are those of training: a batch of equal contexts.
    contexts = np.tile(context, (config.batch_size, 1))
    logits = job.on_host(trainer.logits(state, data.features(contexts)))
    logits = logits[0].astype(np.float64)
    if not np.isfinite(logits).all():
      return None
    logits[data.words.index(tokens.UNKNOWN)] = -np.inf
    probabilities = np.exp((logits - logits.max()) / _TEMPERATURE)
    probabilities /= probabilities.sum()
    written.append(rng.choice(len(data.words), p=probabilities))
  return tokens.detokenize(
      data.words[word_id] for word_id in written[data.context_length :]
  )
