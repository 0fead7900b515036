# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import inspect

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.specs import _optimizers
from jax_tpu_embedding.sparsecore.lib.nn.testing import every_optimizer
import numpy as np

SGD = embedding_spec.SGDOptimizerSpec
Adagrad = embedding_spec.AdagradOptimizerSpec
Adam = embedding_spec.AdamOptimizerSpec
AdagradMomentum = embedding_spec.AdagradMomentumOptimizerSpec
FTRL = embedding_spec.FTRLOptimizerSpec
LaProp = embedding_spec.LaPropOptimizerSpec
F2A = embedding_spec.F2AOptimizerSpec
RowwiseAdagrad = embedding_spec.RowwiseAdagradOptimizerSpec
Momentum = embedding_spec.MomentumOptimizerSpec
Lion = embedding_spec.LionOptimizerSpec

_SPECS = every_optimizer.SPECS

# Of every spec, keyword-only.
_ROW_OPTIONS = dict.fromkeys(row_options.ROW_OPTIONS) | dict.fromkeys(
    row_options.FLAGS, False
)

# Constructor parameters and defaults, in order.
_DEFAULTS = {
    "sgd": dict(learning_rate=0.001),
    "adagrad": dict(learning_rate=0.001, initial_accumulator_value=0.1),
    "adam": dict(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8),
    "adagrad_momentum": dict(
        learning_rate=0.001,
        momentum=0.9,
        beta2=1.0,
        epsilon=1e-10,
        exponent=2.0,
        use_nesterov=False,
        initial_accumulator_value=0.1,
        initial_momentum_value=0.0,
    ),
    "ftrl": dict(
        learning_rate=0.01,
        learning_rate_power=-0.5,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        beta=0.0,
        initial_accumulator_value=0.1,
        initial_linear_value=0.0,
        multiply_linear_by_learning_rate=False,
    ),
    "laprop": dict(
        learning_rate=0.001,
        b1=0.9,
        b2=0.95,
        eps=1e-30,
        rms_clip_threshold=None,
        initial_slot_value=0.0,
    ),
    "f2a": dict(
        learning_rate=0.01,
        rho=0.5,
        initial_accumulator_value=0.1,
        initial_local_step_value=0.0,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        max_lr_multiplier=1e6,
    ),
    "rowwise_adagrad": dict(
        learning_rate=0.001, initial_accumulator_value=0.1, epsilon=1e-8
    ),
    "momentum": dict(learning_rate=0.001, momentum=0.9, use_nesterov=False),
    "lion": dict(learning_rate=0.0001, beta_1=0.9, beta_2=0.99),
}


