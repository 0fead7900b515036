# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A layer of any version: activations of ids, and a step of SGD on them.

Uses what versions have in common. It is found beside the package of another
version, not in `benchmarks`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax import embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import turns

_NUM_BATCHES = 8
_NUM_ROWS = 1 << 20
_DIM = 64


class Worker:
  """The commands."""

  def load(self, batch_size: int, valency: int) -> dict[str, Any]:
    """Makes the layer; returns the sum of its first activations."""
    table = embedding_spec.TableSpec(
        name="table",
        vocabulary_size=_NUM_ROWS,
        embedding_dim=_DIM,
        initializer=lambda: np.random.default_rng(0).random(
            (_NUM_ROWS, _DIM), np.float32
        ),
        optimizer=embedding_spec.SGDOptimizerSpec(learning_rate=1e-3),
    )
    specs = {
        "feature": embedding_spec.FeatureSpec(
            name="feature",
            table_spec=table,
            input_shape=(batch_size, valency),
            output_shape=(batch_size, _DIM),
        )
    }
    self._tables = embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0)
    )
    layer = embed.SparseCoreEmbed(feature_specs=specs)
    ids = np.random.default_rng(1).integers(
        0, _NUM_ROWS, (_NUM_BATCHES, batch_size, valency), np.int32
    )
    self._batches = [{"feature": jnp.array(x)} for x in ids]
    self._gradients = {"feature": jnp.full((batch_size, _DIM), 1e-3)}
    anchor = {"update_anchor": jnp.zeros(())}

    def look_up(parameters, tables, ids):
      return layer.apply({"params": parameters, "embedding": tables}, ids)

    def step(tables, ids, gradients):
      activations, update = jax.vjp(
          lambda parameters: look_up(parameters, tables, ids), anchor
      )
      update(gradients)
      return activations

    self._call = {
        "forward": jax.jit(lambda tables, ids, _: look_up(anchor, tables, ids)),
        "SGD": jax.jit(step),
    }
    self._next = 0
    return {"sums": [self._sum("forward"), self._sum("SGD")]}

  def _run(self, part: str) -> Any:
    batch = self._batches[self._next % _NUM_BATCHES]
    self._next += 1
    return jax.block_until_ready(
        self._call[part](self._tables, batch, self._gradients)
    )

  def _sum(self, part: str) -> float:
    activations = np.asarray(self._run(part)["feature"], np.float64)
    return float(activations.sum())

  def run(self, part: str, calls: int) -> dict[str, float]:
    """Times `calls` calls on the batches in turn; seconds per call."""
    return turns.time_calls(lambda: self._run(part), calls)
