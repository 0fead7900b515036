# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.values import _compile_once
import numpy as np


def _lower(function):
  return jax.jit(function).lower(1.0)


def _adds_constant(value):
  constant = jnp.full(3, value)
  return lambda x: x + constant


def _calls_back(value):
  shape = jax.ShapeDtypeStruct((), np.float32)
  function = lambda x: np.float32(x + value)
  return lambda x: jax.pure_callback(function, shape, x)


class CompileAllTest(parameterized.TestCase):

  def test_equal_programs_of_different_functions_are_compiled_once(self):
    functions = [lambda x: x + 1, lambda x: x + 2, lambda x: x + 1]
    compiled = _compile_once.compile_all([_lower(f) for f in functions])
    self.assertEqual([float(program(1.0)) for program in compiled], [2, 3, 2])
    self.assertIs(compiled[0], compiled[2])

  @parameterized.parameters(_adds_constant, _calls_back)
  def test_equal_functions_of_different_values_are_told_apart(self, make):
    programs = [_lower(make(value)) for value in (1.0, 2.0)]
    for program, expected in zip(_compile_once.compile_all(programs), (2, 3)):
      values = program(1.0)
      np.testing.assert_array_equal(values, np.full_like(values, expected))

  def test_constants_outside_of_the_text_are_told_apart(self):
    # As JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1 makes them.
    programs = [
        mock.create_autospec(jax.stages.Lowered, instance=True)
        for _ in range(2)
    ]
    for i, program in enumerate(programs):
      program.as_text.return_value = "tensor<3000xf32> {jax.const = true}"
      program.compile.return_value = i
    self.assertEqual(_compile_once.compile_all(programs), [0, 1])

  def test_later_calls_for_the_same_devices_use_what_was_compiled(self):
    compile_for = lambda devices, function=lambda x: x + 7: (
        _compile_once.compile_all([_lower(function)], devices)[0]
    )
    first = compile_for("a")
    self.assertIs(compile_for("a", lambda y: y + 7), first)
    self.assertIsNot(compile_for("b"), first)
    self.assertIsNot(compile_for(None), first)
    self.assertEqual(float(compile_for("a", lambda x: x + 8)(1.0)), 9)

  @parameterized.parameters(_adds_constant, _calls_back)
  def test_later_calls_tell_different_values_apart(self, make):
    for value in (1.0, 2.0):
      (program,) = _compile_once.compile_all([_lower(make(value))], "a")
      result = program(1.0)
      np.testing.assert_array_equal(result, np.full_like(result, 1 + value))

  def test_programs_with_large_constants_are_not_kept(self):
    constant = np.random.default_rng(0).standard_normal(2**17, np.float32)
    compiled = [
        _compile_once.compile_all([_lower(lambda x: x + constant)], "a")[0]
        for _ in range(2)
    ]
    self.assertIsNot(compiled[0], compiled[1])

  @parameterized.parameters(1, 2)
  def test_as_many_are_compiled_at_the_same_time_as_there_are_cpus(self, cpus):
    together = threading.Barrier(cpus)
    running = threading.Semaphore(cpus)
    programs = [
        mock.create_autospec(jax.stages.Lowered, instance=True)
        for _ in range(2)
    ]

    def compile_(i):
      self.assertTrue(running.acquire(blocking=False))
      together.wait(timeout=60)
      time.sleep(0.05)  # for one that should not run
      running.release()
      return i

    for i, program in enumerate(programs):
      program.as_text.return_value = str(i)
      program.compile.side_effect = functools.partial(compile_, i)
    with mock.patch.object(hardware, "num_schedulable_cpus", return_value=cpus):
      self.assertEqual(_compile_once.compile_all(programs), [0, 1])

  def test_errors_of_the_compiler_are_raised(self):
    program = mock.create_autospec(jax.stages.Lowered, instance=True)
    program.as_text.return_value = ""
    program.compile.side_effect = ValueError("no memory")
    with self.assertRaisesRegex(ValueError, "no memory"):
      _compile_once.compile_all([program])


if __name__ == "__main__":
  absltest.main()