class SpecsOfRulesTest(parameterized.TestCase):

  def test_every_rule_has_a_spec(self):
    self.assertSameElements(
        update_rules.UPDATE_RULES, _SPECS, "_SPECS is not all of UPDATE_RULES"
    )
    self.assertSameElements(_SPECS, _DEFAULTS, "_DEFAULTS is not all of _SPECS")

  @parameterized.parameters(*_SPECS)
  def test_constructor(self, name):
    parameters = inspect.signature(_SPECS[name]).parameters
    self.assertEqual(
        [(p.name, p.default) for p in parameters.values()],
        list((_DEFAULTS[name] | _ROW_OPTIONS).items()),
    )
    for option in _ROW_OPTIONS:
      self.assertIs(parameters[option].kind, inspect.Parameter.KEYWORD_ONLY)

  @parameterized.parameters(*_SPECS)
  def test_fits_its_rule(self, name):
    spec, rule = _SPECS[name](), update_rules.UPDATE_RULES[name]
    self.assertEqual(spec.short_name(), name)
    self.assertEqual(spec.get_optimizer_primitive().name, rule.primitive_name)
    self.assertEqual(spec.slot_variables_initializers()._fields, rule.slots)
    self.assertEqual(spec.slot_variables_count(), len(rule.slots))
    self.assertEqual(
        spec.slot_variables_of_rows(),
        tuple(slot in rule.row_slots for slot in rule.slots),
    )
    of_table = ["embedding_dim"] if spec.depends_on_embedding_dim else []
    self.assertSameElements(
        [*spec.get_static_params(), *of_table], rule.static_params
    )
    hyperparameters = spec.get_hyperparameters(np.float64(3))
    for value, hyperparameter in zip(
        hyperparameters, rule.hyperparameters, strict=True
    ):
      is_bool = hyperparameter in rule.bool_hyperparameters
      self.assertEqual(value.dtype, bool if is_bool else jnp.float32)
      self.assertEqual(value.shape, ())

  @parameterized.parameters(*_SPECS)
  def test_every_parameter_takes_part_in_equality(self, name):
    for field in dataclasses.fields(_SPECS[name]):
      default = (_DEFAULTS[name] | _ROW_OPTIONS)[field.name]
      if isinstance(default, bool):
        changed = not default
      else:
        changed = (default or 0) / 2 + 0.1
      self.assertNotEqual(_SPECS[name](**{field.name: changed}), _SPECS[name]())

  @parameterized.parameters(*_SPECS)
  def test_params_name_every_parameter(self, name):
    spec = _SPECS[name]()
    params = spec.get_float_params() | spec.get_bool_params()
    expected = dict(_DEFAULTS[name])
    del expected["learning_rate"]
    expected.pop("rms_clip_threshold", None)
    self.assertEqual(params, expected)

  @parameterized.parameters(*_SPECS)
  def test_repr_shows_every_parameter(self, name):
    text = repr(_SPECS[name](0.25))
    self.assertStartsWith(text, f"{_SPECS[name].__name__}(learning_rate=0.25")
    for field in dataclasses.fields(_SPECS[name]):
      shown = field.name not in _ROW_OPTIONS  # They are None.
      self.assertEqual(f"{field.name}=" in text, shown, field.name)

  @parameterized.parameters(*_SPECS)
  def test_repr_makes_an_equal_spec(self, name):
    spec = _SPECS[name](0.25, l2_weight_decay=0.5)
    self.assertEndsWith(repr(spec), ", l2_weight_decay=0.5)")
    self.assertEqual(eval(repr(spec), vars(embedding_spec)), spec)

  @parameterized.parameters(*_SPECS)
  def test_hyperparameters_follow_a_schedule(self, name):
    spec = _SPECS[name](lambda step: 1.0 + step)
    rates = [spec.get_hyperparameters(step)[0] for step in (0, 1)]
    self.assertNotEqual(*rates)
    with self.assertRaisesRegex(ValueError, "no step was given"):
      spec.get_hyperparameters()

  @parameterized.parameters(*_SPECS)
  def test_hyperparameters_can_be_traced(self, name):
    spec = _SPECS[name]()
    expected = spec.get_hyperparameters(3)
    for value, wanted in zip(
        jax.jit(spec.get_hyperparameters)(3), expected, strict=True
    ):
      np.testing.assert_allclose(value, wanted, rtol=1e-6)

  # One row: w = 1, g = 0.5, fresh slots. Expected: w, then slots.
  @parameterized.parameters(
      (SGD(), 0, [0.9995]),
      (SGD(), 3, [0.9995]),
      (Adagrad(), 0, [0.99915487, 0.35]),
      (Adagrad(), 3, [0.99915487, 0.35]),
      (Adam(), 0, [0.999, 0.050000012, 0.00024999678]),
      (Adam(), 3, [0.99941885, 0.050000012, 0.00024999678]),
      (AdagradMomentum(), 0, [0.99915487, 0.35, 0.8451543]),
      (AdagradMomentum(), 3, [0.99915487, 0.35, 0.8451543]),
      (AdagradMomentum(use_nesterov=True), 0, [0.9983942, 0.35, 0.8451543]),
      (FTRL(), 0, [0.45702597, 0.35, -27.038023]),
      (FTRL(), 3, [0.45702597, 0.35, -27.038023]),
      (
          FTRL(multiply_linear_by_learning_rate=True),
          0,
          [0.457026, 0.35, -0.27038023],
      ),
      (LaProp(), 0, [0.9995641, 0.43588996, 0.25]),
      (LaProp(), 3, [0.9991604, 0.83956945, 0.067387685]),
      (F2A(), 0, [0.9915485, 0.35, 1.0]),
      (F2A(), 3, [0.9853615, 0.35, 1.0]),
      (RowwiseAdagrad(), 3, [0.99915487, 0.35]),
      (Momentum(), 3, [0.9995, 0.5]),
      (Momentum(use_nesterov=True), 3, [0.99905, 0.5]),
      (Lion(), 3, [0.9999, 0.005]),
  )
  def test_worked_row(self, spec, step, expected):
    row, slots = update_rules.UPDATE_RULES[spec.short_name()].step(
        jnp.full((1, 1), 0.5),
        jnp.ones((1, 1)),
        tuple(
            init(jax.random.key(0), (1, 1))
            for init in spec.slot_variables_initializers()
        ),
        spec.get_hyperparameters(step),
        **spec.get_static_params(),
        **dict(embedding_dim=1) if spec.depends_on_embedding_dim else {},
    )
    np.testing.assert_allclose(np.ravel([row, *slots]), expected, rtol=1e-6)

  @parameterized.parameters(list(_SPECS))
  def test_rows_that_a_step_without_gradient_keeps(self, name):
    spec, rule = (
        _SPECS[name](learning_rate=0.1),
        update_rules.UPDATE_RULES[name],
    )
    # After some steps.
    of_row = lambda seed, columns: np.float32(
        np.random.default_rng(seed).uniform(0.1, 1, (5, columns))
    )
    row = of_row(0, 3)
    slots = tuple(
        of_row(1 + i, 1 if slot in rule.row_slots else 3)
        for i, slot in enumerate(rule.slots)
    )
    after = rule.step(
        np.zeros_like(row),
        row,
        slots,
        spec.get_hyperparameters(7),
        **spec.get_static_params(),
        **dict(embedding_dim=3) if spec.depends_on_embedding_dim else {},
    )
    is_kept = all(map(np.array_equal, jax.tree.leaves(after), (row, *slots)))
    self.assertEqual(
        spec.keeps_rows_without_gradient,
        is_kept,
        f"Set _keeps_rows_without_gradient = {is_kept} in the spec.",
    )
    for option in ("l2_weight_decay", "decoupled_weight_decay"):
      decaying = dataclasses.replace(spec, **{option: 0.1})
      self.assertFalse(decaying.keeps_rows_without_gradient)

  @parameterized.parameters(
      (Adagrad(initial_accumulator_value=0.5), [0.5]),
      (Adam(), [0.0, 0.0]),
      (
          AdagradMomentum(
              initial_accumulator_value=0.5, initial_momentum_value=0.25
          ),
          [0.5, 0.25],
      ),
      (
          FTRL(initial_accumulator_value=0.5, initial_linear_value=0.25),
          [0.5, 0.25],
      ),
      (LaProp(initial_slot_value=0.5), [0.5, 0.5]),
      (
          F2A(initial_accumulator_value=0.5, initial_local_step_value=2),
          [0.5, 2.0],
      ),
      (RowwiseAdagrad(initial_accumulator_value=0.5), [0.5]),
      (Momentum(), [0.0]),
      (Lion(), [0.0]),
  )
  def test_slots_start_where_they_are_told(self, spec, expected):
    for initialize, value in zip(
        spec.slot_variables_initializers(), expected, strict=True
    ):
      slot = initialize(jax.random.key(0), (2, 3))
      np.testing.assert_array_equal(slot, np.full((2, 3), value, np.float32))
      self.assertEqual(slot.dtype, jnp.float32)


