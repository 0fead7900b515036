# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A feature over a table, and batches of as many ids as may be, for tests."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

BATCH = 64  # of a device
VOCABULARY = 4096


def specs(global_device_count=1, num_sc=4, **table_options):
  """Prepared for the devices."""
  table = two_table_model.table(vocabulary_size=VOCABULARY, **table_options)
  feature_specs = {
      "f": embedding_spec.FeatureSpec(
          name="f",
          table_spec=table,
          input_shape=(BATCH * global_device_count, None),
          output_shape=(BATCH * global_device_count, 6),
      )
  }
  embedding.prepare_feature_specs_for_training(
      feature_specs, global_device_count, num_sc
  )
  return feature_specs


def batch(seed, mean_valency=8.0, size=BATCH):
  """Ragged ids of Zipf's law, of which there are Poisson many per sample."""
  rng = np.random.default_rng(seed)
  splits = np.concatenate(
      [[0], np.cumsum(rng.poisson(mean_valency, size))]
  ).astype(np.int32)
  return {"f": (rng.zipf(1.2, splits[-1]) % VOCABULARY, splits)}
