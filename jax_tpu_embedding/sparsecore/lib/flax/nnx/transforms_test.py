# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The layer under the transformations of NNX and JAX."""

import functools

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

BATCHES = tuple(click_model.make_batch(seed) for seed in range(3))
STACKED = jax.tree.map(lambda *arrays: np.stack(arrays), *BATCHES)


def make(tables, num_devices=1):
  model = click_model.Model(
      click_model.make_specs(),
      click_model.make_mesh(num_devices),
      tables=tables,
  )
  return model, embed.PartitionedOptimizer(model, optax.sgd(0.1))


def state(model):
  """Tables, slots and dense variables, the same on any number of devices."""
  part = lambda path: click_model.logical_tables(model, path)
  return (
      part(lambda variables: variables.table),
      part(lambda variables: variables.slot.accumulator),
      nnx.to_pure_dict(nnx.state(model.dense)),
  )


@functools.cache
def expected_state(num_steps):
  """After steps without any transformation but grad."""
  model, optimizer = make("param")
  for batch in BATCHES[:num_steps]:
    click_model.train_step(model, optimizer, batch)
  return state(model)


# Each takes (model, optimizer) and makes one step.


def jit(model, optimizer):
  nnx.jit(click_model.train_step)(model, optimizer, BATCHES[0])


def gradients_by_model(model, batch, **mode):
  return nnx.grad(click_model.loss_fn, allow_int=True, **mode)(model, batch)


def gradients_by_params(model, batch, **mode):
  """In modes without graphs JAX 0.12 sees the model, and refuses jax.Refs."""
  graphdef, params, others = nnx.split(model, nnx.Param, ...)

  def loss_fn(params, others):
    return click_model.loss_fn(nnx.merge(graphdef, params, others), batch)

  return nnx.grad(loss_fn, **mode)(params, others)


@nnx.jit
def remat_of_the_model(model, optimizer):
  def loss(model, batch):
    out = nnx.remat(lambda model, ids: model(ids))(model, batch.ids)
    return jnp.mean((out - batch.labels) ** 2)

  optimizer.update(model, nnx.grad(loss)(model, BATCHES[0]))


@nnx.jit
def checkpoint_around_the_model(model, optimizer):
  def loss(model, batch):
    return jax.checkpoint(
        lambda ids: jnp.mean((model(ids) - batch.labels) ** 2)
    )(batch.ids)

  optimizer.update(model, nnx.grad(loss)(model, BATCHES[0]))


def split_and_merge(model, optimizer):
  graph, variables, rest = nnx.split((model, optimizer), nnx.Variable, ...)

  @jax.jit
  def train_step(variables, rest, batch):
    model, optimizer = nnx.merge(graph, variables, rest)
    click_model.train_step(model, optimizer, batch)
    return nnx.state((model, optimizer), nnx.Variable)

  nnx.update((model, optimizer), train_step(variables, rest, BATCHES[0]))


def donate(model, optimizer):
  # Refs are in place as they are, and cannot be donated.
  is_ref = not isinstance(
      model.embed.embedding_table, embed.EmbeddingVariablesParam
  )
  nnx.jit(click_model.train_step, donate_argnums=1 if is_ref else (0, 1))(
      model, optimizer, BATCHES[0]
  )


# Three steps.


def lax_scan_over_steps(model, optimizer):
  graph, variables, rest = nnx.split((model, optimizer), nnx.Variable, ...)

  @jax.jit
  def train(variables, rest, batches):
    def body(variables, batch):
      model, optimizer = nnx.merge(graph, variables, rest)
      loss = click_model.train_step(model, optimizer, batch)
      return nnx.state((model, optimizer), nnx.Variable), loss

    return jax.lax.scan(body, variables, batches)[0]

  nnx.update((model, optimizer), train(variables, rest, STACKED))


def nnx_scan_over_steps(model, optimizer):
  @nnx.jit
  @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
  def train(carry, batch):
    loss = click_model.train_step(*carry, batch)
    return carry, loss

  train((model, optimizer), STACKED)


ONE_STEP = [
    jit,
    remat_of_the_model,
    checkpoint_around_the_model,
    split_and_merge,
    donate,
]


