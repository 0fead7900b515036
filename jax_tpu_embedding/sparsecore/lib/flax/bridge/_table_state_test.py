# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.testing import every_form
from jax_tpu_embedding.sparsecore.lib.flax.testing import quick_compiles
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np
import optax

quick_compiles.use()

EVERY_FORM = [(name, form) for name, form in every_form.FORMS.items()]


class TwinOfOptax:
  """The same model with a dense table, and a given optimizer for that."""

  def __init__(self, table, transformation):
    self.params = {"table": table, "bias": jnp.zeros(every_form.DIM)}
    self.optimizer = optax.multi_transform(
        {"table": transformation, "bias": optax.sgd(every_form.RATE)},
        {"table": "table", "bias": "bias"},
    )
    self.state = self.optimizer.init(self.params)

  def step(self):
    gradients = jax.grad(lambda p: every_form.squares(p["table"] + p["bias"]))(
        self.params
    )
    updates, self.state = self.optimizer.update(gradients, self.state)
    self.params = optax.apply_updates(self.params, updates)


def _one_array(step, *first_slots):
  """An optax transformation from step(t, gradient, *slots) -> change, *slots."""

  def init(params):
    (array,) = jax.tree.leaves(params)
    return 0, [jnp.full_like(array, value) for value in first_slots]

  def update(gradients, state, params=None):
    del params
    (gradient,), structure = jax.tree.flatten(gradients)
    t, slots = state
    change, *slots = step(t, gradient, *slots)
    return jax.tree.unflatten(structure, [change]), (t + 1, slots)

  return optax.GradientTransformation(init, update)


def _laprop(rate, b1=0.9, b2=0.95):
  """LaProp of docs/reference/primitives.md, with the defaults of its spec."""

  def step(t, gradient, mu, nu):
    decay = b2 * (1 - b2**t) / (1 - b2 ** (t + 1))
    nu = decay * nu + (1 - decay) * gradient**2
    mu = b1 * mu + jnp.sqrt(1 - b1**2) * gradient / jnp.sqrt(nu)
    return -rate * mu, mu, nu

  return _one_array(step, 0.0, 0.0)


def _f2a(rate, rho=0.5):
  """F2A of the same page, of rows that are in every batch."""

  def step(t, gradient, accumulator):
    accumulator = accumulator + gradient**2
    rarity = (max(t, 1) / (t + 1)) ** rho
    return -rate * gradient * rarity / jnp.sqrt(accumulator), accumulator

  return _one_array(step, 0.1)


class UpdateCountTest(parameterized.TestCase):

  @parameterized.product(
      form=[*every_form.FORMS.values()],
      optimizers=(
          (embedding_spec.AdamOptimizerSpec, optax.adam),
          (embedding_spec.LaPropOptimizerSpec, _laprop),
          (embedding_spec.F2AOptimizerSpec, _f2a),
      ),
  )
  def test_without_a_step_the_count_is_the_step(self, form, optimizers):
    spec_class, transformation = optimizers
    trained = form(every_form.make_specs(spec_class(0.05)))
    twin = TwinOfOptax(trained.table, transformation(0.05))
    for _ in range(50):
      trained.step()
      twin.step()
    np.testing.assert_allclose(trained.table, twin.params["table"], atol=1e-4)

  @parameterized.named_parameters(EVERY_FORM)
  def test_a_schedule_gets_the_count_unless_there_is_a_step(self, form):
    # The rate is 1 in the third update, else 0.
    rate = lambda step: jnp.where(step == 2, 1.0, 0.0)
    specs = every_form.make_specs(embedding_spec.SGDOptimizerSpec(rate))
    trained = form(specs)
    has_moved = []
    for kwargs in ({}, {}, {"step": 7}, {}, {"step": 2}, {}):
      before = trained.table
      trained.step(**kwargs)
      has_moved.append(bool((trained.table != before).any()))
    self.assertEqual(has_moved, [False, False, False, False, True, False])
    trained = form(specs)
    for _ in range(2):
      trained.step()
    before = trained.table
    trained.step()
    self.assertTrue((trained.table != before).any())

  @parameterized.named_parameters(EVERY_FORM)
  def test_one_batch_moves_bfloat16_tables_by_the_true_mean(self, form):
    # A step from 1 is less than a quarter of the way to the next bfloat16 below:
    # less than a quarter of the values move. Without a count they would be the
    # same ones in each step.
    trained = form(
        every_form.make_specs(
            embedding_spec.SGDOptimizerSpec(1e-3),
            dtype="bfloat16",
            initializer=jax.nn.initializers.ones,
        )
    )
    twin = TwinOfOptax(np.ones_like(every_form.TARGET), optax.sgd(1e-3))
    for _ in range(100):
      trained.step()
      twin.step()
    moved = (1 - trained.table.astype(np.float32)).ravel()
    expected = (1 - np.asarray(twin.params["table"])).ravel()
    slope, _ = np.polyfit(expected, moved, 1)
    self.assertAlmostEqual(slope, 1, delta=0.15)
    self.assertGreater(np.corrcoef(expected, moved)[0, 1], 0.9)

  @parameterized.named_parameters(EVERY_FORM)
  def test_what_needs_a_count_says_so_where_there_is_none(self, form):
    make = embedding_spec
    for optimizer, dtype, reason in (
        (make.AdamOptimizerSpec(), "float32", "AdamOptimizerSpec depends"),
        (make.LaPropOptimizerSpec(), "float32", "LaPropOptimizerSpec depends"),
        (make.F2AOptimizerSpec(), "float32", "F2AOptimizerSpec depends"),
        (make.SGDOptimizerSpec(lambda t: t), "float32", "SGDOptim.* depends"),
        (make.SGDOptimizerSpec(), "float16", "are float16, which are rounded"),
    ):
      with self.subTest(optimizer=optimizer, dtype=dtype):
        trained = form(every_form.make_specs(optimizer, dtype=dtype))
        trained.forget_state()
        trained.look_up()
        with self.assertRaisesRegex(ValueError, f"'t': .*{reason}.*Pass step="):
          trained.step()

  @parameterized.named_parameters(EVERY_FORM)
  def test_nothing_is_checked_without_state(self, form):
    trained = form(every_form.make_specs(embedding_spec.SGDOptimizerSpec(0.5)))
    twin = TwinOfOptax(trained.table, optax.sgd(0.5))
    trained.forget_state()
    for _ in range(3):
      trained.step()
      twin.step()
    np.testing.assert_allclose(trained.table, twin.params["table"], atol=1e-5)