class HyperparametersTest(parameterized.TestCase):

  @parameterized.parameters(
      (None, 0.00031622566, 3.1622574e-10),
      (0, 0.00031622566, 3.1622574e-10),
      (1, 0.00023531438, 4.470974e-10),
      (9, 0.00015318759, 9.977439e-10),
  )
  def test_adam_corrects_bias(self, step, alpha_t, epsilon_hat):
    got = Adam().get_hyperparameters(step)
    np.testing.assert_allclose(
        got, (alpha_t, 0.9, 0.999, epsilon_hat), rtol=1e-7
    )

  def test_powers_of_steps_that_are_known_have_the_bits_of_jax(self):
    for base in (0.9, 0.999, 0.0):
      for step in (*range(1, 40), 1000, 2**20 + 3):
        expected = jax.lax.integer_pow(np.float32(base), step)
        got = _optimizers._power(jnp.float32(base), jnp.asarray(step))
        self.assertEqual(got, expected, (base, step))

  @parameterized.parameters(Adam, LaProp)
  def test_no_program_is_compiled_for_a_step(self, spec_type):
    spec, events = spec_type(), []
    spec.get_hyperparameters(1)

    def listen(event, *_, **__):
      events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    self.addCleanup(jax.monitoring.unregister_event_duration_listener, listen)
    for step in range(2, 6):
      spec.get_hyperparameters(step)
    compiled = "/jax/core/compile/backend_compile_duration"
    self.assertNotIn(compiled, events)
    # This is what JAX calls it.
    jax.jit(lambda x: x + 1)(1.0)
    self.assertIn(compiled, events)

  @parameterized.parameters("AdamOptimizerSpec", "LaPropOptimizerSpec")
  def test_strict_promotion_gives_the_same_bits(self, name):
    spec = getattr(embedding_spec, name)(learning_rate=0.1)
    for step in (0, 6, np.int32(99)):
      for get in (spec.get_hyperparameters, jax.jit(spec.get_hyperparameters)):
        expected = get(step)
        with jax.numpy_dtype_promotion("strict"):
          self.assertEqual(get(step), expected)

  def test_adagrad_momentum(self):
    spec = AdagradMomentum(0.5, 0.25, 0.75, 1e-3, 3.0, True)
    np.testing.assert_allclose(
        spec.get_hyperparameters(), (0.5, 0.25, 0.75, 1e-3, 3.0, 1.0)
    )

  def test_ftrl(self):
    spec = FTRL(0.5, -0.75, 0.1, 0.2, 0.3)
    np.testing.assert_allclose(
        spec.get_hyperparameters(), (0.5, -0.75, 0.1, 0.2, 0.3)
    )

  @parameterized.parameters(
      (None, 0.95),
      (0, 0.0),
      (1, 0.48717946),
      (2, 0.64943033),
      (9, 0.87539351),
      (100, 0.94971716),
  )
  def test_laprop_keeps_more_of_nu_with_every_step(self, step, decay_rate):
    spec = LaProp()
    np.testing.assert_allclose(spec.get_decay_rate(step), decay_rate, rtol=2e-7)
    np.testing.assert_allclose(
        spec.get_hyperparameters(step),
        (0.001, 0.9, decay_rate, 1e-30),
        rtol=2e-7,
    )

  def test_laprop_does_not_clip(self):
    with self.assertRaisesRegex(ValueError, "rms_clip_threshold is not suppor"):
      LaProp(rms_clip_threshold=1.0)
    self.assertNotIn("rms_clip_threshold", vars(LaProp()))

  def test_rowwise_adagrad(self):
    spec = RowwiseAdagrad(0.5, 0.25, 0.125)
    np.testing.assert_allclose(spec.get_hyperparameters(), (0.5, 0.125))

  def test_momentum(self):
    spec = Momentum(0.5, 0.25, True)
    np.testing.assert_allclose(spec.get_hyperparameters(), (0.5, 0.25, 1.0))

  def test_lion(self):
    spec = Lion(0.5, 0.25, 0.75)
    np.testing.assert_allclose(spec.get_hyperparameters(), (0.5, 0.25, 0.75))

  @parameterized.parameters((None, 0.0), (0, 0.0), (7, 7.0))
  def test_f2a_is_told_the_step(self, step, expected):
    spec = F2A(0.5, 0.25, l1_regularization_strength=0.1, max_lr_multiplier=9)
    np.testing.assert_allclose(
        spec.get_hyperparameters(step), (0.5, 0.25, 0.1, 0, 9, expected)
    )