class EqualStepsTest(parameterized.TestCase):

  @parameterized.product(
      transformed=ONE_STEP, tables=["param", "ref"], num_devices=[1, 4]
  )
  def test_one_step(self, transformed, tables, num_devices):
    model, optimizer = make(tables, num_devices)
    transformed(model, optimizer)
    self.assert_state(model, 1)

  @parameterized.product(
      mode=[{"graph": False}, {"graph_updates": False}],
      form=[("param", gradients_by_model), ("ref", gradients_by_params)],
      num_devices=[1, 4],
  )
  def test_one_step_in_a_mode_without_graphs(self, mode, form, num_devices):
    tables, gradients = form
    model, optimizer = make(tables, num_devices)

    @functools.partial(nnx.jit, **mode)
    def train_step(model, optimizer, batch):
      optimizer.update(model, gradients(model, batch, **mode))

    train_step(model, optimizer, BATCHES[0])
    self.assert_state(model, 1)

  @parameterized.parameters(
      (lax_scan_over_steps, "param", 1),
      (lax_scan_over_steps, "param", 4),
      (lax_scan_over_steps, "ref", 1),
      (lax_scan_over_steps, "ref", 4),
      (nnx_scan_over_steps, "param", 1),
      (nnx_scan_over_steps, "param", 4),
  )
  def test_three_steps(self, transformed, tables, num_devices):
    model, optimizer = make(tables, num_devices)
    transformed(model, optimizer)
    self.assert_state(model, 3)

  def test_any_optimizer_trains_a_model_with_refs(self):
    model, _ = make("ref")
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    nnx.jit(click_model.train_step)(model, optimizer, BATCHES[0])
    self.assert_state(model, 1)

  def assert_state(self, model, num_steps):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        state(model),
        expected_state(num_steps),
    )


class SeveralLookupsTest(parameterized.TestCase):

  def test_each_lookup_of_a_sum_updates_refs(self):
    """As two steps do whose gradients are both those of the old tables."""
    model, _ = make("ref")
    weight = jnp.arange(1, 3, dtype=jnp.float32)
    out = lambda model, i: weight[i] * jnp.sum(
        click_model.concatenate(model.embed(BATCHES[i].ids))
    )
    nnx.grad(lambda model: out(model, 0) + out(model, 1))(model)

    apart, _ = make("ref")
    # JAX runs backward passes from the last lookup to the first.
    for i in (1, 0):
      nnx.grad(functools.partial(out, i=i))(apart)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        click_model.variables_of(model),
        click_model.variables_of(apart),
    )


class CreationTest(parameterized.TestCase):

  def test_models_are_created_in_programs(self):
    model, _ = make("param")
    created = nnx.jit(lambda: make("param")[0])()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        state(created),
        state(model),
    )

  def test_shapes_are_known_without_values(self):
    model, _ = make("param")
    abstract = nnx.eval_shape(lambda: make("param")[0])
    self.assertEqual(
        jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(abstract))),
        jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(model))),
    )

  @parameterized.parameters("param", "ref")
  def test_a_state_of_arrays_restores_a_model(self, tables):
    model, optimizer = make(tables)
    read = lambda leaf: np.array(leaf[...])
    saved = jax.tree.map(read, nnx.to_pure_dict(nnx.state(model)))
    jit(model, optimizer)
    nnx.update(model, saved)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.tree.map(read, nnx.to_pure_dict(nnx.state(model))),
        saved,
    )
    jit(model, optimizer)  # and can be trained on


def nnx_vmap(model):
  nnx.vmap(
      lambda model, batch: click_model.loss_fn(model, batch), in_axes=(None, 0)
  )(model, STACKED)


def nnx_scan_over_an_argument(model):
  @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
  def body(model, batch):
    nnx.grad(click_model.loss_fn)(model, batch)
    return model

  body(model, STACKED)


def created_in_jit(model):
  del model
  nnx.jit(lambda: make("ref")[0])()


class RefusalsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("param", nnx_vmap, "Make the mapped axis part of the batch"),
      ("ref", nnx_vmap, "Make the mapped axis part of the batch"),
      ("ref", nnx_scan_over_an_argument, "AbstractRef"),
      ("ref", created_in_jit, "mutable array references cannot be returned"),
  )
  def test_what_does_not_work_raises(self, tables, transformed, message):
    model, _ = make(tables)
    before = click_model.variables_of(model)
    with self.assertRaisesRegex(Exception, message):
      transformed(model)
    jax.tree.map(
        np.testing.assert_array_equal, click_model.variables_of(model), before
    )


if __name__ == "__main__":
  absltest.main()
