# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""For tests: settings of a run that takes seconds."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib

_SETTINGS = dict(
    batch_size=32,
    vocabulary_size=200,
    embedding_dim=8,
    pair_table_rows=512,
    hidden_dim=16,
    dropout=0.1,
    dense_learning_rate=0.01,
    generated_words=30,
)

CONFIG = config_lib.Config(**_SETTINGS)
# The same on the command line.
ARGUMENTS = tuple(f"--{name}={value}" for name, value in _SETTINGS.items())
