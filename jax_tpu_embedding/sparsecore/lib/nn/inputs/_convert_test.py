# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Forms of ids and weights; embedding_test.py has whole lookups."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _convert
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_TOPOLOGY = layout.Topology(
    local_device_count=1, global_device_count=1, num_sc_per_device=2
)


def _specs(batch=4, **fields):
  """Features "a" and "b" of one table of 10 rows."""
  table = two_table_model.table(vocabulary_size=10, combiner="mean")
  specs = {
      name: dataclasses.replace(
          two_table_model.feature(name, table, batch=batch), **fields
      )
      for name in "ab"
  }
  embedding.prepare_feature_specs_for_training(specs, 1, 2)
  return specs


def _convert_ids(features, weights=None, specs=None, **kwargs):
  """(row pointers, embedding ids, sample ids, gains)."""
  inputs = _convert.convert_ids(
      features, weights, specs or _specs(), _TOPOLOGY, **kwargs
  )
  return [by_stack["t"] for by_stack in inputs.sparse_dense_matmul_input]


def _num_ids(row_pointers):
  """Ids of each SparseCore, from the ends of its two partitions."""
  first, second = np.asarray(row_pointers).reshape(2, 8)[:, :2].T
  return (second - -(-first // 8) * 8 + first).tolist()


class ConvertIdsTest(parameterized.TestCase):

  def test_ragged_and_dense_ids_give_the_same_entries(self):
    rows = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int32)
    splits = np.array([0, 2, 4, 6, 8])
    dense = _convert_ids({"a": rows, "b": rows})
    pair = rows.reshape(-1), splits
    ragged = jax.jit(_convert_ids)({"a": pair, "b": pair})
    np.testing.assert_array_equal(dense[0], ragged[0])
    for one, other in zip(dense[1:], ragged[1:]):
      # Regions of the ragged ones have room for all ids.
      one, other = (np.asarray(x).reshape(2, -1) for x in (one, other))
      self.assertGreater(other.shape[1], one.shape[1])
      np.testing.assert_array_equal(one, other[:, : one.shape[1]])

  def test_names_may_have_several_lines(self):
    table = two_table_model.table(vocabulary_size=10)
    specs = {"a": two_table_model.feature("first\nsecond", table, batch=4)}
    embedding.prepare_feature_specs_for_training(specs, 1, 2)
    row_pointers, *_ = _convert_ids({"a": np.array([[1]] * 4)}, specs=specs)
    self.assertEqual(_num_ids(row_pointers), [2, 2])
    with self.assertRaisesRegex(
        ValueError, r"Feature 'first\\nsecond': .* id 10 "
    ):
      _convert_ids({"a": np.array([[10]] * 4)}, specs=specs)

  @parameterized.parameters(
      ("int8", 127),
      ("uint8", 255),
      ("int16", 300),
      ("uint16", 2**16 - 1),
      ("uint32", 300),
  )
  def test_row_splits_of_other_types(self, dtype, num_ids):
    values = np.arange(num_ids, dtype=np.int32) % 10
    splits = np.array([0, 1, 1, num_ids - 1, num_ids], dtype)
    ids = {"a": (values, splits), "b": np.zeros((4, 1), np.int32)}
    in_program = jax.jit(_convert_ids)(jax.tree.map(jnp.asarray, ids))
    expected = _convert_ids(dict(ids, a=(values, splits.astype(np.int32))))
    for one, other in zip(in_program, expected):
      np.testing.assert_array_equal(one, other)

  def test_features_without_weights_weigh_one(self):
    ids = {"a": np.array([[1, 2]] * 4), "b": np.array([[3, 4]] * 4)}
    weights = np.full((4, 2), 3, np.float32)
    mixed = _convert_ids(ids, {"a": weights, "b": None})
    ones = _convert_ids(ids, {"a": weights, "b": np.ones_like(weights)})
    for one, other in zip(mixed, ones):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters(
      "bool", "int8", "uint64", "float16", "bfloat16", "longdouble", ">f4"
  )
  def test_types_of_weights(self, dtype):
    ids = {"a": np.array([[1, 2]] * 4), "b": np.array([[3, 4]] * 4)}
    weights = np.array([[1, 0]] * 4)
    one, other = (
        _convert_ids(ids, {"a": weights.astype(kind), "b": None})
        for kind in (jnp.float32, dtype)
    )
    np.testing.assert_array_equal(one[-1], other[-1])

  @parameterized.parameters(
      ("SPLIT_THEN_STACK", [4, 4]), ("stack_then_split", [2, 6])
  )
  def test_strategies(self, strategy, num_ids):
    # The first SparseCore gets half of each feature, or all of "a".
    row_pointers, *_ = _convert_ids(
        {"a": np.array([[0], [1]]), "b": np.array([[2, 3, 4], [5, 6, 7]])},
        specs=_specs(batch=2),
        feature_stacking_strategy=strategy,
    )
    self.assertEqual(_num_ids(row_pointers), num_ids)

  @parameterized.product(
      dtype=[
          "int8",
          "uint16",
          "uint32",
          "int64",
          "uint64",
          ">i2",
          ">i4",
          ">i8",
      ],
      enable_x64=[False, True],
  )
  def test_types_of_ids(self, dtype, enable_x64):
    ids = np.array([[0], [1], [2], [9]], dtype)
    with jax.enable_x64(enable_x64):
      buffers = _convert_ids({"a": ids, "b": ids})
    for one, other in zip(
        buffers, _convert_ids({"a": ids.astype(np.int32), "b": ids})
    ):
      np.testing.assert_array_equal(one, other, strict=True)

  @parameterized.product(
      # Its low 32 bits are 3, a row of the table.
      case=[("drop", []), ("clamp", [9]), ("modulo", [(2**40 + 3) % 10])],
      dtype=["int64", "uint64"],
      enable_x64=[False, True],
  )
  def test_ids_beyond_int32_are_not_cut(self, case, dtype, enable_x64):
    policy, expected = case
    ids = np.array([[2**40 + 3], [0], [0], [0]], dtype)
    specs = _specs(out_of_range_ids=policy)
    with jax.enable_x64(enable_x64):
      buffers = _convert_ids(
          {"a": ids, "b": np.zeros((4, 1), np.int32)}, specs=specs
      )
    first, second = np.asarray(buffers[0][:2])
    _, embedding_ids, sample_ids, _ = map(np.asarray, buffers)
    # Ids of the first SparseCore, whose row r of partition p is id 2 r + p.
    cells = np.r_[:first, layout.round_up(first, 8) : second]
    ids = 2 * embedding_ids[cells] + (cells >= first)
    self.assertEqual(ids[sample_ids[cells] == 0].tolist(), expected)

  def test_ids_beyond_int32_are_an_error(self):
    ids = np.array([[0], [1], [2**40 + 3], [0]])
    with self.assertRaisesRegex(
        ValueError, r"Feature 'a': id 1099511627779 is outside of \[0, 10\)"
    ):
      _convert_ids({"a": ids, "b": ids % 10})

  def test_policies_are_those_of_the_spec(self):
    ids = np.array([[0], [1], [2], [3]])
    weights = np.array([[1], [np.nan], [1], [1]], np.float32)
    dropped, _, _, _ = _convert_ids(
        {"a": ids, "b": ids},
        {"a": weights, "b": None},
        specs=_specs(non_finite_weights="drop"),
    )
    self.assertEqual(_num_ids(dropped), [3, 4])


class ConvertIdsErrorsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          "float_ids",
          {"a": np.ones((4, 1))},
          TypeError,
          "Feature 'a': ids must be integers, got float64",
      ),
      (
          "masked_ids",
          {"a": np.ma.masked_less(np.ones((4, 1), int), 2)},
          ValueError,
          r"Feature 'a': its ids are a masked array, .* ids.filled\(-1\)",
      ),
      (
          "masked_ids_that_are_converted",
          {"a": np.ma.masked_less(np.ones((4, 1), np.int16), 2)},
          ValueError,
          "Feature 'a': its ids are a masked array",
      ),
      (
          "masked_splits",
          {"a": (np.ones(4, int), np.ma.masked_less(np.arange(5), 2))},
          ValueError,
          "Feature 'a': its row_splits are a masked array",
      ),
      (
          "rows_of_objects",
          {"a": np.array([[1, 2], [3], [4], []], object)},
          TypeError,
          r"Feature 'a': ids must be numbers, got an array of objects.*a pair",
      ),
      (
          "an_object",
          {"a": lambda: None},
          TypeError,
          "Feature 'a': ids must be numbers, got function",
      ),
      (
          "float_splits",
          {"a": (np.ones(4, int), np.arange(5.0))},
          TypeError,
          "Feature 'a': row_splits must be integers, got float64",
      ),
      (
          "number_of_splits",
          {"a": (np.ones(4, int), np.arange(4))},
          ValueError,
          "Feature 'a': ids .* got 3 samples. Use a multiple of 2",
      ),
      (
          "rows_as_values",
          {"a": (np.ones((4, 1), int), np.arange(5))},
          ValueError,
          "Feature 'a': ids must have dim 1, got 2",
      ),
      (
          "missing_feature",
          {},
          ValueError,
          r"features and feature_specs do not match.*\['a'\]",
      ),
  )
  def test_bad_ids_raise(self, features, error, message):
    with self.assertRaisesRegex(error, message):
      _convert_ids({"b": np.ones((4, 1), int)} | features)

  def test_splits_beyond_int32_do_not_wrap(self):
    splits = np.array([0, 1, 2, 3, 2**32 + 4])
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        r"Feature 'a': row_splits must end in \[0, 4\]",
    ):
      jax.block_until_ready(
          _convert_ids(
              {
                  "a": (np.ones(4, np.int32), splits),
                  "b": np.ones((4, 1), np.int32),
              }
          )
      )

  @parameterized.named_parameters(
      (
          "pair",
          (np.ones(4, np.float32), np.arange(5)),
          TypeError,
          "Feature 'a': weights must be one array, got a tuple of 2",
      ),
      (
          "complex_numbers",
          np.ones(4, complex),
          TypeError,
          "Feature 'a': weights must be real numbers, got complex128",
      ),
      (
          "words",
          np.array(["1"] * 4),
          TypeError,
          "Feature 'a': weights must be real numbers, got <U1",
      ),
      (
          "rows_of_objects",
          np.array([[1.0, 2.0], [3.0], [4.0], []], object),
          TypeError,
          "Feature 'a': weights must be numbers, got an array of objects",
      ),
      (
          "masked",
          np.ma.masked_less(np.ones(4), 2),
          ValueError,
          "Feature 'a': its weights are a masked array",
      ),
      (
          "shape",
          np.ones(3, np.float32),
          ValueError,
          r"Feature 'a': weights must have shape \(4,\), got \(3,\)",
      ),
  )
  def test_bad_weights_of_ragged_ids_raise(self, weights, error, message):
    features = {"a": (np.ones(4, int), np.arange(5)), "b": np.ones((4, 1), int)}
    with self.assertRaisesRegex(error, message):
      _convert_ids(features, {"a": weights, "b": None})

  def test_weights_of_another_shape_raise_with_those_that_were_given(self):
    with self.assertRaisesRegex(
        ValueError, r"'a': ids have shape \(4,\) and weights \(4, 2\)\. They"
    ):
      _convert_ids(
          {"a": np.ones(4, int), "b": np.ones((4, 1), int)},
          {"a": np.ones((4, 2)), "b": None},
      )


if __name__ == "__main__":
  absltest.main()
