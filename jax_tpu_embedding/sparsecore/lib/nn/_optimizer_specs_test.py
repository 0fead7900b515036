# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np
import optax

SGD = embedding_spec.SGDOptimizerSpec
Adagrad = embedding_spec.AdagradOptimizerSpec
Adam = embedding_spec.AdamOptimizerSpec


class Scheduler:
  """Learning rates that are not plain functions."""

  def __call__(self, step):
    return 3.0 * step

  def method(self, step):
    return 3.0 * step


class Momentum(embedding_spec.OptimizerSpec):
  """An optimizer of a user, which is no dataclass."""

  def __init__(self, learning_rate, momentum):
    super().__init__(learning_rate)
    self.momentum = momentum

  def short_name(self):
    return "momentum"

  def get_optimizer_primitive(self):
    raise NotImplementedError


class LearningRateTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("number", 6.0),
      ("array", jnp.float32(6.0)),
      ("numpy", np.float64(6.0)),
      ("no_parameter", lambda: 6.0),
      ("only_keywords", lambda *, scale=6.0: scale),
      ("only_varargs", lambda *args: 6.0),
      ("one_parameter", lambda step: 3.0 * step),
      ("one_default", lambda step=0: 3.0 * step),
      ("callable_object", Scheduler()),
      ("bound_method", Scheduler().method),
      ("partial", functools.partial(lambda step, scale: step * scale, scale=3)),
      ("jitted", jax.jit(lambda step: 3.0 * step)),
      ("optax", optax.linear_schedule(0.0, 30.0, 10)),
  )
  def test_resolves_to_a_float32_scalar(self, rate):
    result = SGD(rate).get_learning_rate(2)
    self.assertEqual(result, 6.0)
    self.assertEqual((result.dtype, result.shape), (jnp.float32, ()))

  def test_step_can_be_traced(self):
    spec = SGD(optax.linear_schedule(1.0, 0.0, 10))
    np.testing.assert_allclose(jax.jit(spec.get_learning_rate)(4), 0.6)

  def test_schedule_needs_a_step(self):
    with self.assertRaisesRegex(ValueError, "no step was given"):
      SGD(lambda step: step).get_learning_rate()

  @parameterized.parameters(
      (lambda step, scale: step * scale,), (lambda step, scale=2.0: scale,)
  )
  def test_schedule_of_two_parameters_is_refused(self, rate):
    with self.assertRaisesRegex(ValueError, "at most one .* step, scale"):
      SGD(rate).get_learning_rate(1)


class EqualityTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("defaults", Adam(), Adam()),
      ("numpy_number", SGD(0.1), SGD(np.float32(0.1))),
      ("array", SGD(0.1), SGD(jnp.float32(0.1))),
      ("int", SGD(1), SGD(1.0)),
      ("same_function", SGD(len), SGD(len)),
      ("users", Momentum(0.1, 0.9), Momentum(0.1, 0.9)),
  )
  def test_equal_and_equal_hash(self, a, b):
    self.assertEqual(a, b)
    self.assertEqual(hash(a), hash(b))

  @parameterized.named_parameters(
      ("value", SGD(0.1), SGD(0.2)),
      ("class", SGD(0.1), Adagrad(0.1)),
      ("function", SGD(lambda: 0.1), SGD(lambda: 0.1)),
      ("hyperparameter", Adam(beta_1=0.9), Adam(beta_1=0.8)),
      ("users", Momentum(0.1, 0.9), Momentum(0.1, 0.8)),
      ("shape", SGD(jnp.ones(())), SGD(jnp.ones((1,)))),
      ("other", SGD(0.1), 0.1),
  )
  def test_not_equal(self, a, b):
    self.assertNotEqual(a, b)

  def test_is_frozen(self):
    with self.assertRaises(dataclasses.FrozenInstanceError):
      SGD().learning_rate = 0.1
    self.assertEqual(dataclasses.replace(SGD(0.1), learning_rate=0.2), SGD(0.2))


class OptimizerSpecTest(parameterized.TestCase):

  def test_base_is_abstract(self):
    with self.assertRaisesRegex(TypeError, "abstract"):
      embedding_spec.OptimizerSpec(0.1)

  @parameterized.parameters(
      (SGD, "sgd", embedding_spec.SGDSlotVariables, ()),
      (Adagrad, "adagrad", embedding_spec.AdagradSlotVariables, (0.1,)),
      (Adam, "adam", embedding_spec.AdamSlotVariables, (0.0, 0.0)),
  )
  def test_names_and_slots(self, optimizer, name, slots, values):
    spec = optimizer()
    self.assertEqual(spec.short_name(), name)
    self.assertEqual(spec.slot_variables_count(), len(values))
    initializers = spec.slot_variables_initializers()
    self.assertIsInstance(initializers, slots)
    for initialize, value in zip(initializers, values, strict=True):
      np.testing.assert_array_equal(
          initialize(jax.random.key(0), (2, 3)),
          np.full((2, 3), value, np.float32),
      )

  @parameterized.parameters(SGD, Adagrad, Adam)
  def test_hyperparameters_are_float32_scalars(self, optimizer):
    for value in optimizer().get_hyperparameters(np.float64(3)):
      self.assertEqual((value.dtype, value.shape), (jnp.float32, ()))

  def test_adagrad_starts_where_it_is_told(self):
    spec = Adagrad(initial_accumulator_value=0.5)
    (accumulator,) = spec.slot_variables_initializers()
    self.assertEqual(accumulator(jax.random.key(0), ()), 0.5)

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

  def test_adam_uses_the_schedule(self):
    rate = Adam(lambda step: 1.0 + step).get_hyperparameters(0)[0]
    np.testing.assert_allclose(rate, 0.31622566, rtol=1e-6)

  def test_params_round_trip(self):
    spec = Adam(0.5, beta_1=0.25, beta_2=0.75)
    floats = spec.get_float_params()
    self.assertEqual(floats, {"beta_1": 0.25, "beta_2": 0.75, "epsilon": 1e-8})
    self.assertEqual(spec.get_bool_params(), {})
    self.assertEqual(Adam.from_float_and_bool_params(floats, {}, 0.5), spec)

  def test_params_unknown_are_ignored_and_missing_keep_defaults(self):
    self.assertEqual(
        Adagrad.from_float_and_bool_params({"beta_1": 3.0}, {}, 0.5),
        Adagrad(0.5),
    )


class CallablePlaceholderTest(absltest.TestCase):

  def test_is_equal_by_tag_and_cannot_be_called(self):
    placeholder = embedding_spec.CallablePlaceholder("x")
    self.assertEqual(placeholder, embedding_spec.CallablePlaceholder("x"))
    self.assertNotEqual(placeholder, embedding_spec.CallablePlaceholder("y"))
    self.assertEqual(hash(placeholder), hash("x"))
    self.assertEqual(repr(placeholder), "CallablePlaceholder('x')")
    with self.assertRaisesRegex(RuntimeError, "'x' was read from a proto"):
      placeholder(3)


if __name__ == "__main__":
  absltest.main()
