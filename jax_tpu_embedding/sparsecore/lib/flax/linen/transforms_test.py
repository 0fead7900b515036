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
import optax

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


# The optimizer is SGD, so updates add up as long as rows do not move the loss:
# here gradients of rows do not depend on them.
def linear_loss(params, tables, ids=IDS):
  layer = embed.SparseCoreEmbed(two_feature_model.make_features(), tables="ref")
  out = layer.apply({"params": params, "embedding": tables}, ids)
  return out["words"].sum() - 2 * out["tags"].sum()


def linear_change(step):
  """What step(loss, params) changes in the tables, and what it returns."""
  specs = two_feature_model.make_features()
  layer = embed.SparseCoreEmbed(specs, tables="ref")
  tables = embed.SparseCoreEmbed.create_embedding_variables(
      specs, jax.random.key(0)
  )
  params = layer.init(jax.random.key(1), IDS)["params"]
  before = two_feature_model.values(tables)
  result = jax.jit(
      lambda params, tables: step(lambda p: linear_loss(p, tables), params)
  )(params, tables)
  return changes(two_feature_model.values(tables), before), result


class SideEffectsTest(parameterized.TestCase):
  """The table in docs/design/layers.md, "Refs"."""

  @parameterized.named_parameters(
      (
          "pullback_called_twice",
          lambda loss, params: [
              pullback(1.0)
              for pullback in [jax.vjp(loss, params)[1]]
              for _ in range(2)
          ],
          2,
      ),
      (
          "two_gradients_in_a_step",
          lambda loss, params: [jax.grad(loss)(params) for _ in range(2)],
          2,
      ),
      (
          "scaled_loss",
          lambda loss, params: jax.grad(lambda p: 8 * loss(p))(params),
          8,
      ),
      ("value_only", lambda loss, params: loss(params), 0),
  )
  def test_every_backward_pass_is_an_update(self, step, num_updates):
    once, _ = linear_change(lambda loss, params: jax.grad(loss)(params))
    self.assertTrue(np.any(once["words"].table))
    change, _ = linear_change(step)
    assert_close(change, jax.tree.map(lambda x: num_updates * x, once))

  @parameterized.parameters(False, True)
  def test_gradients_have_the_types_of_parameters(self, enable_x64):
    with jax.enable_x64(enable_x64):
      model, params, tables = two_feature_model.with_refs()

      def loss(params):
        # Every parameter, the anchor too, has another gradient to be added.
        norm = sum(jnp.sum(x**2) for x in jax.tree.leaves(params))
        return two_feature_model.loss(model, params, IDS, tables) + norm

      gradients = jax.jit(jax.grad(loss))(params)
    self.assertEqual(
        *(
            {
                jax.tree_util.keystr(path): x.dtype
                for path, x in jax.tree.leaves_with_path(tree)
            }
            for tree in (gradients, params)
        )
    )

  def test_forward_mode_over_the_gradient_updates_once(self):
    def step(loss, params):
      ones = jax.tree.map(jnp.ones_like, params)
      return jax.jvp(jax.grad(loss), (params,), (ones,))

    change, (_, tangent) = linear_change(step)
    once, _ = linear_change(lambda loss, params: jax.grad(loss)(params))
    self.assertTrue(np.any(once["words"].table))
    assert_close(change, once)
    self.assertFalse(any(map(np.any, jax.tree.leaves(tangent))))

  def test_forward_mode_that_reaches_gradients_of_rows_is_refused(self):
    for with_tables in (
        two_feature_model.with_refs,
        two_feature_model.with_parameters,
    ):
      model, params, *tables = with_tables()

      def gradient(dense):
        loss = lambda p: two_feature_model.loss(model, p, IDS, *tables)
        return jax.grad(loss)(params | {"Dense_0": dense})["Dense_0"]

      dense = params["Dense_0"]
      with self.assertRaisesRegex(NotImplementedError, "the backward pass"):
        jax.jvp(gradient, (dense,), (dense,))

  def test_apply_if_finite_keeps_dense_parameters_only(self):
    model, params, tables = two_feature_model.with_refs()
    before = two_feature_model.values(tables)
    optimizer = optax.apply_if_finite(optax.sgd(0.1), 10)

    def loss(params):
      # The gradient of the length of a vector of zeros is NaN.
      penalty = jnp.linalg.norm(params["Dense_0"]["bias"])
      return two_feature_model.loss(model, params, IDS, tables) + penalty

    @jax.jit
    def step(params):
      gradients = jax.grad(loss)(params)
      updates, _ = optimizer.update(gradients, optimizer.init(params), params)
      return optax.apply_updates(params, updates), gradients

    new, gradients = step(params)
    self.assertTrue(np.isnan(gradients["Dense_0"]["bias"]).all())
    jax.tree.map(np.testing.assert_array_equal, new, params)
    after = two_feature_model.values(tables)
    self.assertTrue(np.any(after["words"].table != before["words"].table))


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
          "jacobian",
          lambda loss, p, ids: jax.jacrev(
              lambda p: jnp.stack([loss(p, ids), 2 * loss(p, ids)])
          )(p),
          "no batching rule",
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

  @parameterized.parameters(
      two_feature_model.with_refs, two_feature_model.with_parameters
  )
  def test_preprocessed_lookups_are_mapped_and_their_updates_refused(
      self, make
  ):
    model, params, *tables = make()
    layer = embed.SparseCoreEmbed(model.feature_specs)
    batches = [layer.preprocess_inputs(0, x, None) for x in (IDS, OTHER_IDS)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)
    loss = lambda p, inputs: two_feature_model.loss(model, p, inputs, *tables)
    assert_close(
        jax.vmap(loss, (None, 0))(params, stacked),
        np.stack([loss(params, inputs) for inputs in batches]),
    )
    with self.assertRaisesRegex(
        NotImplementedError, "update_of_stacks has no batching rule"
    ):
      jax.vmap(jax.grad(loss), (None, 0))(params, stacked)

  def test_lookups_of_frozen_tables_are_mapped_with_their_gradients(self):
    model, params, tables = two_feature_model.with_refs()
    layer = embed.SparseCoreEmbed(model.feature_specs)
    tables = jax.tree.map(lambda ref: ref[...], tables)
    batches = [layer.preprocess_inputs(0, x, None) for x in (IDS, OTHER_IDS)]
    gradient = jax.grad(
        lambda p, inputs: two_feature_model.loss(model, p, inputs, tables)
    )
    stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)
    assert_close(
        jax.vmap(gradient, (None, 0))(params, stack(batches)),
        stack([gradient(params, inputs) for inputs in batches]),
    )

  def test_second_derivatives_by_tables_in_parameters_are_refused(self):
    model, params = two_feature_model.with_parameters()
    gradient = jax.grad(lambda p: two_feature_model.loss(model, p, IDS))
    with self.assertRaisesRegex(
        NotImplementedError, "tables are parameters, .* tables='ref'"
    ):
      jax.grad(lambda p: optax.global_norm(gradient(p)))(params)


if __name__ == "__main__":
  absltest.main()
