# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables in mutable arrays under the transformations of JAX and Flax."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.flax.testing import two_feature_model
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
quick_compiles.use()

IDS = two_feature_model.make_ids(0)
OTHER_IDS = two_feature_model.make_ids(1)


def changes(after, before):
  return jax.tree.map(lambda a, b: a - b, after, before)


def change_by(make_loss, **kwargs):
  """What the gradient of make_loss(loss) changes in the tables.

  Args:
    make_loss: gets loss(params, ids) and returns a function of params.
    **kwargs: of the model.
  """
  model, params, tables = two_feature_model.with_refs(**kwargs)
  before = two_feature_model.values(tables)

  @jax.jit
  def gradient(params, tables):
    def loss(params, ids):
      return two_feature_model.loss(model, params, ids, tables)

    return jax.grad(make_loss(loss))(params)

  gradient(params, tables)
  return changes(two_feature_model.values(tables), before)


def assert_close(actual, expected):
  jax.tree.map(
      functools.partial(np.testing.assert_allclose, atol=1e-5), actual, expected
  )


ONE_LOSS = lambda loss: lambda params: loss(params, IDS)


@functools.cache
def change_of_one_loss():
  return change_by(ONE_LOSS)


class RefsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("nothing_saved", {}),
      ("all_saved", dict(policy=jax.checkpoint_policies.everything_saveable)),
      ("dots_saved", dict(policy=jax.checkpoint_policies.dots_saveable)),
  )
  def test_checkpoint_updates_once(self, kwargs):
    # The forward pass runs twice, and an update must not.
    recomputed = change_by(
        lambda loss: jax.checkpoint(ONE_LOSS(loss), **kwargs)
    )
    assert_close(recomputed, change_of_one_loss())

  @parameterized.product(num_devices=(1, 2), nested=(False, True))
  def test_blocks_that_share_a_table_recompute_no_lookup(
      self, num_devices, nested
  ):
    # The backward pass of the second block updates the table before the first
    # block is computed again.
    specs = two_feature_model.make_features()
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    layer = embed.SparseCoreEmbed(specs, mesh=mesh, tables="ref")
    params = layer.init(jax.random.key(1), IDS)["params"]

    def run(remat):
      tables = embed.SparseCoreEmbed.create_embedding_variables(
          specs, jax.random.key(0), mesh=mesh
      )

      def block(params, weight, x):
        out = layer.apply({"params": params, "embedding": tables}, IDS)
        return jnp.sin(x * weight + out["tags"] * out["words"].sum(1))

      def loss(params, weight):
        x = jnp.ones((two_feature_model.BATCH, two_feature_model.DIM))
        for _ in range(2):
          x = remat(block)(params, weight, x)
        return (x**2).sum()

      if nested:
        loss = remat(loss)
      gradients = jax.jit(jax.grad(loss, (0, 1)))(params, jnp.float32(0.5))
      return gradients, two_feature_model.values(tables)

    assert_close(run(jax.checkpoint), run(lambda block: block))

  def test_a_sum_of_losses_updates_once_for_each(self):
    both = change_by(lambda loss: lambda p: loss(p, IDS) + loss(p, OTHER_IDS))
    other = change_by(lambda loss: lambda p: loss(p, OTHER_IDS))
    # SGD steps add up: gradients are those of the tables before any of them.
    assert_close(
        both, jax.tree.map(lambda a, b: a + b, change_of_one_loss(), other)
    )

  def test_a_layer_that_is_called_twice_updates_twice(self):
    # The loss is a square, and the bias is zero: twice the activations give
    # twice the gradient, to each of two calls.
    one, two = change_of_one_loss(), change_by(ONE_LOSS, num_calls=2)
    for name, of_one in one.items():
      np.testing.assert_allclose(two[name].table, 4 * of_one.table, atol=1e-5)

  def test_updates_count_where_the_optimizer_depends_on_them(self):
    for rate, counts in ((0.5, (0, 0)), (lambda unused_step: 0.5, (1, 2))):
      specs = two_feature_model.make_features(
          embedding_spec.SGDOptimizerSpec(rate)
      )
      for num_calls, count in enumerate(counts, 1):
        change = change_by(ONE_LOSS, specs=specs, num_calls=num_calls)
        for of_stack in change.values():
          self.assertEqual(of_stack.state[0], count)

  def test_a_loss_in_a_scan_updates_in_each_turn(self):
    def scanned(loss):
      def total(params):
        def turn(carry, ids):
          return carry + loss(params, ids), None

        stacked = jax.tree.map(lambda *x: np.stack(x), IDS, OTHER_IDS)
        return jax.lax.scan(turn, 0.0, stacked)[0]

      return total

    summed = lambda loss: lambda p: loss(p, IDS) + loss(p, OTHER_IDS)
    assert_close(change_by(scanned), change_by(summed))

  def test_steps_in_a_scan_are_steps_one_by_one(self):
    def train(params, tables, all_ids):
      def step(params, ids):
        loss, gradients = jax.value_and_grad(
            lambda p: two_feature_model.loss(model, p, ids, tables)
        )(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), loss

      return jax.lax.scan(step, params, all_ids)

    model, params, tables = two_feature_model.with_refs()
    stacked = jax.tree.map(lambda *x: np.stack(x), IDS, OTHER_IDS)
    in_scan, losses = jax.jit(train)(params, tables, stacked)
    actual = two_feature_model.values(tables)

    model, params, tables = two_feature_model.with_refs()
    expected_losses = []
    for ids in (IDS, OTHER_IDS):
      one = jax.tree.map(lambda x: x[None], ids)
      params, loss = jax.jit(train)(params, tables, one)
      expected_losses.append(loss[0])
    assert_close(actual, two_feature_model.values(tables))
    assert_close(in_scan, params)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)

  def test_remat_sees_tables_at_the_path_of_the_layer(self):
    model, params, tables = two_feature_model.with_refs(
        layer=nn.remat(embed.SparseCoreEmbed)
    )
    before = two_feature_model.values(tables)
    jax.jit(
        jax.grad(
            lambda p: two_feature_model.loss(model, p, IDS, {"emb": tables})
        )
    )(params)
    actual = changes(two_feature_model.values(tables), before)
    assert_close(actual, change_of_one_loss())

  @parameterized.named_parameters(
      ("of_squares", lambda x: (x**2).sum()),
      # Its gradient is constant.
      ("of_sums", lambda x: x.sum()),
  )
  def test_a_scan_of_layers_updates_in_each_turn(self, reduce):
    class Scan(nn.Module):

      @nn.compact
      def __call__(self, ids):
        def turn(layer, total, _):
          return total + reduce(layer(ids)["tags"]), None

        scan = nn.scan(
            turn,
            variable_broadcast=("params", "embedding"),
            split_rngs={"params": False},
            length=2,
            # The check of Flax 0.12.9 and later returns the variables from a
            # traced function, which JAX forbids for Refs.
            check_constancy_invariants=False,
        )
        layer = embed.SparseCoreEmbed(specs, tables="ref", name="emb")
        return scan(layer, 0.0, None)[0]

    def change(make_loss):
      tables = embed.SparseCoreEmbed.create_embedding_variables(
          specs, jax.random.key(0)
      )
      before = two_feature_model.values(tables)
      jax.jit(jax.grad(make_loss(tables)))(params)
      return changes(two_feature_model.values(tables), before)

    specs = two_feature_model.make_features()
    layer = embed.SparseCoreEmbed(specs, tables="ref")
    params = layer.init(jax.random.key(1), IDS)["params"]

    def one_by_one(tables):
      lookup = lambda params: reduce(
          layer.apply({"params": params, "embedding": tables}, IDS)["tags"]
      )
      return lambda params: lookup(params) + lookup(params)

    def scanned(tables):
      return lambda params: Scan().apply(
          {"params": {"emb": params}, "embedding": {"emb": tables}}, IDS
      )

    assert_close(change(scanned), change(one_by_one))

  @parameterized.named_parameters(
      ("remat", nn.remat(embed.SparseCoreEmbed)),
      ("jit", nn.jit(embed.SparseCoreEmbed)),
  )
  def test_lifted_layers_say_where_they_look_for_tables(self, layer):
    model, params, tables = two_feature_model.with_refs(layer=layer)
    with self.assertRaisesRegex(
        ValueError, "Inside of nn.remat, nn.scan and nn.jit .* at 'emb'"
    ):
      two_feature_model.loss(model, params, IDS, tables)

  def test_several_layers_find_their_tables(self):
    class TwoLayers(nn.Module):

      @nn.compact
      def __call__(self, ids):
        return sum(
            two_feature_model.Model(specs, (("tables", "ref"),))(ids)
            for specs in (first, second)
        )

    first = two_feature_model.make_features(prefix="a_")
    second = two_feature_model.make_features(prefix="b_")
    make = embed.SparseCoreEmbed.create_embedding_variables
    tables = make(first, jax.random.key(0)) | make(second, jax.random.key(1))
    before = two_feature_model.values(tables)
    model = TwoLayers()
    params = model.init(jax.random.key(2), IDS)["params"]
    jax.jit(jax.grad(lambda p: two_feature_model.loss(model, p, IDS, tables)))(
        params
    )
    after = two_feature_model.values(tables)
    for name in ("a_words", "a_tags", "b_words", "b_tags"):
      with self.subTest(name):
        self.assertFalse(np.array_equal(after[name].table, before[name].table))

  @parameterized.named_parameters(
      (
          "vmap",
          lambda loss, p, ids: jax.vmap(loss, (None, 0))(
              p, jax.tree.map(lambda x: np.stack([x, x]), ids)
          ),
          "no batching rule",
      ),
      (
          "second_derivative",
          lambda loss, p, ids: jax.hessian(loss)(p, ids),
          "no batching rule|custom_vjp",
      ),
      (
          "forward_mode",
          lambda loss, p, ids: jax.jvp(lambda p: loss(p, ids), (p,), (p,)),
          "custom_vjp",
      ),
  )
  def test_what_makes_no_sense_is_refused(self, transform, message):
    model, params, tables = two_feature_model.with_refs()
    with self.assertRaisesRegex((NotImplementedError, TypeError), message):
      transform(
          lambda p, ids: two_feature_model.loss(model, p, ids, tables),
          params,
          IDS,
      )


if __name__ == "__main__":
  absltest.main()
