# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What must not be done with "gradients" that are new tables raises."""

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed_optimizer
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 2)
quick_compiles.use()

IDS = two_feature_model.make_ids(0)
OTHER_IDS = two_feature_model.make_ids(1)
BROKEN = "tables are not the result of one update.*The seal is"


def replace_tables(params, gradients):
  """A step that does no more than it should."""
  return jax.jit(embed_optimizer.apply_updates_for_sc_model)(params, gradients)


def sum_of_two(gradient, params):
  gradients = jax.tree.map(
      jnp.add, gradient(params, IDS), gradient(params, OTHER_IDS)
  )
  return replace_tables(params, gradients)


def mean_of_two(gradient, params):
  gradients = jax.tree.map(
      lambda a, b: (a + b) / 2,
      gradient(params, IDS),
      gradient(params, OTHER_IDS),
  )
  return replace_tables(params, gradients)


def clip(gradient, params):
  clipping = optax.clip_by_global_norm(1.0)
  gradients, _ = clipping.update(gradient(params, IDS), optax.EmptyState())
  return replace_tables(params, gradients)


def average(gradient, params):
  new = replace_tables(params, gradient(params, IDS))
  return optax.incremental_update(new, params, 0.1)


def cast(gradient, params):
  new = replace_tables(params, gradient(params, OTHER_IDS))
  round_trip = lambda x: x.astype(jnp.bfloat16).astype(x.dtype)
  return jax.tree.map(round_trip, new)


def multi_steps(apply_updates):
  def train(gradient, params):
    optimizer = optax.MultiSteps(
        embed_optimizer.create_optimizer_for_sc_model(params, optax.sgd(0.1)), 2
    )
    state = optimizer.init(params)
    for ids in (IDS, OTHER_IDS):
      updates, state = optimizer.update(gradient(params, ids), state, params)
      params = apply_updates(params, updates)
    return params

  return train


def train_all_with(optimizer):
  def train(gradient, params):
    updates, _ = optimizer.update(
        gradient(params, IDS), optimizer.init(params), params
    )
    return optax.apply_updates(params, updates)

  return train


class TrapsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model, cls.params = two_feature_model.with_parameters()
    cls.loss = jax.jit(
        lambda params, ids: two_feature_model.loss(cls.model, params, ids)
    )
    cls.gradient = jax.jit(jax.grad(cls.loss))

  def test_replacing_the_tables_is_what_works(self):
    params = self.params
    for ids in (IDS, OTHER_IDS, IDS):
      params = replace_tables(params, type(self).gradient(params, ids))
    self.assertTrue(np.isfinite(type(self).loss(params, IDS)))

  @parameterized.named_parameters(
      ("sum_of_two", sum_of_two),
      ("mean_of_two", mean_of_two),
      ("clipping_by_global_norm", clip),
      ("average_of_weights", average),
      ("cast", cast),
      ("multi_steps", multi_steps(optax.apply_updates)),
      ("multi_steps_of_the_layer", multi_steps(replace_tables)),
      ("sgd", train_all_with(optax.sgd(0.1))),
      ("adam", train_all_with(optax.adam(0.1))),
      ("adagrad", train_all_with(optax.adagrad(0.1))),
      ("optax_apply_updates", train_all_with(optax.identity())),
  )
  def test_misuse_raises_at_the_next_lookup(self, train):
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, BROKEN):
      params = train(type(self).gradient, self.params)
      jax.block_until_ready(type(self).loss(params, IDS))

  @parameterized.named_parameters(
      ("layer_called_twice", 2, lambda loss, p: loss(p, IDS)),
      ("two_losses", 1, lambda loss, p: loss(p, IDS) + loss(p, OTHER_IDS)),
      (
          "scan_over_batches",
          1,
          lambda loss, p: jax.lax.scan(
              lambda total, ids: (total + loss(p, ids), None),
              0.0,
              jax.tree.map(lambda *x: np.stack(x), IDS, OTHER_IDS),
          )[0],
      ),
  )
  def test_several_lookups_in_a_loss_raise(self, num_calls, total):
    model, params = two_feature_model.with_parameters(num_calls=num_calls)
    loss = jax.jit(lambda p, ids: two_feature_model.loss(model, p, ids))
    gradients = jax.grad(lambda p: total(loss, p))(params)
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, BROKEN):
      loss(replace_tables(params, gradients), IDS).block_until_ready()

  def test_a_scan_with_broadcast_parameters_raises(self):
    class Scan(nn.Module):

      @nn.compact
      def __call__(self, ids):
        def turn(layer, total, _):
          return total + layer(ids)["tags"].sum(), None

        scan = nn.scan(
            turn,
            variable_broadcast="params",
            split_rngs={"params": False},
            length=2,
        )
        layer = embed.SparseCoreEmbed(specs, tables="param")
        return scan(layer, 0.0, None)[0]

    specs = two_feature_model.make_features()
    model = Scan()
    params = model.init(jax.random.key(0), IDS)["params"]
    loss = jax.jit(lambda p: model.apply({"params": p}, IDS))
    gradients = jax.grad(loss)(params)
    with self.assertRaisesRegex(jax.errors.JaxRuntimeError, BROKEN):
      loss(replace_tables(params, gradients)).block_until_ready()

  @parameterized.named_parameters(
      ("checkpoint", {}, jax.checkpoint),
      ("remat", dict(layer=nn.remat(embed.SparseCoreEmbed)), lambda f: f),
  )
  def test_recomputing_makes_one_update(self, options, transform):
    model, params = two_feature_model.with_parameters(**options)
    loss = transform(lambda p: two_feature_model.loss(model, p, IDS))
    actual = jax.jit(jax.grad(loss))(params)
    expected = type(self).gradient(params, IDS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        actual,
        expected,
    )

  def test_tables_are_the_carry_of_a_scan_over_steps(self):
    gradient = type(self).gradient

    def step(params, ids):
      new = embed_optimizer.apply_updates_for_sc_model(
          params, gradient(params, ids)
      )
      return new, ()

    stacked = jax.tree.map(lambda *x: np.stack(x), IDS, OTHER_IDS)
    actual, _ = jax.jit(lambda p: jax.lax.scan(step, p, stacked))(self.params)
    expected = self.params
    for ids in (IDS, OTHER_IDS):
      expected, _ = step(expected, ids)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        actual,
        expected,
    )

  def test_tables_that_a_loss_does_not_use_stay(self):
    unused = jax.grad(lambda p: (p["Dense_0"]["kernel"] ** 2).sum())

    @jax.jit
    def step(params):
      return embed_optimizer.apply_updates_for_sc_model(params, unused(params))

    new = step(self.params)
    jax.tree.map(np.testing.assert_array_equal, new["emb"], self.params["emb"])
    self.assertTrue(np.isfinite(type(self).loss(new, IDS)))

  def test_a_seal_that_is_set_anew_accepts_other_tables(self):
    params = average(type(self).gradient, self.params)
    params["emb"]["update_seal"] = {
        "sc_embedding_variables": jnp.float32([1, 0, 0, 0, 0])
    }
    self.assertTrue(np.isfinite(type(self).loss(params, IDS)))


if __name__ == "__main__":
  absltest.main()
