# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Steps that the TPU compiler does not take are errors before it sees them."""

from __future__ import annotations

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import step_operations
from jax_tpu_embedding.sparsecore.lib.core.testing import tpu_step_programs

_OLDEST = (0, 0, 42, 1)
_NEWEST = step_operations.NEWEST_MEASURED
_LATER = (*_NEWEST[:-1], _NEWEST[-1] + 1)


def _lower(step=None, *, version=_NEWEST, **program):
  update, operands = tpu_step_programs.custom_program(step, **program)
  with mock.patch.object(
      libtpu_features, "installed_version", return_value=version
  ):
    return (
        jax.jit(update).trace(*operands).lower(lowering_platforms=("tpu",))
    ).as_text()


class TpuStepOperationsTest(parameterized.TestCase):

  @parameterized.product(
      name=tuple(tpu_step_programs.ALLOWED), version=(None, _OLDEST, _NEWEST)
  )
  def test_step_that_every_compiler_takes_is_lowered(self, name, version):
    _lower(
        tpu_step_programs.step_of(tpu_step_programs.ALLOWED[name]),
        version=version,
    )

  @parameterized.parameters(*tpu_step_programs.NEWER)
  def test_step_for_a_newer_compiler_raises_with_its_version(self, name):
    function, message = tpu_step_programs.NEWER[name]
    step = tpu_step_programs.step_of(function)
    for version in (None, _NEWEST, _LATER):
      _lower(step, version=version)
    with self.assertRaisesRegex(
        NotImplementedError,
        f"^Update 'mine': .*{message}.* more than libtpu 0.0.42.1 can compile."
        " Use libtpu 0.0.(48|51) or later",
    ):
      _lower(step, version=_OLDEST)

  @parameterized.product(
      name=tuple(tpu_step_programs.REFUSED), version=(None, _OLDEST, _NEWEST)
  )
  def test_step_that_no_compiler_takes_raises(self, name, version):
    function, operation, advice = tpu_step_programs.REFUSED[name]
    with self.assertRaisesRegex(
        NotImplementedError,
        f"^Update 'mine': the step of the optimizer has the operation"
        rf" {operation}, which the TPU compiler \(libtpu 0.0.[0-9.]+\) does not"
        f" take.*{advice}.* docs/how_to/optimizers.md",
    ):
      _lower(tpu_step_programs.step_of(function), version=version)

  @parameterized.parameters(*tpu_step_programs.REFUSED)
  def test_compiler_that_nobody_measured_decides_by_itself(self, name):
    function, _, _ = tpu_step_programs.REFUSED[name]
    _lower(tpu_step_programs.step_of(function), version=_LATER)

  @parameterized.parameters(
      lambda g, w, s, rate: (w - g, jnp.zeros_like(s)),
      lambda g, w, s, rate: (w - g, 2 * rate),
  )
  def test_result_that_is_the_same_for_all_rows_raises(self, step):
    with self.assertRaisesRegex(
        NotImplementedError,
        "'mine': the step of the optimizer has a result, number 1, that is the"
        " same for all rows.*Compute it from the gradient, the row or a slot",
    ):
      _lower(step)

  @parameterized.parameters(
      lambda g, w, s, rate: (s, w),
      lambda g, w, s, rate: (g, g),
      lambda g, w, s, rate: (jnp.where(rate > 1, g, w), s),
  )
  def test_result_of_a_row_is_lowered(self, step):
    _lower(step)

  def test_operation_in_a_program_of_the_caller_is_seen(self):
    program = """
        func.func private @first(%x: tensor<1x16xf32>) -> tensor<1x1xf32> {
          %first = stablehlo.slice %x [0:1, 0:1]
              : (tensor<1x16xf32>) -> tensor<1x1xf32>
          return %first : tensor<1x1xf32>
        }
        func.func @main(%g: tensor<1x16xf32>, %w: tensor<1x16xf32>,
                        %s: tensor<1x16xf32>, %r: tensor<1x16xf32>)
            -> (tensor<1x16xf32>, tensor<1x16xf32>) {
          %first = func.call @first(%g) : (tensor<1x16xf32>) -> tensor<1x1xf32>
          %row = stablehlo.broadcast_in_dim %first, dims = [0, 1]
              : (tensor<1x1xf32>) -> tensor<1x16xf32>
          return %row, %s : tensor<1x16xf32>, tensor<1x16xf32>
        }"""
    with self.assertRaisesRegex(NotImplementedError, "stablehlo.slice"):
      _lower(stablehlo=program)

  def test_operation_that_is_not_used_does_not_matter(self):
    def step(g, w, s, rate):
      total = jnp.sum(g)
      for _ in range(64):  # a check of each path by itself would never end
        total = total * total
      return w - rate * g, s

    _lower(step)


if __name__ == "__main__":
  absltest.main()
