# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What must not be done with the "gradients" of tables raises, inside jit."""

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

BATCHES = tuple(click_model.make_batch(seed) for seed in range(2))

grad = nnx.grad(click_model.loss_fn)


def sum_of_gradients(model, optimizer):
  grads = jax.tree.map(
      jnp.add, grad(model, BATCHES[0]), grad(model, BATCHES[1])
  )
  optimizer.update(model, grads)


def mean_of_gradients(model, optimizer):
  grads = jax.tree.map(
      lambda a, b: (a + b) / 2, grad(model, BATCHES[0]), grad(model, BATCHES[1])
  )
  optimizer.update(model, grads)


def clip_by_global_norm(model, optimizer):
  grads = grad(model, BATCHES[0])
  clip = optax.clip_by_global_norm(0.5)
  grads, _ = clip.update(grads, clip.init(grads))
  optimizer.update(model, grads)


def two_lookups_in_a_loss(model, optimizer):
  loss = lambda model: sum(click_model.loss_fn(model, b) for b in BATCHES)
  optimizer.update(model, nnx.grad(loss)(model))


def a_scaled_loss_is_fine(model, optimizer):
  loss = lambda model: 2 * click_model.loss_fn(model, BATCHES[0])
  optimizer.update(model, nnx.grad(loss)(model))


def scan_in_a_loss(model, optimizer):
  batches = jax.tree.map(lambda *arrays: jnp.stack(arrays), *BATCHES)

  @nnx.scan(in_axes=(None, 0), out_axes=0)
  def losses(model, batch):
    return click_model.loss_fn(model, batch)

  loss = lambda model: losses(model, batches).sum()
  optimizer.update(model, nnx.grad(loss)(model))


def optimizer_of(transformation):
  """An optimizer of flax, which does not know of tables."""

  def step(model, optimizer):
    del optimizer
    optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
    optimizer.update(model, grad(model, BATCHES[0]))

  return step


class TrapsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("sum_of_gradients", sum_of_gradients),
      ("mean_of_gradients", mean_of_gradients),
      ("clip_by_global_norm", clip_by_global_norm),
      ("two_lookups_in_a_loss", two_lookups_in_a_loss),
      ("scan_in_a_loss", scan_in_a_loss),
      ("sgd", optimizer_of(optax.sgd(0.1))),
      ("adam", optimizer_of(optax.adam(0.1))),
      ("multi_steps", optimizer_of(optax.MultiSteps(optax.sgd(1.0), 1))),
  )
  def test_the_next_lookup_raises(self, step):
    model, optimizer = self.make(1)
    nnx.jit(step)(model, optimizer)
    with self.assertRaisesRegex(Exception, "not the result of one update"):
      jax.block_until_ready(model(BATCHES[0].ids))

  def test_it_raises_over_devices(self):
    model, optimizer = self.make(4)
    nnx.jit(sum_of_gradients)(model, optimizer)
    with self.assertRaisesRegex(Exception, "not the result of one update"):
      jax.block_until_ready(model(BATCHES[0].ids))

  def test_the_gradient_itself_does_not_raise(self):
    model, optimizer = self.make(1)
    nnx.jit(a_scaled_loss_is_fine)(model, optimizer)
    jax.block_until_ready(model(BATCHES[0].ids))

  @parameterized.parameters(nnx.jit, lambda f: f)
  def test_tables_that_a_loss_does_not_use_stay(self, jit):
    model, optimizer = self.make(4)
    before = click_model.variables_of(model)

    @jit
    def step(model, optimizer):
      loss = lambda model: jnp.sum(model.dense.kernel[...])
      optimizer.update(model, nnx.grad(loss)(model))

    step(model, optimizer)
    jax.tree.map(
        np.testing.assert_array_equal, click_model.variables_of(model), before
    )
    jax.block_until_ready(model(BATCHES[0].ids))

  def make(self, num_devices):
    model = click_model.Model(
        click_model.make_specs(), click_model.make_mesh(num_devices)
    )
    return model, embed.PartitionedOptimizer(model, optax.sgd(0.1))


if __name__ == "__main__":
  absltest.main()
