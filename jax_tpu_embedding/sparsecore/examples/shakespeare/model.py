# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model: two embedding tables, then a few dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

# A pair says more about the next word than a single word does, but most pairs
# occur once: without much dropout the model learns the text by heart. Shares
# found by measurement, see README.md.
_WORD_DROPOUT = 0.2
_PAIR_DROPOUT = 0.8
_PAIR_EMBEDDING_DIM = 16


def feature_specs(
    config: config_lib.Config, num_words: int
) -> dict[str, embedding_spec.FeatureSpec]:
  """What is looked up where.

  Args:
    config: the run's settings: batch size B, context length C.
    num_words: size of the vocabulary.

  Returns:
    `words`, a sequence feature: i32[B, C] -> f32[B, C, D], one vector per
    previous word; and `pair`, i32[B, 1] -> f32[B, 16], the last two words as
    one id.
  """
  optimizer = embedding_spec.AdagradOptimizerSpec(
      learning_rate=config.learning_rate
  )
  word_table = embedding_spec.TableSpec(
      name="words",
      vocabulary_size=num_words,
      embedding_dim=config.embedding_dim,
      initializer=jax.nn.initializers.normal(0.05),
      optimizer=optimizer,
      combiner="sum",
  )
  pair_table = embedding_spec.TableSpec(
      name="pairs",
      vocabulary_size=config.pair_table_rows,
      embedding_dim=_PAIR_EMBEDDING_DIM,
      # Zero, so that a pair that was never seen says nothing.
      initializer=jax.nn.initializers.zeros,
      optimizer=optimizer,
      combiner="sum",
  )
  batch = config.batch_size
  words_shape = (batch, config.context_length)
  return {
      "words": embedding_spec.FeatureSpec(
          name="words",
          table_spec=word_table,
          input_shape=words_shape,
          output_shape=(*words_shape, config.embedding_dim),
      ),
      "pair": embedding_spec.FeatureSpec(
          name="pair",
          table_spec=pair_table,
          input_shape=(batch, 1),
          output_shape=(batch, _PAIR_EMBEDDING_DIM),
      ),
  }


class DenseLayers(nn.Module):
  """Embedding activations to logits, f32[B, V]."""

  hidden_dim: int
  dropout: float
  unigram_log_probs: np.ndarray  # f64[V]

  @nn.compact
  def __call__(
      self, activations: Mapping[str, jax.Array], *, training: bool
  ) -> jax.Array:
    def drop(x, rate, **kwargs):
      return nn.Dropout(rate, deterministic=not training, **kwargs)(x)

    # A word or a pair is left out as a whole, then single elements.
    words = drop(activations["words"], _WORD_DROPOUT, broadcast_dims=(2,))
    pair = drop(activations["pair"], _PAIR_DROPOUT, broadcast_dims=(1,))
    x = jnp.concatenate([words.reshape((words.shape[0], -1)), pair], axis=1)
    x = drop(x, self.dropout)
    # The sum of a linear and a non-linear layer: the linear half learns fast,
    # and the two together did better than either.
    hidden = nn.Dense(self.hidden_dim)(x)
    hidden += nn.relu(nn.Dense(self.hidden_dim)(x))
    hidden = drop(hidden, self.dropout)
    # Starts from the unigram baseline: what is learned comes on top.
    return nn.Dense(
        len(self.unigram_log_probs),
        kernel_init=nn.initializers.normal(0.001),
        bias_init=lambda key, shape, dtype: jnp.asarray(
            self.unigram_log_probs, dtype
        ),
    )(hidden)


class NextWord(nn.Module):
  """Ids of the previous words to the logits of the next one, f32[B, V]."""

  feature_specs: embed.Nested[embedding_spec.FeatureSpec]
  hidden_dim: int
  dropout: float
  unigram_log_probs: np.ndarray  # f64[V]

  @nn.compact
  def __call__(
      self, features: Mapping[str, jax.Array], *, training: bool
  ) -> jax.Array:
    activations: Any = embed.SparseCoreEmbed(feature_specs=self.feature_specs)(
        features
    )
    return DenseLayers(
        hidden_dim=self.hidden_dim,
        dropout=self.dropout,
        unigram_log_probs=self.unigram_log_probs,
    )(activations, training=training)
