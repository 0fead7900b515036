# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The trainers of all programs, for tests of what they have in common."""

from __future__ import annotations

import functools

import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import baseline
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_nnx
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_pipelined
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_pmap
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_primitives
from jax_tpu_embedding.sparsecore.examples.shakespeare import training

_TYPES = (
    shakespeare.LinenTrainer,
    shakespeare_nnx.NnxTrainer,
    shakespeare_primitives.PrimitivesTrainer,
    shakespeare_pipelined.PipelinedTrainer,
    # Releases of JAX to come do without jax.pmap.
    *([shakespeare_pmap.PmapTrainer] if hasattr(jax, "pmap") else []),
)

TRAINERS = {trainer.api: trainer for trainer in _TYPES}


@functools.cache
def trainer(config: config_lib.Config, api: str) -> training.Trainer:
  """The trainer of `config`; made, and its step compiled, once."""
  data = dataset.load(config)
  unigram = baseline.log_probabilities(data.train_ids, len(data.words))
  return TRAINERS[api](config, data, unigram)
