# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of rows, native and in plain jnp, against a matrix product."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering import any_platform
from jax_tpu_embedding.sparsecore.lib.core.lowering import row_gradients as rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
import numpy as np

_NO_ROW = 2**31 - 1


def _reference(primitive, rule):
  """`primitive`, lowered as on a platform without rules of its own."""
  result = core.Primitive(f"reference_{primitive.name}")
  result.multiple_results = True
  result.def_abstract_eval(
      lambda *operands, **params: primitive.abstract_eval(*operands, **params)[
          0
      ]
  )
  mlir.register_lowering(result, functools.partial(rule, any_platform.lookup))
  return result


_ROW_GRADIENTS = {
    "cpu": row_gradients.row_gradients_p,
    "reference": _reference(row_gradients.row_gradients_p, rules.row_gradients),
}
_SUM_ROWS = {
    "cpu": row_gradients.sum_rows_p,
    "reference": _reference(row_gradients.sum_rows_p, rules.sum_rows),
}


def _dense(rows, values, num_rows):
  """f64[num_rows, D]; fails if a row comes twice, or padding has a value."""
  rows, values = np.asarray(rows), np.float64(values)
  is_row = rows != _NO_ROW
  assert np.unique(rows[is_row]).size == is_row.sum()
  np.testing.assert_array_equal(rows, np.sort(rows))
  np.testing.assert_array_equal(values[~is_row], 0)
  result = np.zeros((num_rows, values.shape[1]))
  result[rows[is_row]] = values[is_row]
  return result


class RowGradientsTest(parameterized.TestCase):

  @parameterized.product(
      implementation=list(_ROW_GRADIENTS),
      num_sc=[1, 3],
      num_minibatches=[None, 2],
  )
  def test_are_the_matrix_product(
      self, implementation, num_sc, num_minibatches
  ):
    coo = random_coo.random_coo(
        num_sc_per_device=num_sc,
        rows_per_shard=16,
        batch_size_per_sc=5,
        ids_per_sample=4,
        num_minibatches=num_minibatches,
    )
    gradient = np.random.default_rng(0).normal(size=(5 * num_sc, 8))
    num_rows = 16 * num_sc
    run = functools.partial(
        _ROW_GRADIENTS[implementation].bind,
        global_device_count=1,
        rows_per_device=num_rows,
        max_unique_ids_per_partition=64,
        enable_minibatching=num_minibatches is not None,
    )
    rows, values = jax.jit(run)(*coo.operands, np.float32(gradient))
    self.assertLen(rows, num_rows)  # no more than there are
    np.testing.assert_allclose(
        _dense(rows, values, num_rows), coo.weights.T @ gradient, atol=1e-5
    )
    np.testing.assert_array_equal(
        np.sort(rows[rows != _NO_ROW]), np.flatnonzero(coo.touched)
    )

  @parameterized.product(implementation=list(_SUM_ROWS), num_rows=[1, 8, 77])
  def test_sums_are_those_of_numpy(self, implementation, num_rows):
    rng = np.random.default_rng(num_rows)
    rows = rng.integers(40, size=num_rows, dtype=np.int32)
    rows[rng.random(num_rows) < 0.3] = _NO_ROW
    # Behind padding there may be anything.
    values = np.float32(rng.normal(size=(num_rows, 8)))
    values[rows == _NO_ROW] = np.nan
    expected = np.zeros((40, 8))
    is_row = rows != _NO_ROW
    np.add.at(expected, rows[is_row], values[is_row])
    result = jax.jit(_SUM_ROWS[implementation].bind)(rows, values)
    np.testing.assert_allclose(_dense(*result, 40), expected, atol=1e-5)

  def test_operands_are_checked(self):
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=16,
        batch_size_per_sc=5,
        ids_per_sample=4,
    )
    names = (
        "row_pointers",
        "embedding_ids",
        "sample_ids",
        "gains",
        "num_minibatches",
        "activation_gradient",
    )
    operands = dict(zip(names, (*coo.operands, np.zeros((5, 8), np.float32))))
    params = dict(
        global_device_count=1,
        rows_per_device=16,
        max_unique_ids_per_partition=8,
    )

    def bind(changes):
      arguments = operands | params | changes
      values = [arguments.pop(name) for name in names]
      return row_gradients.row_gradients_p.bind(*values, **arguments)

    bind({})
    for changes, message in (
        ({"row_pointers": np.zeros(8)}, "row_pointers must have type int32"),
        ({"embedding_ids": np.zeros(8)}, "embedding_ids must have type int32"),
        ({"sample_ids": np.zeros(8)}, "sample_ids must have type int32"),
        ({"gains": np.zeros(8, np.int32)}, "gains must have type float32"),
        ({"num_minibatches": np.ones(1, np.int32)}, "num_minibatches must.*0"),
        (
            {"activation_gradient": np.zeros((5, 8), np.float16)},
            "activation_gradient must have type float32",
        ),
        (
            {"activation_gradient": np.zeros(5, np.float32)},
            "activation_gradient must have dim 2",
        ),
        ({"gains": np.zeros(3, np.float32)}, r"gains must have shape \(32,\)"),
        ({"rows_per_device": 0}, "rows_per_device must be positive, got 0"),
        (
            {"max_unique_ids_per_partition": 0},
            "max_unique_ids_per_partition must be positive, got 0",
        ),
        ({"global_device_count": 3}, "fits no number of|3 device"),
        ({"enable_minibatching": True}, "row_pointers has 8 entries"),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        bind(changes)

  def test_sums_check_their_operands(self):
    rows, values = np.zeros(3, np.int32), np.zeros((3, 8), np.float32)
    row_gradients.sum_rows_p.bind(rows, values)
    for operands, message in (
        ((rows.astype(np.float32), values), "rows must have type int32"),
        ((rows, values.astype(np.int32)), "values must have type float32"),
        ((rows[:, None], values), "rows must have dim 1"),
        ((rows, values[:, 0]), "values must have dim 2"),
        ((rows[1:], values), r"rows must have shape \(3,\), got \(2,\)"),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        row_gradients.sum_rows_p.bind(*operands)


if __name__ == "__main__":
  absltest.main()
