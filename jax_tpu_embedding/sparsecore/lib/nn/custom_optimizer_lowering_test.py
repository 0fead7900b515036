# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import stablehlo_program
from jax_tpu_embedding.sparsecore.lib.nn import custom_optimizer_lowering
import numpy as np


def sgd(grad, row, learning_rate):
  return row - learning_rate * grad


def momentum(grad, row, momentum, learning_rate, decay):
  momentum = decay * momentum + grad
  return row - learning_rate * momentum, momentum


def run(text, *args):
  return stablehlo_program.StablehloProgram(text)(
      *(jnp.full((1, 2), x, jnp.float32) for x in args)
  )


class CustomOptimizerLoweringTest(parameterized.TestCase):

  def test_single_result_is_the_row(self):
    text = custom_optimizer_lowering.lower_to_stablehlo(sgd, 2)
    (row,) = run(text, 4, 1, 0.5)
    np.testing.assert_array_equal(row, [[-1, -1]])

  def test_results_are_row_and_slots(self):
    text = custom_optimizer_lowering.lower_to_stablehlo(momentum, 2, 1, 2)
    row, slot = run(text, 4, 1, 2, 0.5, 0.25)
    np.testing.assert_array_equal(slot, [[4.5, 4.5]])
    np.testing.assert_array_equal(row, [[-1.25, -1.25]])

  def test_unused_arguments_stay_in_the_signature(self):
    text = custom_optimizer_lowering.lower_to_stablehlo(
        lambda grad, row, learning_rate: row - grad, 2
    )
    (row,) = run(text, 4, 1, 0.5)
    np.testing.assert_array_equal(row, [[-3, -3]])

  @parameterized.parameters(
      (None, None, -1.25, 4.5),
      (-0.5, None, -0.5, 4.5),
      (None, -2.0, -2.0, 4.5),
      (-0.5, 0.5, -0.5, 4.5),
  )
  def test_limits_clip_the_row_only(self, low, high, row, slot):
    direct = custom_optimizer_lowering.lower_to_stablehlo(
        momentum, 2, 1, 2, low, high
    )
    free = custom_optimizer_lowering.lower_to_stablehlo(momentum, 2, 1, 2)
    for text in (
        direct,
        custom_optimizer_lowering.wrap_stablehlo_with_limits(
            free, 2, 1, 2, low, high
        ),
        custom_optimizer_lowering.wrap_stablehlo_with_limits(
            free.encode(), 2, 1, 2, low, high
        ),
    ):
      results = run(text, 4, 1, 2, 0.5, 0.25)
      np.testing.assert_array_equal(np.ravel(results), [row, row, slot, slot])

  def test_limits_in_the_wrong_order_raise(self):
    with self.assertRaisesRegex(ValueError, "must not exceed max_value"):
      custom_optimizer_lowering.lower_to_stablehlo(sgd, 2, 0, 1, 1.0, 0.0)

  def test_missing_slots_raise(self):
    with self.assertRaisesRegex(ValueError, "row and 1 slots; .* 1 arrays"):
      custom_optimizer_lowering.lower_to_stablehlo(
          lambda *args: args[0], 2, num_slot_variables=1
      )

  def test_program_for_other_numbers_raises(self):
    text = custom_optimizer_lowering.lower_to_stablehlo(sgd, 2)
    with self.assertRaisesRegex(ValueError, r"shapes \[1, 2\], .* called with"):
      custom_optimizer_lowering.wrap_stablehlo_with_limits(text, 4, 0, 1, 0.0)

  @parameterized.parameters(
      (None, None, [-1, 0, 2]),
      (0, None, [0, 0, 2]),
      (None, 1, [-1, 0, 1]),
      (0, 1, [0, 0, 1]),
  )
  def test_apply_clipping(self, low, high, expected):
    values = jnp.array([-1.0, 0.0, 2.0])
    clipped = custom_optimizer_lowering.apply_clipping(values, low, high)
    np.testing.assert_array_equal(clipped, expected)


if __name__ == "__main__":
  absltest.main()
