# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import io

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import stablehlo_program
import numpy as np

# main(x, y) = (x + y, helper(x)), helper(x) = x * x.
_TEXT = """
module {
  func.func public @main(%x: tensor<1x2xf32>, %y: tensor<1x2xf32>)
      -> (tensor<1x2xf32>, tensor<1x2xf32>) {
    %sum = stablehlo.add %x, %y : tensor<1x2xf32>
    %square = func.call @helper(%x) : (tensor<1x2xf32>) -> tensor<1x2xf32>
    return %sum, %square : tensor<1x2xf32>, tensor<1x2xf32>
  }
  func.func private @helper(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
    %square = stablehlo.multiply %x, %x : tensor<1x2xf32>
    return %square : tensor<1x2xf32>
  }
}
"""
# main(x) = target(x).
_CUSTOM_CALL = """
module {
  func.func public @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {
    %y = stablehlo.custom_call @TARGET(%x)
        : (tensor<1x2xf32>) -> tensor<1x2xf32>
    return %y : tensor<1x2xf32>
  }
}
"""
_X = jnp.array([[1.0, 2.0]])
_Y = jnp.array([[3.0, 5.0]])


def _bytecode(text: str) -> bytes:
  with mlir.make_ir_context() as context:
    module = mlir.ir.Module.parse(text, context)
    file = io.BytesIO()
    module.operation.write_bytecode(file)
  return file.getvalue()


class StablehloProgramTest(parameterized.TestCase):

  @parameterized.parameters(_TEXT, _TEXT.encode(), _bytecode(_TEXT))
  def test_runs_main(self, module):
    program = stablehlo_program.StablehloProgram(module)
    for function in (program, jax.jit(program)):
      total, square = function(_X, _Y)
      np.testing.assert_array_equal(total, [[4, 7]])
      np.testing.assert_array_equal(square, [[1, 4]])

  def test_two_calls_in_one_program(self):
    program = stablehlo_program.StablehloProgram(_TEXT)

    @jax.jit
    def function(x, y):
      return program(*program(x, y))

    total, square = function(_X, _Y)
    np.testing.assert_array_equal(total, [[5, 11]])
    np.testing.assert_array_equal(square, [[16, 49]])

  def test_vmap_runs_it_for_each_element(self):
    program = stablehlo_program.StablehloProgram(_TEXT)
    xs = jnp.arange(6.0).reshape(3, 1, 2)
    total, square = jax.vmap(program, in_axes=(0, None))(xs, _Y)
    np.testing.assert_array_equal(total, xs + _Y)
    np.testing.assert_array_equal(square, xs * xs)

  def test_equal_text_is_compiled_once(self):
    self.assertEqual(
        stablehlo_program.StablehloProgram(_TEXT),
        stablehlo_program.StablehloProgram(str(_TEXT)),
    )

  @parameterized.parameters(
      ("not mlir", "Not a StableHLO module"),
      (b"\xff\xfe", "neither MLIR bytecode nor text"),
      # In this process, the first of these two would end it.
      (
          _bytecode(_TEXT).replace(b"stablehlo", b"stableh\xffo"),
          "its bytecode cannot be read",
      ),
      (_bytecode(_TEXT)[:-40], "its bytecode cannot be read"),
      ("module {}", "no function named main"),
      (_TEXT.replace("f32", "f64"), "must take and return float32 .*f64"),
      (_TEXT.replace("1x2", "?x2"), "fixed shapes; it has one of .*x2xf32"),
  )
  def test_bad_modules_raise(self, module, message):
    with self.assertRaisesRegex(ValueError, message):
      stablehlo_program.StablehloProgram(module)(_X, _Y)

  @parameterized.parameters(
      "jte_lookup_cpu", "xla_ffi_python_cpu_callback", "memcpy"
  )
  def test_calls_of_other_code_raise(self, target):
    program = stablehlo_program.StablehloProgram(
        _CUSTOM_CALL.replace("TARGET", target)
    )
    with self.assertRaisesRegex(ValueError, f"may not have:.*@{target}"):
      program(_X)

  def test_custom_calls_that_xla_replaces_are_allowed(self):
    program = stablehlo_program.StablehloProgram(
        _CUSTOM_CALL.replace("TARGET", "mhlo.tan")
    )
    self.assertEqual(jax.eval_shape(program, _X)[0].shape, _X.shape)

  def test_operations_of_other_dialects_raise(self):
    program = stablehlo_program.StablehloProgram(
        "module { func.func @main(%x: tensor<1x2xf32>) -> tensor<1x2xf32> {"
        " %y = arith.negf %x : tensor<1x2xf32> return %y : tensor<1x2xf32> } }"
    )
    with self.assertRaisesRegex(ValueError, "may not have: arith.negf"):
      program(_X)

  @parameterized.parameters(
      ((_X,), r"shapes \[1, 2\], \[1, 2\]; it was called with float32\[1,2\]"),
      ((_X, _Y.T), r"called with float32\[1,2\], float32\[2,1\]"),
      ((_X, _Y.astype(jnp.int32)), "int32"),
  )
  def test_other_arguments_raise(self, args, message):
    with self.assertRaisesRegex(ValueError, message):
      stablehlo_program.StablehloProgram(_TEXT)(*args)


if __name__ == "__main__":
  absltest.main()
