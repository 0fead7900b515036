# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import dataclasses
import pickle

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

SGD = embedding_spec.SGDOptimizerSpec
Adagrad = embedding_spec.AdagradOptimizerSpec
Adam = embedding_spec.AdamOptimizerSpec
AdagradMomentum = embedding_spec.AdagradMomentumOptimizerSpec
FTRL = embedding_spec.FTRLOptimizerSpec


class Momentum(embedding_spec.OptimizerSpec):
  """An optimizer of a user, which is no dataclass."""

  def __init__(self, learning_rate, momentum):
    super().__init__(learning_rate)
    self.momentum = momentum

  def short_name(self):
    return "momentum"

  def get_optimizer_primitive(self):
    raise NotImplementedError


class EqualityTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("defaults", Adam(), Adam()),
      ("numpy_number", SGD(0.1), SGD(np.float32(0.1))),
      ("array", SGD(0.1), SGD(jnp.float32(0.1))),
      ("array_of_one", SGD(0.1), SGD(jnp.full((1,), 0.1))),
      ("array_parameter", Adam(beta_1=0.5), Adam(beta_1=np.float16(0.5))),
      ("int", SGD(1), SGD(1.0)),
      ("same_function", SGD(len), SGD(len)),
      (
          "flag",
          AdagradMomentum(use_nesterov=6),
          AdagradMomentum(use_nesterov=True),
      ),
      ("users", Momentum(0.1, 0.9), Momentum(0.1, 0.9)),
      (
          "users_array",
          Momentum(0.1, np.ones(3)),
          Momentum(0.1, jnp.ones(3)),
      ),
  )
  def test_equal_and_equal_hash(self, a, b):
    self.assertEqual(a, b)
    self.assertEqual(hash(a), hash(b))

  @parameterized.named_parameters(
      ("value", SGD(0.1), SGD(0.2)),
      ("array", SGD(jnp.float32(0.1)), SGD(jnp.float32(0.2))),
      ("class", SGD(0.1), Adagrad(0.1)),
      (
          "class_of_many_parameters",
          AdagradMomentum(1, 2, 3, 4, 5, 6, 7, True),
          FTRL(1, 2, 3, 4, 5, 6, 7, True),
      ),
      ("function", SGD(lambda: 0.1), SGD(lambda: 0.1)),
      ("hyperparameter", Adam(beta_1=0.9), Adam(beta_1=0.8)),
      ("flag", FTRL(), FTRL(multiply_linear_by_learning_rate=True)),
      ("users", Momentum(0.1, 0.9), Momentum(0.1, 0.8)),
      (
          "users_shape",
          Momentum(0.1, np.ones(4)),
          Momentum(0.1, np.ones((2, 2))),
      ),
      ("other", SGD(0.1), 0.1),
  )
  def test_not_equal(self, a, b):
    self.assertNotEqual(a, b)

  def test_equal_hashes_are_not_enough(self):
    class SameHash(embedding_spec.SGDOptimizerSpec):

      def __hash__(self):
        return hash(SGD(0.1))

    self.assertNotEqual(SameHash(0.1), SGD(0.1))
    self.assertNotEqual(SameHash(0.1), SameHash(0.2))

  def test_traced_rates_are_told_apart_by_identity(self):
    def function(a, b):
      self.assertEqual(SGD(a), SGD(a))
      self.assertNotEqual(SGD(a), SGD(b))
      return a

    jax.make_jaxpr(function)(1.0, 1.0)

  def test_is_frozen(self):
    with self.assertRaises(dataclasses.FrozenInstanceError):
      SGD().learning_rate = 0.1
    self.assertEqual(dataclasses.replace(SGD(0.1), learning_rate=0.2), SGD(0.2))

  @parameterized.parameters(copy.copy, copy.deepcopy)
  def test_copies_are_equal(self, copied):
    spec = FTRL(jnp.float32(0.5), beta=0.25)
    self.assertEqual(copied(spec), spec)

  def test_can_be_pickled(self):
    spec = AdagradMomentum(0.5, use_nesterov=True)
    self.assertEqual(pickle.loads(pickle.dumps(spec)), spec)


class ParamsTest(parameterized.TestCase):

  def test_base_is_abstract(self):
    with self.assertRaisesRegex(TypeError, "abstract"):
      embedding_spec.OptimizerSpec(0.1)

  def test_users_class_has_no_parameters_of_its_own(self):
    spec = Momentum(0.1, 0.9)
    self.assertEqual(spec.get_hyperparameters(), (jnp.float32(0.1),))
    self.assertEqual(spec.slot_variables_initializers(), ())
    self.assertEqual(spec.get_static_params(), {})
    self.assertEqual(spec.get_float_params(), {})

  def test_params_round_trip(self):
    spec = Adam(0.5, beta_1=0.25, beta_2=0.75)
    floats = spec.get_float_params()
    self.assertEqual(floats, {"beta_1": 0.25, "beta_2": 0.75, "epsilon": 1e-8})
    self.assertEqual(spec.get_bool_params(), {})
    self.assertEqual(Adam.from_float_and_bool_params(floats, {}, 0.5), spec)

  def test_flags_round_trip(self):
    spec = FTRL(multiply_linear_by_learning_rate=1)
    flags = spec.get_bool_params()
    self.assertEqual(flags, {"multiply_linear_by_learning_rate": True})
    self.assertEqual(FTRL.from_float_and_bool_params({}, flags, 0.01), spec)

  def test_flags_of_all_are_no_parameters_of_a_primitive(self):
    spec = FTRL(skip_non_finite_gradients=True)
    flags = spec.get_bool_params()
    self.assertTrue(flags["skip_non_finite_gradients"])
    self.assertEqual(FTRL.from_float_and_bool_params({}, flags, 0.01), spec)
    self.assertEqual(
        spec.get_static_params(), {"multiply_linear_by_learning_rate": False}
    )

  def test_params_unknown_are_ignored_and_missing_keep_defaults(self):
    self.assertEqual(
        Adagrad.from_float_and_bool_params(
            {"beta_1": 3.0}, {"use_nesterov": True}, 0.5
        ),
        Adagrad(0.5),
    )

  @parameterized.parameters(
      (None, TypeError, "learning_rate must be a number, got None"),
      ("0.1", TypeError, "learning_rate must be a number, got '0.1'"),
      (np.ones(2), ValueError, r"one number, got an array of shape \(2,\)"),
      (float("nan"), ValueError, "learning_rate must be a number, got nan"),
  )
  def test_spec_refuses_what_is_no_rate(self, rate, error, message):
    with self.assertRaisesRegex(error, f"^SGDOptimizerSpec: .*{message}"):
      SGD(rate)

  def test_operands_are_ordered_as_those_of_an_update(self):
    self.assertEqual(
        SGD().order_operands(
            coo=(1, 2),
            table=3,
            slots=(4, 5),
            gradient=6,
            hyperparameters=(7, 8),
        ),
        (1, 2, 3, 4, 5, 6, 7, 8),
    )


if __name__ == "__main__":
  absltest.main()
