# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import model
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np


class ModelTest(parameterized.TestCase):

  def test_cross_layers_are_the_formula_of_the_paper(self):
    layers = model.CrossLayers(num_layers=2, rank=3)
    x0 = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    variables = layers.init(jax.random.key(0), x0)
    # Biases that are not zero.
    variables = jax.tree.map(lambda x: x + 0.1, variables)
    parameters = variables["params"]
    x = x0
    for narrow, wide in (("Dense_0", "Dense_1"), ("Dense_2", "Dense_3")):
      v = parameters[narrow]["kernel"]
      u, b = parameters[wide]["kernel"], parameters[wide]["bias"]
      x = x0 * (x @ v @ u + b) + x
    np.testing.assert_allclose(layers.apply(variables, x0), x, rtol=1e-5)

  def test_no_cross_layers_pass_their_input_on(self):
    x0 = np.ones((2, 3))
    layers = model.CrossLayers(num_layers=0, rank=1)
    np.testing.assert_array_equal(layers.apply({}, x0), x0)

  @parameterized.parameters(0, 1, 4)
  def test_dense_parameters_are_counted(self, cross_layers):
    config = config_lib.Config(
        batch_size=8, table_rows=50, embedding_dim=8, cross_layers=cross_layers
    )
    layers = model.make(config).dense_layers
    parameters = layers.init(
        jax.random.key(0), np.zeros((8, 13)), 26 * [np.zeros((8, 8))]
    )
    self.assertEqual(
        model.num_dense_parameters(config),
        sum(x.size for x in jax.tree.leaves(parameters)),
    )

  def test_all_tables_are_one_stack(self):
    specs = model.feature_specs(
        config_lib.Config(batch_size=8, table_rows=50, embedding_dim=8)
    )
    self.assertLen(specs, 26)
    self.assertEqual(specs["C26"].output_shape, (8, 8))
    self.assertLen(embedding.get_stacked_table_specs(specs), 1)


if __name__ == "__main__":
  absltest.main()