class GradientScaleTest(parameterized.TestCase):

  @parameterized.named_parameters(EVERY_FORM)
  def test_a_scaled_loss_moves_rows_as_one_that_is_not(self, form):
    specs = every_form.make_specs(embedding_spec.SGDOptimizerSpec(0.5))
    plain, scaled = form(specs), form(specs)
    start = plain.table
    plain.step()
    # As if the loss had been divided by 4: the scale divides gradients.
    scaled.step(gradient_scale=4.0)
    np.testing.assert_allclose(
        4 * (scaled.table - start), plain.table - start, atol=1e-5
    )


class LayoutTest(parameterized.TestCase):

  @parameterized.named_parameters(EVERY_FORM)
  def test_tables_of_other_sparsecores_are_refused(self, form):
    make = lambda n: form(
        every_form.make_specs(
            embedding_spec.SGDOptimizerSpec(), vocabulary_size=64
        ),
        num_sc_per_device=n,
    )
    # For one as for two SparseCores the table has 64 rows.
    trained, other = make(1), make(2)
    trained.step()
    self.assertEqual(trained.table.shape, other.table.shape)
    trained.take_tables(other)
    message = "in another order than this layer expects, for 1 SparseCores"
    with self.assertRaisesRegex(ValueError, message):
      trained.look_up()
    before = trained.table
    try:
      trained.step()
      # Those that mutate tables cannot fail, and do not touch them.
      np.testing.assert_array_equal(trained.table, before)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
      self.assertRegex(str(error), message)

  @parameterized.parameters(*every_form.FORMS)
  def test_strict_promotion_is_no_error(self, form):
    specs = every_form.make_specs(embedding_spec.AdamOptimizerSpec(0.1))
    training = every_form.FORMS[form](specs)
    with jax.numpy_dtype_promotion("strict"):
      training.step()
      training.look_up()

  def test_a_layer_may_have_some_tables_of_a_stack(self):
    def make_specs():
      optimizer = embedding_spec.SGDOptimizerSpec()
      first, second = (
          every_form.make_specs(optimizer, name=name)["f"] for name in "tu"
      )
      second = dataclasses.replace(second, name="g")
      table_stacking.stack_tables([first, second], ["u", "t"], 1, 1)
      return {"f": first, "g": second}

    specs = make_specs()
    tables = embed.SparseCoreEmbed.create_embedding_variables(
        specs, jax.random.key(0)
    )
    layer = embed.SparseCoreEmbed({"f": specs["f"]}, tables="ref")
    variables = layer.init(jax.random.key(1), every_form.IDS)
    layer.apply(variables | {"embedding": tables}, every_form.IDS)


if __name__ == "__main__":
  absltest.main()
