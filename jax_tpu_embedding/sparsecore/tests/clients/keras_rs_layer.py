# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layer of keras-rs, made to place tables on devices of any platform.

Import this module before Keras, which reads its settings when it is imported.
"""

from __future__ import annotations

import os
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
# Keras reads ~/.keras/keras.json, and writes it where there is none.
os.environ["KERAS_HOME"] = os.path.join(
    os.environ.get("TEST_TMPDIR", tempfile.gettempdir()), "keras_home"
)

import keras_rs  # noqa: E402


class DistributedEmbedding(keras_rs.layers.DistributedEmbedding):
  """keras_rs.layers.DistributedEmbedding with SparseCores everywhere.

  keras-rs 0.4.0 looks for two kinds of TPU in `_has_sparsecore`, and later
  versions for any TPU in `has_sparsecores`. Where there is none, they place
  tables in plain Keras layers, and refuse the placement "sparsecore".
  """

  def _has_sparsecore(self) -> bool:
    return True

  @classmethod
  def has_sparsecores(cls) -> bool:
    return True
