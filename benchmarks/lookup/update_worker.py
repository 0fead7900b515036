# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""An update by an optimizer of any version.

Uses what versions have in common. It is found beside the package of another
version, not in `benchmarks`.
"""

from __future__ import annotations

import itertools

import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

from benchmarks import turns

_NUM_BATCHES = 4


class Worker:
  """The commands."""

  def load(
      self,
      optimizer: str,
      row_options: dict[str, float],
      dtype: str,
      num_rows: int,
      columns: int,
      batch_size: int,
      valency: int,
  ) -> dict[str, float]:
    """Makes the table; returns the sum of its values after a step."""
    self._variables = None  # Two tables would be in memory.
    ids_per_batch = batch_size * valency
    spec = embedding_spec.FeatureSpec(
        name="feature",
        table_spec=embedding_spec.TableSpec(
            name="table",
            vocabulary_size=num_rows,
            embedding_dim=columns,
            initializer=jax.nn.initializers.constant(0.5),
            optimizer=getattr(embedding_spec, f"{optimizer}OptimizerSpec")(
                **row_options
            ),
            dtype=dtype,
            combiner="sum",
            max_ids_per_partition=ids_per_batch,
            max_unique_ids_per_partition=ids_per_batch,
        ),
        input_shape=(batch_size, valency),
        output_shape=(batch_size, columns),
    )
    topology = dict(global_device_count=1, num_sc_per_device=1)
    embedding.prepare_feature_specs_for_training(spec, **topology)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    self._variables = embedding.init_embedding_variables(
        jax.random.key(0),
        embedding.get_table_specs(spec),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        1,
    )
    random = np.random.default_rng(0)
    self._gradients = jax.numpy.asarray(
        random.normal(0, 1e-3, (batch_size, columns)).astype(np.float32)
    )
    batches = [
        jax.device_put(
            embedding.preprocess_sparse_dense_matmul_input(
                random.integers(0, num_rows, (batch_size, valency), np.int32),
                None,
                spec,
                1,
                1,
                num_sc_per_device=1,
            )[0]
        )
        for _ in range(_NUM_BATCHES)
    ]
    self._batches = itertools.cycle(batches)
    self._update = jax.jit(
        lambda gradients, inputs, variables: (
            embedding.tpu_sparse_dense_matmul_grad(
                gradients, inputs, variables, spec, **topology
            )
        ),
        donate_argnums=2,
    )
    self._step()
    (table, *_), *_ = self._variables.values()
    return {"sum": float(np.asarray(table, np.float64).sum())}

  def _step(self) -> None:
    self._variables = jax.block_until_ready(
        self._update(self._gradients, next(self._batches), self._variables)
    )

  def run(self, calls: int) -> dict[str, float]:
    """Times `calls` calls on the batches in turn; seconds per call."""
    return turns.time_calls(self._step, calls)