class RangesTest(parameterized.TestCase):

  @parameterized.parameters(
      (Adagrad, "initial_accumulator_value", -1.0, "at least 0, got -1.0"),
      (Adam, "beta_1", 1.0, r"in \[0, 1\), got 1.0"),
      (Adam, "beta_2", -0.1, r"in \[0, 1\), got -0.1"),
      (Adam, "epsilon", np.float32(-1), "at least 0, got -1.0"),
      (AdagradMomentum, "exponent", 0, "other than 0, got 0"),
      (AdagradMomentum, "epsilon", -1.0, "at least 0"),
      (AdagradMomentum, "initial_accumulator_value", -1.0, "at least 0"),
      (FTRL, "l1_regularization_strength", -1.0, "at least 0"),
      (FTRL, "l2_regularization_strength", -1.0, "at least 0"),
      (FTRL, "initial_accumulator_value", -1.0, "at least 0"),
      (LaProp, "b1", 1.5, r"in \[0, 1\], got 1.5"),
      (LaProp, "b2", 1.0, r"in \[0, 1\), got 1.0"),
      (LaProp, "eps", -1.0, "at least 0"),
      (F2A, "initial_local_step_value", -1.0, "at least 0"),
      (F2A, "initial_accumulator_value", -1.0, "at least 0"),
      (F2A, "l1_regularization_strength", -1.0, "at least 0"),
      (F2A, "l2_regularization_strength", -1.0, "at least 0"),
      (F2A, "rho", float("nan"), "a number, got nan"),
      (RowwiseAdagrad, "initial_accumulator_value", -1.0, "at least 0"),
      (RowwiseAdagrad, "epsilon", -1.0, "at least 0"),
      (Lion, "beta_1", 1.5, r"in \[0, 1\], got 1.5"),
      (Lion, "beta_2", -0.1, r"in \[0, 1\], got -0.1"),
  )
  def test_values_that_can_only_give_nonsense_raise(
      self, optimizer, name, value, message
  ):
    with self.assertRaisesRegex(
        ValueError, f"{optimizer.__name__}: {name} must be {message}"
    ):
      optimizer(**{name: value})

  @parameterized.parameters(
      ("0.9", TypeError, "beta_1 must be a number, got '0.9'"),
      (np.ones(2), ValueError, "beta_1 must be one number"),
  )
  def test_parameters_are_numbers(self, value, error, message):
    with self.assertRaisesRegex(error, message):
      Adam(beta_1=value)

  @parameterized.parameters(
      (SGD, dict(learning_rate=-0.1)),
      (Adam, dict(beta_1=0, beta_2=0, epsilon=0)),
      (Adam, dict(beta_1=jnp.float32(0.5))),
      (AdagradMomentum, dict(momentum=2, beta2=3, exponent=5)),
      (FTRL, dict(learning_rate_power=2)),
      (LaProp, dict(b1=1, b2=0, eps=0)),
      (F2A, dict(max_lr_multiplier=float("inf"))),
  )
  def test_unusual_values_are_fine(self, optimizer, params):
    self.assertEqual(optimizer(**params), optimizer(**params))


if __name__ == "__main__":
  absltest.main()
