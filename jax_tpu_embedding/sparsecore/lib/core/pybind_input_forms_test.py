# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""All forms of one batch give the native converter's same buffers."""

from __future__ import annotations

import types

from absl.testing import absltest
from absl.testing import parameterized
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_calls
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
import ml_dtypes
import numpy as np
import pyarrow as pa
import scipy.sparse

_IDS = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
_WEIGHTS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
_ROWS = [np.array(row, np.int32) for row in ([5, 1, 5], [], [7], [2, 3])]
_ROW_WEIGHTS = [
    np.array(row, np.float32) for row in ([1, 2, 4], [], [0.5], [3, 1])
]
_INTEGERS = (
    *(np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64),
    *(">i2", ">i4", ">i8", ">u4", ">u8"),
)
_NUMBERS = (
    *(np.float16, np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16),
    *(ml_dtypes.float8_e4m3fn, ">f2", ">f4", ">f8", np.int8, np.int64),
    *(np.uint16, ">u4"),
)


def _assert_same_as_baseline(
    ids, weights=_WEIGHTS, expected_ids=_IDS, expected_weights=_WEIGHTS
):
  actual = converter_calls.call(
      features=[ids], feature_weights=None if weights is None else [weights]
  )
  expected = converter_calls.call(
      features=[expected_ids],
      feature_weights=None if weights is None else [expected_weights],
  )
  for a, b in zip(actual[:4], expected[:4]):
    np.testing.assert_array_equal(a["s"], b["s"])


class FormsTest(parameterized.TestCase):

  def _request(self, rows, row_weights, combiner):
    stack = input_preprocessing.Stack(
        combiner=combiner,
        max_ids_per_partition=8,
        max_unique_ids_per_partition=8,
    )
    feature = input_preprocessing.Feature(
        name="f", ids=rows, weights=row_weights, vocabulary_size=8
    )
    topology = layout.Topology(
        local_device_count=1, global_device_count=2, num_sc_per_device=2
    )
    return stack, [feature], topology

  def _assert_reads(self, form, rows, row_weights):
    request = self._request(rows, row_weights, "sqrtn")
    converter_requests.assert_same(
        converter_requests.convert(*request, leaves=[form(rows, row_weights)]),
        input_preprocessing.convert_stack(*request),
    )

  @parameterized.product(
      form=tuple(input_forms.FORMS), weights=(None, _ROW_WEIGHTS)
  )
  def test_samples_of_any_length(self, form, weights):
    self._assert_reads(input_forms.FORMS[form], _ROWS, weights)

  @parameterized.product(
      form=tuple(input_forms.FORMS | input_forms.DENSE_FORMS),
      weights=(None, list(_WEIGHTS)),
  )
  def test_samples_of_one_length(self, form, weights):
    form = (input_forms.FORMS | input_forms.DENSE_FORMS)[form]
    self._assert_reads(form, list(_IDS), weights)

  @parameterized.product(form=tuple(input_forms.FORMS), num_samples=(0, 4))
  def test_no_ids(self, form, num_samples):
    nothing = [np.zeros(0, np.int32)] * num_samples
    self._assert_reads(input_forms.FORMS[form], nothing, None)

  @parameterized.product(
      form=("dense", "rows", "splits", "sparse", "shuffled_sparse", "csr"),
      dtype=_INTEGERS,
  )
  def test_ids_of_any_integer_type(self, form, dtype):
    form = (input_forms.FORMS | input_forms.DENSE_FORMS)[form]
    self._assert_reads(form, list(_IDS.astype(dtype)), list(_WEIGHTS))

  @parameterized.product(
      form=("dense", "rows", "splits", "sparse", "shuffled_sparse"),
      dtype=_NUMBERS,
  )
  def test_weights_of_any_real_type(self, form, dtype):
    form = (input_forms.FORMS | input_forms.DENSE_FORMS)[form]
    _assert_same_as_baseline(*form(list(_IDS), list(_WEIGHTS.astype(dtype))))

  @parameterized.parameters(
      "dense", "rows", "lists", "splits", "sparse", "csr", "coo"
  )
  def test_truth_values_as_weights_are_zero_and_one(self, form):
    form = (input_forms.FORMS | input_forms.DENSE_FORMS)[form]
    has_weight = _WEIGHTS > np.median(_WEIGHTS)
    features, weights = form(list(_IDS), list(has_weight))
    actual = converter_calls.call(
        features=[features], feature_weights=[weights]
    )
    features, weights = form(list(_IDS), list(has_weight.astype(np.float32)))
    expected = converter_calls.call(
        features=[features], feature_weights=[weights]
    )
    for a, b in zip(actual[:4], expected[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])

  @parameterized.parameters(
      *(pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32()),
      *(pa.uint32(), pa.int64(), pa.uint64()),
  )
  def test_arrow_integers(self, integer_type):
    _assert_same_as_baseline(
        pa.array(_IDS.tolist(), pa.list_(integer_type)), None
    )

  @parameterized.parameters(pa.float16(), pa.float32(), pa.float64(), pa.int8())
  def test_arrow_weights(self, number_type):
    weights = _WEIGHTS.astype(number_type.to_pandas_dtype())
    _assert_same_as_baseline(
        pa.array(_IDS.tolist(), pa.list_(pa.int32())),
        pa.array([list(row) for row in weights], pa.list_(number_type)),
    )

  def test_a_flat_arrow_column_has_one_id_per_sample(self):
    ids = np.array([3, 1, 4, 1], np.int32)
    _assert_same_as_baseline(pa.array(ids).slice(0), None, expected_ids=ids)
    _assert_same_as_baseline(
        pa.concat_arrays([pa.array([9], pa.int32()), pa.array(ids)]).slice(1),
        None,
        expected_ids=ids,
    )

  @parameterized.parameters("csc", "lil", "dok", "bsr", "csr", "coo")
  def test_scipy_formats(self, name):
    dense = np.zeros((4, 8), np.float32)
    dense[np.arange(4)[:, None], _IDS] = _WEIGHTS
    matrix = scipy.sparse.csr_array(dense).asformat(name)
    self._assert_matrix(matrix)

  def _assert_matrix(self, matrix):
    actual = converter_calls.call(features=[matrix])
    expected = converter_calls.call(feature_weights=[_WEIGHTS])
    for a, b in zip(actual[:4], expected[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])

  def test_a_csr_matrix_may_have_more_memory_than_it_uses(self):
    matrix, _ = input_forms.csr(list(_IDS), list(_WEIGHTS))
    matrix.indices = np.append(matrix.indices, [99, 99]).astype(np.int32)
    matrix.data = np.append(matrix.data, [np.nan]).astype(np.float32)
    self._assert_matrix(matrix)

  def test_jax_arrays(self):
    _assert_same_as_baseline(jnp.asarray(_IDS), jnp.asarray(_WEIGHTS))
    _assert_same_as_baseline(
        jnp.asarray(_IDS), jnp.asarray(_WEIGHTS, jnp.bfloat16)
    )

  def test_weights_of_a_sparse_tensor_may_be_one(self):
    leaf, flat = input_forms.shuffled_sparse(list(_IDS), list(_WEIGHTS))
    weights = types.SimpleNamespace(
        indices=leaf.indices.copy(),
        values=flat,
        dense_shape=leaf.dense_shape,
    )
    _assert_same_as_baseline(leaf, weights)

  def test_the_function_for_sparse_tensors(self):
    leaf, _ = input_forms.shuffled_sparse(list(_IDS), None)
    arguments = converter_calls.baseline()
    del arguments["features"], arguments["feature_weights"]
    actual = converter.preprocess_sparse_dense_matmul_sparse_coo_input(
        [leaf.indices], [leaf.values], [leaf.dense_shape], **arguments
    )
    for a, b in zip(actual[:4], converter_calls.call()[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])


