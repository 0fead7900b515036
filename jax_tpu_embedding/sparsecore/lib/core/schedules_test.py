# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import schedules
import numpy as np
import optax


class Scheduler:
  """Learning rates that are not plain functions."""

  def __call__(self, step):
    return 3.0 * step

  def method(self, step):
    return 3.0 * step


def _scaled(step, scale):
  return step * scale


class LearningRateTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("number", 6.0),
      ("array", jnp.float32(6.0)),
      ("bfloat16", jnp.bfloat16(6.0)),
      ("array_of_one", np.array([6.0])),
      ("numpy", np.float64(6.0)),
      ("no_parameter", lambda: 6.0),
      ("only_keywords", lambda *, scale=6.0: scale),
      ("only_varargs", lambda *args: 6.0),
      ("one_parameter", lambda step: 3.0 * step),
      ("one_default", lambda step=0: 3.0 * step),
      ("and_keywords", lambda step, *, scale=3.0: scale * step),
      ("returns_array_of_one", lambda step: jnp.full((1,), 3.0 * step)),
      ("callable_object", Scheduler()),
      ("bound_method", Scheduler().method),
      ("partial_keyword", functools.partial(_scaled, scale=3)),
      ("partial_positional", functools.partial(_scaled, 2, 3)),
      ("jitted", jax.jit(lambda step: 3.0 * step)),
      ("jitted_partial", jax.jit(functools.partial(_scaled, scale=3))),
      ("partial_of_jitted", functools.partial(jax.jit(_scaled), scale=3)),
      ("optax", optax.linear_schedule(0.0, 30.0, 10)),
      ("joined", optax.join_schedules([lambda step: 3.0 * step], [])),
  )
  def test_resolves_to_a_float32_scalar(self, rate):
    result = schedules.resolve(rate, 2)
    self.assertEqual(result, 6.0)
    self.assertEqual((result.dtype, result.shape), (jnp.float32, ()))

  def test_step_can_be_traced(self):
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    resolve = jax.jit(functools.partial(schedules.resolve, schedule))
    np.testing.assert_allclose(resolve(4), 0.6)

  def test_rate_can_be_traced(self):
    self.assertEqual(jax.jit(schedules.resolve)(0.5), 0.5)

  def test_schedule_needs_a_step(self):
    with self.assertRaisesRegex(ValueError, "no step was given"):
      schedules.resolve(lambda step: step)

  @parameterized.parameters(_scaled, lambda step, scale=2.0: scale)
  def test_schedule_of_two_parameters_is_refused(self, rate):
    with self.assertRaisesRegex(ValueError, "at most one .* step, scale"):
      schedules.resolve(rate, 1)

  def test_function_without_signature_is_refused(self):
    with self.assertRaisesRegex(ValueError, "has no signature.* lambda step"):
      schedules.resolve(min, 1)

  @parameterized.parameters(
      (lambda step: jnp.ones(3), ValueError, r"at step 7 .* of shape \(3,\)"),
      (lambda step: None, TypeError, "at step 7 must be a number, got None"),
  )
  def test_schedule_must_return_one_number(self, rate, error, message):
    with self.assertRaisesRegex(error, message):
      schedules.resolve(rate, 7)


class CallablePlaceholderTest(absltest.TestCase):

  def test_is_equal_by_tag_and_cannot_be_called(self):
    placeholder = schedules.CallablePlaceholder("x")
    self.assertEqual(placeholder, schedules.CallablePlaceholder("x"))
    self.assertNotEqual(placeholder, schedules.CallablePlaceholder("y"))
    self.assertNotEqual(placeholder, "x")
    self.assertEqual(hash(placeholder), hash("x"))
    self.assertEqual(repr(placeholder), "CallablePlaceholder('x')")
    with self.assertRaisesRegex(RuntimeError, "'x' was read from a proto"):
      placeholder(3)


if __name__ == "__main__":
  absltest.main()
