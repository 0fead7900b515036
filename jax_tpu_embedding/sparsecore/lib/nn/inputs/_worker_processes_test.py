# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Worker processes of an input pipeline are given specs, and return buffers."""

import multiprocessing

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np
import optax


def _preprocess(ids, weights, specs):
  return embedding.preprocess_sparse_dense_matmul_input(
      ids, weights, specs, 1, 1, num_sc_per_device=2
  )


class WorkerProcessesTest(absltest.TestCase):

  def test_specs_with_functions_that_pickle_does_not_hold(self):
    model = two_table_model.TwoTableModel(
        2, optimizer=two_table_model.sgd(optax.linear_schedule(0.0, 1.0, 10))
    )
    for table in embedding.get_table_specs(model.specs).values():
      # Not by assignment, which tables that are stacked refuse.
      vars(table)["initializer"] = jax.nn.initializers.normal(1.0)
    args = model.ids, model.weights, model.specs
    expected, expected_stats = _preprocess(*args)

    with multiprocessing.get_context("spawn").Pool(1) as pool:
      inputs, stats = pool.apply_async(_preprocess, args).get(timeout=120)

    self.assertEqual(inputs.settings, expected.settings)
    jax.tree.map(np.testing.assert_array_equal, inputs, expected)
    self.assertEqual(stats.id_drop_counters, expected_stats.id_drop_counters)


if __name__ == "__main__":
  absltest.main()
