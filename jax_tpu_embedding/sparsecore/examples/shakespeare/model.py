# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The next-word model that all programs train: tables, then dense layers.

Who owns the parameters of the dense layers (Linen, NNX or a plain dict) is what
the programs differ in. What is computed with them is said once, here.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

# A pair says more about the next word than a single word does, but most pairs
# occur once: without much dropout the model learns the text by heart. Shares
# found by measurement, see README.md.
_WORD_DROPOUT = 0.2
_PAIR_DROPOUT = 0.8
_PAIR_EMBEDDING_DIM = 16

# Layer name -> {"kernel": f32[inputs, outputs], "bias": f32[outputs]}, as both
# nn.Dense and nnx.Linear name them.
Parameters = dict[str, dict[str, jax.Array]]


class LayerSize(NamedTuple):
  """Widths of a dense layer."""

  inputs: int
  outputs: int


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
  batch = config.batch_size
  words_shape = (batch, config.context_length)
  # All ids of a device may name rows of one SparseCore. Preprocessing on the
  # host takes no more than the limits; ids converted inside jit need none.
  words_limit = batch * config.context_length // config.num_devices
  pair_limit = batch // config.num_devices
  word_table = embedding_spec.TableSpec(
      name="words",
      vocabulary_size=num_words,
      embedding_dim=config.embedding_dim,
      initializer=jax.nn.initializers.normal(0.05),
      optimizer=optimizer,
      combiner="sum",
      max_ids_per_partition=words_limit,
      max_unique_ids_per_partition=words_limit,
  )
  pair_table = embedding_spec.TableSpec(
      name="pairs",
      vocabulary_size=config.pair_table_rows,
      embedding_dim=_PAIR_EMBEDDING_DIM,
      # Zero, so that a pair that was never seen says nothing.
      initializer=jax.nn.initializers.zeros,
      optimizer=optimizer,
      combiner="sum",
      max_ids_per_partition=pair_limit,
      max_unique_ids_per_partition=pair_limit,
  )
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


def layer_sizes(
    config: config_lib.Config, num_words: int
) -> dict[str, LayerSize]:
  """The dense layers by name."""
  inputs = config.context_length * config.embedding_dim + _PAIR_EMBEDDING_DIM
  return {
      "linear": LayerSize(inputs, config.hidden_dim),
      "nonlinear": LayerSize(inputs, config.hidden_dim),
      "output": LayerSize(config.hidden_dim, num_words),
  }


def initial_parameters(
    sizes: Mapping[str, LayerSize],
    key: jax.Array,
    unigram_log_probs: np.ndarray,
) -> Parameters:
  """First values of the dense layers.

  Args:
    sizes: the layers.
    key: a key; each layer's values depend on it and the layer's name order.
    unigram_log_probs: f64[V], the bias of the output: the model starts from the
      unigram baseline, and what it learns comes on top.
  """
  parameters = {}
  for (name, size), layer_key in zip(
      sizes.items(), jax.random.split(key, len(sizes))
  ):
    is_output = name == "output"
    kernel = (
        jax.nn.initializers.normal(0.001)
        if is_output
        else jax.nn.initializers.lecun_normal()
    )
    parameters[name] = {
        "kernel": kernel(layer_key, size, jnp.float32),
        "bias": jnp.asarray(
            unigram_log_probs if is_output else np.zeros(size.outputs),
            jnp.float32,
        ),
    }
  return parameters


def dropout_keys(
    seed: int, step: jax.Array, batch_size: int, first: jax.Array | int = 0
) -> jax.Array:
  """A key per sample, [batch_size], from seed, step and place in the batch.

  So what a sample loses does not depend on how the batch is split.

  Args:
    seed: of the run.
    step: i32[], of the batch.
    batch_size: samples that this call is for.
    first: place of the first of them in the whole batch.
  """
  key = jax.random.fold_in(jax.random.key(seed), step)
  return jax.vmap(jax.random.fold_in, (None, 0))(
      key, first + jnp.arange(batch_size)
  )


def logits(
    layers: Mapping[str, Callable[[jax.Array], jax.Array]],
    activations: Mapping[str, jax.Array],
    dropout: float,
    keys: jax.Array | None,
) -> jax.Array:
  """Scores of the next word, f32[B, V].

  Args:
    layers: the layers of `layer_sizes` as functions, f32[B, inputs] -> f32[B,
      outputs].
    activations: of the features of `feature_specs`.
    dropout: share of inputs and hidden units left out.
    keys: a key per sample, from dropout_keys; None leaves nothing out.
  """

  def drop(x, site, rate, shape):
    """Zeros a share of each sample, in units such that `shape` has one each."""
    if keys is None:
      return x

    def keep(key):
      return jax.random.bernoulli(
          jax.random.fold_in(key, site), 1 - rate, shape
      )

    return jnp.where(jax.vmap(keep)(keys), x / (1 - rate), 0)

  # A word or a pair is left out as a whole, then single elements.
  words, pair = activations["words"], activations["pair"]
  words = drop(words, 0, _WORD_DROPOUT, (words.shape[1], 1))
  pair = drop(pair, 1, _PAIR_DROPOUT, (1,))
  x = jnp.concatenate([words.reshape((words.shape[0], -1)), pair], axis=1)
  x = drop(x, 2, dropout, x.shape[1:])
  # The sum of a linear and a non-linear layer: the linear half learns fast, and
  # the two together did better than either.
  hidden = layers["linear"](x) + jax.nn.relu(layers["nonlinear"](x))
  hidden = drop(hidden, 3, dropout, hidden.shape[1:])
  return layers["output"](hidden)


def apply_layers(
    parameters: Parameters,
) -> dict[str, Callable[[jax.Array], jax.Array]]:
  """The layers as functions, for programs without a layer library."""

  def layer(name):
    return lambda x: x @ parameters[name]["kernel"] + parameters[name]["bias"]

  return {name: layer(name) for name in parameters}


def losses(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """The loss of each sample in nats, f32[B], from f32[B, V] and i32[B]."""
  return optax.softmax_cross_entropy_with_integer_labels(scores, labels)
