# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A plain step is the step, without loops, calls and constant operations."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import custom_step
import numpy as np

_FACTORS = np.float32([2, 3, 5])


def _scan(x, **options):
  def body(carry, factor):
    return carry * factor + x, (carry, factor * carry)

  total, outputs = lax.scan(body, x, _FACTORS, **options)
  return [total, *outputs]


def _nested_loops(x):
  def body(i, total):
    return lax.fori_loop(0, 2, lambda j, y: y * x + i - j, total)

  return [lax.fori_loop(1, 4, body, x)]


_NOT_PLAIN = {"scan", "while", "jit", "pjit", "custom_jvp_call", "remat2"} | {
    "checkpoint",
    "cumsum",
    "rev",
    "iota",
    "sort",
}
# Function, and what remains of these.
_CASES = {
    "loop": (lambda x: [lax.fori_loop(0, 3, lambda i, y: y * x, x)], set()),
    "nested_loops": (_nested_loops, set()),
    "scan": (_scan, set()),
    "reversed_scan": (
        lambda x: _scan(x, reverse=True),
        set(),
    ),
    "inner_functions": (
        lambda x: [
            jax.nn.relu(jax.jit(jnp.cos)(x)),
            jax.checkpoint(jnp.sin)(x),
        ],
        set(),
    ),
    "constant_operations": (
        lambda x: [x * jnp.flip(jnp.cumsum(jnp.linspace(0, 1, 4)))],
        set(),
    ),
    "constant_result": (lambda x: [x, jnp.sort(jnp.arange(4.0))], set()),
    "long_loop": (
        lambda x: [lax.fori_loop(0, 65, lambda i, y: y * x, x)],
        {"scan"},
    ),
    "loop_of_unknown_length": (
        lambda x: [lax.while_loop(lambda y: y.sum() > 1, lambda y: y / 2, x)],
        {"while"},
    ),
}


class TpuCustomStepTest(parameterized.TestCase):

  @parameterized.parameters(*_CASES)
  def test_plain_step_returns_what_the_step_does(self, name):
    function, _ = _CASES[name]
    x = jnp.float32([[0.5, -2.0, 3.0, 1.0]])
    actual = jax.jit(custom_step.plain_step(function))(x)
    expected = jax.jit(function)(x)
    for found, wanted in zip(actual, expected, strict=True):
      np.testing.assert_allclose(found, wanted, rtol=1e-6)

  @parameterized.parameters(*_CASES)
  def test_plain_step_has_plain_operations_only(self, name):
    function, remaining = _CASES[name]
    row = jax.ShapeDtypeStruct((1, 4), jnp.float32)
    program = jax.make_jaxpr(custom_step.plain_step(function))(row)
    found = {eqn.primitive.name for eqn in program.eqns}
    self.assertEqual(found & _NOT_PLAIN, remaining)

  def test_effect_is_left_to_the_program(self):
    def step(x):
      jax.debug.print("stepped")
      return [x + 1]

    program = jax.make_jaxpr(custom_step.plain_step(step))(jnp.ones(3))
    self.assertNotEmpty(program.effects)

  def test_bare_result_is_a_list_of_one(self):
    (result,) = custom_step.plain_step(lambda x: 2 * x)(jnp.ones(3))
    np.testing.assert_array_equal(result, [2, 2, 2])


if __name__ == "__main__":
  absltest.main()
