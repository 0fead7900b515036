# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The function of one row that the TPU compiler gets, run on a CPU."""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import row_function
from jax_tpu_embedding.sparsecore.lib.core.testing import update_cases
import numpy as np


class TpuRowFunctionTest(parameterized.TestCase):

  @parameterized.product(name=list(update_cases.CASES), columns=[(), (16,)])
  def test_row_without_finite_gradient_keeps_its_bits(self, name, columns):
    case = update_cases.CASES[name]
    function = row_function.row_function(
        update_rules.with_options(case.rule, row_options.ROW_OPTIONS),
        case.static_params,
        table_shape=(8, *columns),
        min_value=-0.5,
        max_value=0.5,
    )
    # Beyond the limits, which do not count for such a row either.
    rows = [np.float32(np.full(x.shape, 0.75)) for x in function.rows]
    gradient, *tables = rows[: 2 + len(case.rule.slots)]
    numbers = (
        *case.hyperparameters,
        *(
            update_cases.ROW_OPTIONS[name]
            for name in row_options.with_numbers(row_options.ROW_OPTIONS)
        ),
        *function.constants,
    )
    numbers = [jnp.full_like(tables[0], number) for number in numbers]

    def step(value):
      gradient[..., -1] = value
      return function.function(gradient, *tables, *numbers)

    for value in (np.nan, np.inf, -np.inf):
      for old, new in zip(tables, step(value), strict=True):
        np.testing.assert_array_equal(new, old)
    for old, new in zip(tables, step(np.finfo(np.float32).max), strict=True):
      self.assertTrue(np.any(new != old))


if __name__ == "__main__":
  absltest.main()
