# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update by kernels, emulated, on one device and on four.

every_update_test.py has the settings and formulas; here are few of them, since a
program with kernels takes seconds to compile.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
from jax_tpu_embedding.sparsecore.lib.core.testing import update_programs
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SC = 8
_SETTINGS = {
    "float32": update_programs.Setting(num_sc=_NUM_SC, dim=16),
    "bfloat16": update_programs.Setting(
        num_sc=_NUM_SC,
        dim=16,
        dtype="bfloat16",
        stochastic_rounding=True,
        row_options=("skip_non_finite_gradients", "l2_weight_decay"),
        num_minibatches=3,
        min_value=-0.5,
    ),
}


class RulesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("kernels", "float32", "adam"),
      ("kernels_messages", "bfloat16", "rowwise_adagrad"),
  )
  def test_steps_referenced_rows_once(self, way, setting, case):
    lowering = every_lowering.KERNEL_LOWERINGS[way]
    setting, case = _SETTINGS[setting], update_cases.CASES[case]
    given = update_programs.random_update(case, setting)
    self.assertBetween(np.mean(given.coo.touched), 0.1, 0.9)

    @lowering.compiled
    def step(coo, gradient, operands):
      return lowering.bind(
          f"update_{case.rule.name}",
          *update_programs.in_order(
              operands._replace(coo=coo, gradient=gradient)
          ),
          **case.static_params,
          **setting.params(),
      )

    def assert_is_formula(gradient, given):
      results = step(
          lowering.coo_operands(given.coo, _NUM_SC),
          gradient,
          given.operands._replace(coo=(), gradient=None),
      )
      update_programs.assert_rows_are_stepped_once(
          case, setting, given, tuple(map(np.asarray, results))
      )

    assert_is_formula(given.operands.gradient, given)
    if setting.row_options:
      assert_is_formula(*update_programs.without_finite_gradients(given))

  @parameterized.parameters("kernels", "kernels_messages")
  def test_looks_up(self, way):
    lowering = every_lowering.KERNEL_LOWERINGS[way]
    setting = _SETTINGS["bfloat16"]
    given = update_programs.random_update(update_cases.CASES["sgd"], setting)
    batch_size = given.operands.gradient.shape[0]
    quantization = (-1.0, 1.0, 9)

    @lowering.compiled
    def look_up(coo, table):
      return lowering.bind(
          "lookup",
          *coo,
          table,
          device_batch_size=batch_size // lowering.num_devices,
          enable_minibatching=True,
          quantization_config=quantization,
          **update_programs.LIMITS,
      )

    coo = lowering.coo_operands(given.coo, _NUM_SC)
    (activations,) = look_up(coo, given.operands.table)
    rows = lookup_and_update.quantize(
        given.operands.table.astype(jnp.float32), *quantization
    )
    np.testing.assert_allclose(
        activations,
        np.asarray(given.coo.weights, np.float64) @ np.asarray(rows),
        rtol=1e-5,
        atol=1e-5,
    )
    # Buffers that no converter writes: NaN, as on any platform.
    (activations,) = look_up(
        (np.full_like(coo[0], -5), *coo[1:]), given.operands.table
    )
    self.assertTrue(np.isnan(activations).all())


if __name__ == "__main__":
  absltest.main()
