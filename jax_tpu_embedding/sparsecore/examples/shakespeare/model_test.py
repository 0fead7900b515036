# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import model
import numpy as np

_CONFIG = config_lib.Config(
    batch_size=8,
    context_length=3,
    vocabulary_size=16,
    embedding_dim=5,
    pair_table_rows=7,
    hidden_dim=4,
)
_UNIGRAM = np.log(np.arange(1, 17) / np.arange(1, 17).sum())


def _activations():
  rng = np.random.default_rng(0)
  return {
      name: jnp.asarray(rng.normal(size=spec.output_shape), jnp.float32)
      for name, spec in model.feature_specs(_CONFIG, 16).items()
  }


def _parameters():
  return model.initial_parameters(
      model.layer_sizes(_CONFIG, 16), jax.random.key(0), _UNIGRAM
  )


class ModelTest(parameterized.TestCase):

  def test_features_are_one_vector_per_word_and_one_per_pair(self):
    specs = model.feature_specs(_CONFIG, 16)
    self.assertEqual(
        {name: (s.input_shape, s.output_shape) for name, s in specs.items()},
        {"words": ((8, 3), (8, 3, 5)), "pair": ((8, 1), (8, 16))},
    )

  @parameterized.parameters(1, 2, 4)
  def test_limits_hold_the_ids_of_a_device(self, num_devices):
    config = config_lib.Config(
        batch_size=8, context_length=3, num_devices=num_devices
    )
    limits = {
        name: spec.table_spec.max_ids_per_partition
        for name, spec in model.feature_specs(config, 16).items()
    }
    self.assertEqual(
        limits, {"words": 24 // num_devices, "pair": 8 // num_devices}
    )

  def test_logits_without_dropout_are_the_formula(self):
    activations, parameters = _activations(), _parameters()
    x = np.concatenate(
        [
            np.reshape(activations["words"], (8, 15)),
            activations["pair"],
        ],
        axis=1,
    )
    hidden = x @ parameters["linear"]["kernel"]
    hidden += np.maximum(x @ parameters["nonlinear"]["kernel"], 0)
    expected = hidden @ parameters["output"]["kernel"] + _UNIGRAM
    np.testing.assert_allclose(
        model.logits(
            model.apply_layers(parameters), activations, 0.5, keys=None
        ),
        expected,
        rtol=1e-5,
    )

  def test_a_bias_counts(self):
    parameters = _parameters()
    parameters["output"]["bias"] += 1.0
    zero = jax.tree.map(jnp.zeros_like, _activations())
    np.testing.assert_allclose(
        model.logits(model.apply_layers(parameters), zero, 0.5, None),
        np.tile(_UNIGRAM + 1, (8, 1)),
        rtol=1e-5,
    )

  def test_dropout_of_a_sample_does_not_depend_on_the_split(self):
    activations = _activations()
    layers = model.apply_layers(_parameters())
    whole = model.logits(layers, activations, 0.5, model.dropout_keys(0, 3, 8))

    def half(first):
      return model.logits(
          layers,
          jax.tree.map(lambda x: x[first : first + 4], activations),
          0.5,
          model.dropout_keys(0, 3, 4, first=first),
      )

    np.testing.assert_allclose(
        whole, np.concatenate([half(0), half(4)]), rtol=1e-5
    )

  def test_samples_steps_and_seeds_drop_differently(self):
    keys = [
        jax.random.key_data(model.dropout_keys(seed, step, 8))
        for seed, step in ((0, 0), (0, 1), (1, 0))
    ]
    self.assertLen(np.unique(np.concatenate(keys), axis=0), 24)

  def test_dropout_keeps_the_mean_and_drops_words_as_a_whole(self):
    num_samples = 20_000
    activations = {
        "words": jnp.ones((num_samples, 3, 5)),
        "pair": jnp.ones((num_samples, 16)),
    }
    inputs = []

    def record(x):
      inputs.append(np.asarray(x))
      return jnp.zeros((num_samples, 4))

    layers = {"linear": record, "nonlinear": record, "output": record}
    # A rate of 0 shows what words and pairs lose by themselves.
    model.logits(
        layers, activations, 0.0, model.dropout_keys(0, 0, num_samples)
    )
    words, pair = np.split(inputs[0], [15], axis=1)
    words = words.reshape(-1, 3, 5)
    # Five standard deviations of the mean of this many samples.
    np.testing.assert_allclose(words.mean(0), 1, atol=5 * 0.5 / math.sqrt(2e4))
    np.testing.assert_allclose(pair.mean(0), 1, atol=5 * 2 / math.sqrt(2e4))
    for of_one in (words.reshape(-1, 5), pair):
      np.testing.assert_array_equal(
          of_one, np.broadcast_to(of_one[:, :1], of_one.shape)
      )
    self.assertGreater(np.ptp(words[:, :, 0], axis=1).max(), 0)

  def test_losses_are_negative_log_probabilities(self):
    # exp(logits) = 1, 3: probabilities 1/4, 3/4.
    np.testing.assert_allclose(
        model.losses(
            jnp.log(jnp.array([[1.0, 3.0], [1.0, 3.0]])), jnp.array([0, 1])
        ),
        [math.log(4), math.log(4 / 3)],
        rtol=1e-6,
    )


if __name__ == "__main__":
  absltest.main()
