# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of rows, native and in plain jnp, against a matrix product."""

import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core.lowering import table
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import cpu_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import row_gradients as rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

_NO_ROW = 2**31 - 1


def _by_messages(operands, params, unused_devices):
  """The rule of a CPU that is one of several, where it is the only one."""
  (results,) = rules.row_gradients(
      cpu_messages, [rules.of_operands(operands, params)], axis=None
  )
  return results


def _row_gradients_by_messages():
  result = core.Primitive("row_gradients_by_messages")
  result.multiple_results = True
  result.abstract_eval = row_gradients.row_gradients_p.abstract_eval
  mlir.register_lowering(result, table.lowering_rule(_by_messages))
  return result


def _as_on(platform):
  return tuple(
      every_lowering.as_on(platform, operation, primitive)
      for operation, primitive in (
          ("row_gradients", row_gradients.row_gradients_p),
          ("sum_rows", row_gradients.sum_rows_p),
      )
  )


_IMPLEMENTATIONS = {
    "cpu": (row_gradients.row_gradients_p, row_gradients.sum_rows_p),
    "messages": (_row_gradients_by_messages(), row_gradients.sum_rows_p),
    "reference": _as_on(None),
    "gpu": _as_on("cuda"),
}
# With the bits of the reference.
_NATIVE = ("cpu", "gpu")


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


def _row_gradients(implementation, coo, gradient, **changes):
  """Of the rows of one device with all SparseCores."""
  primitive, _ = _IMPLEMENTATIONS[implementation]
  params = dict(
      global_device_count=1,
      rows_per_device=coo.touched.size,
      max_unique_ids_per_partition=64,
  )
  run = functools.partial(primitive.bind, **params | changes)
  return jax.jit(run)(*coo.operands, np.float32(gradient))


def _rows_and_values(num_rows, seed):
  """At random; some rows come twice, and some are none."""
  rng = np.random.default_rng(seed)
  rows = rng.integers(40, size=num_rows, dtype=np.int32)
  rows[rng.random(num_rows) < 0.3] = _NO_ROW
  # Behind padding there may be anything.
  values = np.float32(rng.normal(size=(num_rows, 8)))
  values[rows == _NO_ROW] = np.nan
  return rows, values


def _assert_same_bits(actual, expected):
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_array_equal(
        np.asarray(x).view(np.int32), np.asarray(y).view(np.int32)
    )


class RowGradientsTest(parameterized.TestCase):

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_types_where_numbers_have_64_bits(self, implementation):
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=16,
        batch_size_per_sc=5,
        ids_per_sample=4,
    )
    expected = _row_gradients(implementation, coo, np.ones((5, 8)))
    with jax.enable_x64(True):
      found = _row_gradients(implementation, coo, np.ones((5, 8)))
    for x, y in zip(found, expected, strict=True):
      np.testing.assert_array_equal(x, y, strict=True)

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
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
    enable_minibatching = num_minibatches is not None
    rows, values = _row_gradients(
        implementation, coo, gradient, enable_minibatching=enable_minibatching
    )
    self.assertLen(rows, num_rows)  # no more than there are
    np.testing.assert_allclose(
        _dense(rows, values, num_rows), coo.weights.T @ gradient, atol=1e-5
    )
    np.testing.assert_array_equal(
        np.sort(rows[rows != _NO_ROW]), np.flatnonzero(coo.touched)
    )
    if implementation in _NATIVE:
      expected = _row_gradients(
          "reference", coo, gradient, enable_minibatching=enable_minibatching
      )
      _assert_same_bits((rows, values), expected)

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      sizes=[(1,), (8,), (77,), (5, 60, 1)],
  )
  def test_sums_are_those_of_numpy(self, implementation, sizes):
    terms = [_rows_and_values(n, seed) for seed, n in enumerate(sizes)]
    expected = np.zeros((40, 8))
    for rows, values in terms:
      is_row = rows != _NO_ROW
      np.add.at(expected, rows[is_row], values[is_row])
    operands = list(itertools.chain(*terms))
    _, primitive = _IMPLEMENTATIONS[implementation]
    rows, values = jax.jit(primitive.bind)(*operands)
    self.assertLen(rows, sum(sizes))
    np.testing.assert_allclose(_dense(rows, values, 40), expected, atol=1e-5)
    if implementation in _NATIVE:
      _, with_lookup = _IMPLEMENTATIONS["reference"]
      _assert_same_bits((rows, values), jax.jit(with_lookup.bind)(*operands))

  def test_one_device_raises_for_more_rows_than_the_limit(self):
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=16,
        batch_size_per_sc=5,
        ids_per_sample=4,
    )
    gradient = np.ones((5, 8))
    num_rows = int(np.sum(coo.touched))
    run = functools.partial(_row_gradients, coo=coo, gradient=gradient)
    run("cpu", max_unique_ids_per_partition=num_rows)
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        f"{num_rows} distinct rows, and room for the gradients of"
        f" {num_rows - 1}. Raise max_unique_ids_per_partition",
    ):
      jax.block_until_ready(
          run("cpu", max_unique_ids_per_partition=num_rows - 1)
      )
    # Elsewhere, what there is room for is NaN.
    for other in ("reference", "gpu"):
      rows, values = run(other, max_unique_ids_per_partition=num_rows - 1)
      self.assertTrue(np.all(rows != _NO_ROW))
      self.assertTrue(np.all(np.isnan(values)))

  @parameterized.parameters(
      ("embedding_ids", 16), ("sample_ids", 5), ("row_pointers", 33)
  )
  def test_corrupt_buffers_raise(self, name, value):
    coo = random_coo.random_coo(
        num_sc_per_device=1,
        rows_per_shard=16,
        batch_size_per_sc=5,
        ids_per_sample=4,
    )
    operands = [np.array(x) for x in coo.operands]
    names = ("row_pointers", "embedding_ids", "sample_ids")
    operands[names.index(name)][0] = value
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), rf"{name}\[0\] is {value}"
    ):
      jax.block_until_ready(
          row_gradients.row_gradients_p.bind(
              *operands,
              np.zeros((5, 8), np.float32),
              global_device_count=1,
              rows_per_device=16,
              max_unique_ids_per_partition=64,
          )
      )

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
        max_unique_ids_per_partition=64,
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
        (
            {"activation_gradient": np.zeros((5, 0), np.float32)},
            r"activation_gradient must have one column or more, got .*\(5, 0\)",
        ),
        ({"gains": np.zeros(3, np.float32)}, r"gains must have shape \(32,\)"),
        ({"rows_per_device": 0}, "rows_per_device must be positive, got 0"),
        (
            {"max_unique_ids_per_partition": 0},
            "max_unique_ids_per_partition must be positive, got 0",
        ),
        (
            {"global_device_count": 3},
            r"for 3 device\(s\), and the program has 1",
        ),
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
        ((rows, values[:, :0]), r"values must have one column.*got.*\(3, 0\)"),
        ((), "takes rows and values, as often as .*, got 0 operands"),
        ((rows,), "takes rows and values, .*, got 1 operands"),
        ((rows, values, rows), "takes rows and values, .*, got 3 operands"),
        ((rows[1:], values), r"values must have shape \(2, 8\), got \(3, 8\)"),
        (
            (rows, values, rows, values[:, 1:]),
            r"values must have shape \(3, 8\), got \(3, 7\)",
        ),
    ):
      with self.subTest(message), self.assertRaisesRegex(ValueError, message):
        row_gradients.sum_rows_p.bind(*operands)


if __name__ == "__main__":
  absltest.main()