class MemoryTest(parameterized.TestCase):

  def _num_prepared(self, ids, weights=None):
    return converter.count_prepared_numbers(
        [ids],
        None if weights is None else [weights],
        converter_calls.baseline()["feature_specs"],
    )

  @parameterized.product(
      # And what is prepared: others might write row splits while they are used.
      form=(
          ("dense", 0),
          ("splits", 5),
          ("arrow", 0),
          ("large_arrow", 0),
          ("sliced_arrow", 0),
      ),
      dtype=(np.int32, np.int64, np.uint32, np.uint64),
  )
  def test_plain_input_is_read_where_it_is(self, form, dtype):
    form, num_prepared = form
    form = (input_forms.FORMS | input_forms.DENSE_FORMS)[form]
    leaves = form(list(_IDS.astype(dtype)), list(_WEIGHTS))
    self.assertEqual(self._num_prepared(*leaves), num_prepared)

  # What is copied costs 1 for each id and 1 for each run of them.
  @parameterized.named_parameters(
      ("cut_from_one_array", list(_IDS), 0),
      ("every_other_id", list(np.repeat(_IDS, 2, axis=1)[:, ::2]), 8),
      ("copies", [row.copy() for row in _IDS], 8 + 4),
      ("with_gaps", list(np.hstack([_IDS, _IDS])[:, :2]), 8 + 4),
      ("backwards", [row[::-1] for row in _IDS[:, ::-1].copy()], 8 + 4),
      ("of_two_arrays", [*_IDS[:3], _IDS[3].copy()], 8 + 2),
      (
          "read_as_two_types",
          [*_IDS[:2], *_IDS.view(np.uint32)[2:]],
          8 + 2,
      ),
  )
  def test_rows_that_follow_each_other_are_one_run(self, rows, expected):
    ids = converter_requests.ragged(rows)
    self.assertEqual(self._num_prepared(ids), expected)
    weights = converter_requests.ragged(list(_WEIGHTS))
    self.assertEqual(self._num_prepared(ids, weights), expected)
    _assert_same_as_baseline(ids, weights)

  @parameterized.named_parameters(
      ("dtype_of_ids", _IDS.astype(np.int16), None, 8),
      ("byte_order", _IDS.astype(">i4"), None, 8),
      ("fortran_order", np.asfortranarray(_IDS), None, 8),
      ("dtype_of_weights", _IDS, _WEIGHTS.astype(np.float64), 8),
      ("csr", scipy.sparse.csr_matrix(_IDS.astype(np.float64)), None, 7 + 5),
  )
  def test_other_input_is_converted_once(self, ids, weights, expected):
    self.assertEqual(self._num_prepared(ids, weights), expected)

  def test_strides(self):
    wide = np.full((8, 6), -1, np.int32)
    wide[::2, 1:5:3] = _IDS
    wide_weights = np.full((8, 6), np.nan, np.float32)
    wide_weights[::2, 1:5:3] = _WEIGHTS
    _assert_same_as_baseline(wide[::2, 1:5:3], wide_weights[::2, 1:5:3])
    _assert_same_as_baseline(np.asfortranarray(_IDS))
    _assert_same_as_baseline(_IDS[::-1, ::-1].copy()[::-1, ::-1])
    _assert_same_as_baseline(
        np.broadcast_to(_IDS[:1], (4, 2)),
        None,
        expected_ids=np.tile(_IDS[:1], (4, 1)),
    )

  def test_strides_of_rows(self):
    weights = converter_requests.ragged(list(_WEIGHTS))
    _assert_same_as_baseline(
        converter_requests.ragged([row[::-1].copy()[::-1] for row in _IDS]),
        weights,
    )
    _assert_same_as_baseline(
        converter_requests.ragged(list(_IDS[::-1]))[::-1], weights
    )

  def test_strides_of_flat_arrays(self):
    splits = np.stack([[0, 2, 4, 6, 8]] * 2, axis=1)[:, 0]
    _assert_same_as_baseline(
        (np.repeat(_IDS.reshape(-1), 3)[::3], splits),
        np.repeat(_WEIGHTS.reshape(-1), 2)[::2],
    )

  def test_misaligned_memory(self):
    misaligned = (
        np.frombuffer(b"x" + _IDS.tobytes(), np.uint8)[1:]
        .view(np.int32)
        .reshape(4, 2)
    )
    self.assertFalse(misaligned.flags.aligned)
    _assert_same_as_baseline(misaligned)

  def test_input_is_not_written(self):
    ids = _IDS.copy()
    ids.flags.writeable = False
    _assert_same_as_baseline(ids)

  def test_rows_may_be_a_column(self):
    ids = converter_requests.ragged(_IDS.tolist())[:, None]
    weights = converter_requests.ragged(_WEIGHTS.tolist())[:, None]
    self.assertEqual(ids.shape, (4, 1))
    _assert_same_as_baseline(ids, weights)
    _assert_same_as_baseline(ids[:, 0], weights)

  def test_subclasses_of_arrays_are_read_as_arrays(self):
    class Array(np.ndarray):
      pass

    _assert_same_as_baseline(_IDS.view(Array), _WEIGHTS.view(Array))
    _assert_same_as_baseline(
        converter_requests.ragged([row.view(Array) for row in _IDS]),
        converter_requests.ragged(list(_WEIGHTS)),
    )

  def test_rows_may_be_lists_and_mixed(self):
    _assert_same_as_baseline(
        converter_requests.ragged(
            [[0, 1], np.array([2, 3]), _IDS[2], np.uint8([6, 7])]
        ),
        converter_requests.ragged(_WEIGHTS.tolist()),
    )

  def test_empty_rows_may_be_of_any_type(self):
    row_pointers, *_ = converter_calls.call(
        features=[
            converter_requests.ragged(
                [[], np.array([]), np.zeros(0, np.int32), ()]
            )
        ]
    )
    self.assertEqual(row_pointers["s"].tolist(), [0] * 16)

  def test_one_dimension_is_one_id_per_sample(self):
    ids = np.array([3, 1, 4, 1])
    _assert_same_as_baseline(ids, None, expected_ids=ids[:, None])


if __name__ == "__main__":
  absltest.main()
