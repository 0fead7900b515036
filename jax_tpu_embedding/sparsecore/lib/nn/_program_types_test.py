# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses

from absl.testing import absltest
import jax
from jax import export
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np


class ProgramTypesTest(absltest.TestCase):

  def test_arguments_and_results_come_back_as_they_are(self):
    buffers = {"stack": jnp.arange(3.0)}
    model = two_table_model.TwoTableModel(2)
    args = (
        model.inputs,
        embedding.PreprocessedInput(
            embedding.SparseDenseMatmulInput(buffers, buffers, buffers, buffers)
        ),
        model.inputs.replace(
            samples={
                "small": _buffers.SampleIds(
                    ids=jnp.zeros((2, 1), jnp.int32),
                    gains=jnp.ones((2, 1)),
                    has_failed=jnp.zeros(1, bool),
                )
            }
        ),
        model.inputs.replace(
            settings=dataclasses.replace(
                model.inputs.settings,
                batches=(("item", 6),),
                layouts=(_buffers.StackLayout("s", 6, (("item", 0, 6),)),),
            )
        ),
        {"stack": embedding.EmbeddingVariables(jnp.ones(2), (jnp.ones(2),))},
        {"stack": embedding.SparseGradient(jnp.arange(2), jnp.ones((2, 8)))},
    )
    exported = export.export(jax.jit(lambda *args: args))(*args)
    results = export.deserialize(exported.serialize()).call(*args)
    self.assertEqual(jax.tree.structure(results), jax.tree.structure(args))
    jax.tree.map(np.testing.assert_array_equal, results, args)

  def test_inputs_without_samples_have_the_tree_that_they_had(self):
    inputs = two_table_model.TwoTableModel(2).inputs
    structure = jax.tree.structure(inputs)
    self.assertLen(structure.children(), 2)
    self.assertEqual(structure.node_data()[1], (inputs.settings,))
    paths = [str(path[0]) for path, _ in jax.tree.leaves_with_path(inputs)]
    self.assertEqual(
        list(dict.fromkeys(paths)),
        [".sparse_dense_matmul_input", ".num_minibatches"],
    )


if __name__ == "__main__":
  absltest.main()
