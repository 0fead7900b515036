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

quick_compiles.use()


# One program for all tests.
gradient = nnx.jit(nnx.grad(click_model.loss_fn))


def make(tables="param"):
  return click_model.Model(
      click_model.make_specs(), click_model.make_mesh(1), tables=tables
  )


def dense_of(model):
  return {"kernel": model.dense.kernel, "bias": model.dense.bias}


def norm(tree):
  return np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(tree)))


class ModelWithState(click_model.Model):
  """Variables that have no gradients: statistics and random keys."""

  def __init__(self, specs, mesh):
    super().__init__(specs, mesh)
    self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))
    self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

  def __call__(self, ids, step=None):
    return self.dropout(self.norm(super().__call__(ids, step)))


def scale_by_value():
  """A transformation that wants the loss."""

  def update(updates, state, params=None, *, value, **kwargs):
    del params, kwargs
    return jax.tree.map(lambda g: -g * value, updates), state

  return optax.GradientTransformationExtraArgs(
      lambda params: optax.EmptyState(), update
  )


class PartitionedOptimizerTest(parameterized.TestCase):

  def test_tables_are_replaced_and_the_rest_is_updated(self):
    model, batch = make(), click_model.make_batch()
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.5))
    grads = gradient(model, batch)
    kernel = np.array(model.dense.kernel[...])
    optimizer.update(model, grads)
    jax.tree.map(
        np.testing.assert_array_equal,
        model.embed.embedding_table.get_value(),
        grads["embed"]["embedding_table"].get_value(),
    )
    np.testing.assert_allclose(
        model.dense.kernel[...],
        kernel - 0.5 * grads["dense"]["kernel"][...],
        rtol=1e-6,
    )
    self.assertEqual(optimizer.step[...], 1)

  @parameterized.product(
      tables=("param", "ref"),
      wrapper=(
          optax.MultiSteps(optax.sgd(0.5), 2),
          optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(0.5)),
      ),
  )
  def test_wrappers_of_optax_see_dense_parameters_only(self, tables, wrapper):
    batch = click_model.make_batch()
    changes = []
    for transformation in (wrapper, optax.sgd(0.5)):
      model = make(tables)
      optimizer = embed.PartitionedOptimizer(model, transformation)
      read = lambda model: (
          click_model.logical_tables(model),
          {name: np.array(x[...]) for name, x in dense_of(model).items()},
      )
      before = read(model)
      optimizer.update(model, nnx.grad(click_model.loss_fn)(model, batch))
      changes.append(jax.tree.map(lambda a, b: a - b, read(model), before))
    (rows, dense), (expected_rows, expected_dense) = changes
    # Rows take their step in this batch, and are not clipped.
    jax.tree.map(np.testing.assert_array_equal, rows, expected_rows)
    self.assertTrue(np.any(rows["users"]))
    self.assertGreater(norm(expected_dense), 1e-2)
    if isinstance(wrapper, optax.MultiSteps):
      self.assertEqual(norm(dense), 0)
    else:  # Nor counted: dense parameters have all of the length.
      np.testing.assert_allclose(norm(dense), 5e-4, rtol=1e-3)

  def test_it_has_no_state_for_tables(self):
    model = make()
    optimizer = embed.PartitionedOptimizer(model, optax.adam(0.1))
    sizes = [x.size for x in jax.tree.leaves(nnx.state(optimizer))]
    self.assertEqual(max(sizes), model.dense.kernel[...].size)

  def test_models_may_have_variables_without_gradients(self):
    model = ModelWithState(click_model.make_specs(), click_model.make_mesh(1))
    optimizer = embed.PartitionedOptimizer(model, optax.adam(0.1))
    before = click_model.variables_of(model)["users"].table
    nnx.jit(click_model.train_step)(model, optimizer, click_model.make_batch())
    self.assertTrue(
        (click_model.variables_of(model)["users"].table != before).any()
    )
    self.assertNotEqual(model.norm.mean[...], 0)

  @parameterized.named_parameters(
      ("used", scale_by_value(), dict(value=jnp.float32(2), other=1)),
      ("ignored", optax.sgd(2.0), dict(value=jnp.float32(2))),
      (
          "ignored_by_one_without_keywords",
          optax.GradientTransformation(
              lambda params: optax.EmptyState(),
              lambda updates, state, params=None: (
                  jax.tree.map(lambda g: -2 * g, updates),
                  state,
              ),
          ),
          dict(value=jnp.float32(2)),
      ),
  )
  def test_keywords_reach_transformations(self, dense_optimizer, kwargs):
    model = make()
    optimizer = embed.PartitionedOptimizer(model, dense_optimizer)
    grads = gradient(model, click_model.make_batch())
    bias = np.array(model.dense.bias[...])
    optimizer.update(model, grads, **kwargs)
    np.testing.assert_allclose(
        model.dense.bias[...], bias - 2 * grads["dense"]["bias"][...], rtol=1e-6
    )

  def test_each_layer_of_a_model_is_updated(self):
    class TwoLayers(nnx.Module):

      def __init__(self):
        make = lambda seed: embed.SparseCoreEmbed(
            click_model.make_specs(),
            "data",
            click_model.make_mesh(1),
            nnx.Rngs(seed),
        )
        self.first, self.second = make(0), make(1)

      def __call__(self, ids):
        # Of different sizes, so that the gradients differ.
        return (
            click_model.concatenate(self.first(ids)).sum()
            + 3 * click_model.concatenate(self.second(ids)).sum()
        )

    model, ids = TwoLayers(), click_model.make_batch().ids
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1))
    alone = {}
    for name, scale in [("first", 1), ("second", 3)]:
      loss = lambda layer: scale * click_model.concatenate(layer(ids)).sum()
      grads = nnx.jit(nnx.grad(loss))(getattr(model, name))
      alone[name] = grads["embedding_table"]
    optimizer.update(model, nnx.jit(nnx.grad(lambda model: model(ids)))(model))
    for name, expected in alone.items():
      jax.tree.map(
          np.testing.assert_array_equal,
          getattr(model, name).embedding_table.get_value(),
          expected.get_value(),
      )

  def test_tables_of_two_updates_raise_and_leave_the_model_as_it_is(self):
    model = make()
    optimizer = embed.PartitionedOptimizer(model, optax.sgd(0.1))
    before = click_model.variables_of(model)
    grads = gradient(model, click_model.make_batch())
    grads = jax.tree.map(jnp.add, grads, grads)
    with self.assertRaisesRegex(ValueError, "not the result of one update"):
      optimizer.update(model, grads)
    jax.tree.map(
        np.testing.assert_array_equal, click_model.variables_of(model), before
    )


if __name__ == "__main__":
  absltest.main()
