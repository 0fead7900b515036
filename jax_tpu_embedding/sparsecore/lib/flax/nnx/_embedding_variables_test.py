# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
from flax import nnx
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import click_model
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
quick_compiles.use()

P = jax.sharding.PartitionSpec
FORMS = ["param", "ref"]


def make(tables="param"):
  return click_model.Model(
      click_model.make_specs(), click_model.make_mesh(4), tables=tables
  )


class FiltersTest(parameterized.TestCase):

  @parameterized.parameters(
      (lambda: embed.EmbeddingVariablesParam({}), True, False),
      (lambda: nnx.Param(jnp.zeros(2)), False, True),
      (lambda: nnx.BatchStat(jnp.zeros(2)), False, True),
      (lambda: jax.new_ref(jnp.zeros(2)), False, False),
  )
  def test_filters(self, make_value, is_embedding, is_non_embedding):
    value = make_value()
    self.assertEqual(embed.is_embedding_variables((), value), is_embedding)
    self.assertEqual(
        embed.is_non_embedding_variables((), value), is_non_embedding
    )

  def test_split_by_filters_and_merged_models_are_the_same(self):
    model, ids = make(), click_model.make_batch().ids
    expected = model(ids)
    graph, tables, dense = nnx.split(
        model, embed.is_embedding_variables, embed.is_non_embedding_variables
    )
    self.assertEqual(set(tables), {"embed"})
    self.assertEqual(set(tables["embed"]), {"embedding_table", "update_seal"})
    self.assertEqual(set(dense), {"dense"})
    np.testing.assert_array_equal(
        nnx.merge(graph, tables, dense)(ids), expected
    )

  @parameterized.parameters(*FORMS)
  def test_differentiating_by_the_rest_freezes_tables(self, tables):
    model = make(tables)
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1))
    before = click_model.variables_of(model)
    kernel = np.array(model.dense.kernel[...])
    grads = nnx.grad(
        click_model.loss_fn,
        argnums=nnx.DiffState(0, embed.is_non_embedding_variables),
    )(model, click_model.make_batch())
    optimizer.update(model, grads)
    jax.tree.map(
        np.testing.assert_array_equal, click_model.variables_of(model), before
    )
    self.assertFalse(np.array_equal(model.dense.kernel[...], kernel))


class GetNamedShardingTest(parameterized.TestCase):

  @parameterized.parameters(*FORMS)
  def test_programs_keep_tables_where_they_are(self, tables):
    model = make(tables)
    optimizer = embed.PartitionedOptimizer(model, optax.adam(0.1))
    shardings = [
        embed.get_named_sharding(node, model.embed.mesh)
        for node in (model, optimizer)
    ]
    train_step = nnx.jit(
        click_model.train_step, in_shardings=(*shardings, None)
    )
    batch = click_model.make_batch()
    first = train_step(model, optimizer, batch)
    second = train_step(model, optimizer, batch)
    self.assertLess(second, first)
    for array in jax.tree.leaves(nnx.state(model.embed)):
      if array.shape[1:]:
        self.assertEqual(array.sharding.spec, P("data", None))
    self.assertEqual(model.dense.kernel[...].sharding.spec, P())

  def test_dense_variables_go_by_their_metadata(self):
    model, mesh = make(), click_model.make_mesh(4)
    with jax.set_mesh(mesh):
      model.dense.kernel = nnx.Param(
          jnp.zeros((4, 8)), out_sharding=("data", None)
      )
    shardings = embed.get_named_sharding(model, mesh)
    by_path = lambda *path: shardings.map_prefix(path, None)
    self.assertEqual(by_path("dense", "kernel").spec, P("data", None))
    self.assertEqual(by_path("dense", "bias").spec, P())
    self.assertEqual(by_path("embed", "embedding_table").spec, P("data", None))
    self.assertEqual(by_path("embed", "update_seal").spec, P())

  def test_a_variable_without_sharding_is_an_error(self):
    model = make()
    model.embed.embedding_table = embed.EmbeddingVariablesParam({}, other=1)
    with self.assertRaisesRegex(
        ValueError,
        r"'embed'.*'embedding_table'.*no metadata 'embedding_sharding'",
    ):
      embed.get_named_sharding(model, model.embed.mesh)


if __name__ == "__main__":
  absltest.main()
