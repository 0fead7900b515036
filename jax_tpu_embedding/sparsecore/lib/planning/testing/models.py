# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Features that costs are estimated of."""

from __future__ import annotations

from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

ADAGRAD = embedding_spec.AdagradOptimizerSpec(0.1)
SGD = embedding_spec.SGDOptimizerSpec(0.1)


def feature(
    name: str = "f",
    rows: int = 100_000,
    dim: int = 16,
    batch: int = 4096,
    valency: int = 4,
    optimizer: embedding_spec.OptimizerSpec = SGD,
) -> embedding_spec.FeatureSpec:
  """A feature with a table of its own, not prepared for any devices."""
  table = embedding_spec.TableSpec(
      name=f"{name}_table",
      vocabulary_size=rows,
      embedding_dim=dim,
      optimizer=optimizer,
  )
  return embedding_spec.FeatureSpec(
      name=name,
      table_spec=table,
      input_shape=(batch, valency),
      output_shape=(batch, dim),
  )


def users_and_items(**fields: int) -> dict[str, embedding_spec.FeatureSpec]:
  """Two features whose tables cannot be one stack."""
  return {
      "users": feature("users", **fields),
      "items": feature(
          "items", 20_000, **dict(fields, dim=24, optimizer=ADAGRAD)
      ),
  }
