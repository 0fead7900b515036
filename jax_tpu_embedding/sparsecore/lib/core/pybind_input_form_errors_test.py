# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the native converter says about input that no form allows."""

from __future__ import annotations

import types

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_calls
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
from jax_tpu_embedding.sparsecore.lib.core.testing import input_forms
import numpy as np
import pyarrow as pa
import scipy.sparse

_IDS = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
_FLAT = _IDS.reshape(-1)
_SPLITS = np.array([0, 2, 4, 6, 8])
_INDICES = input_forms.indices(list(_IDS))
_ARROW = pa.array(_IDS.tolist(), pa.list_(pa.int32()))
_ragged = converter_requests.ragged


def _sparse(**changes):
  tensor = input_forms.sparse_tensor(_INDICES, _FLAT, 4)
  return types.SimpleNamespace(**(vars(tensor) | changes))


def _index(entry, sample):
  indices = _INDICES.copy()
  indices[entry, 0] = sample
  return indices


class FormErrorsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("dense", _IDS, np.ones((4, 2))),
      ("rows", _ragged(list(_IDS)), _ragged([[1.0, 2.0]] * 4)),
      ("splits", (_FLAT, _SPLITS), np.ones(8)),
      ("sparse", _sparse(), np.ones(8)),
      ("csr", scipy.sparse.csr_array((4, 8)), None),
      ("arrow", _ARROW, pa.array([[1.0, 2.0]] * 4)),
  )
  def test_the_baselines_are_fine(self, ids, weights):
    converter_calls.call(features=[ids], feature_weights=[weights])

  @parameterized.named_parameters(
      (
          "rank_3",
          np.zeros((4, 2, 1), np.int32),
          None,
          "ids must have shape .* got shape \\(4, 2, 1\\)",
      ),
      (
          "rank_0",
          np.int32(3),
          None,
          "ids must have shape .* got shape \\(\\)",
      ),
      (
          "masked_ids",
          np.ma.masked_less(_IDS, 3),
          None,
          "its ids are a masked array, and what is masked has no meaning here."
          " Fill it, for example ids with ids.filled\\(-1\\)",
      ),
      (
          "masked_weights",
          _IDS,
          np.ma.masked_less(_IDS * 1.0, 3),
          "its weights are a masked array",
      ),
      (
          "masked_rows",
          _ragged([np.ma.masked_less(row, 3) for row in _IDS]),
          None,
          "its ids are a masked array",
      ),
      (
          "masked_splits",
          (_FLAT, np.ma.masked_less(_SPLITS, 3)),
          None,
          "its row_splits are a masked array",
      ),
      (
          "several_columns_of_rows",
          _ragged([[1]] * 8).reshape(4, 2),
          None,
          "or be an object array \\[samples\\] or \\[samples, 1\\] of rows, got",
      ),
      (
          "ids_that_are_no_array",
          [[1, 2], [3]],
          None,
          "its ids cannot be read as an array",
      ),
      (
          "weights_of_another_shape",
          _IDS,
          np.zeros((4, 1), np.float32),
          "ids have shape \\(4, 2\\) and weights \\(4, 1\\)",
      ),
      (
          "fewer_weight_rows",
          _ragged([[1]] * 4),
          _ragged([[1.0]] * 3),
          "ids have 4 rows and weights 3",
      ),
      (
          "a_short_weight_row",
          _ragged([[1], [2], [3, 4], [5]]),
          _ragged([[1.0]] * 4),
          "row 2 has 2 ids and 1 weights. Pass one weight per id",
      ),
      (
          "dense_weights_of_ragged_ids",
          _ragged([[1]] * 4),
          np.zeros((4, 1)),
          "ids are ragged, so weights must be an object array of rows",
      ),
      (
          "splits_not_from_0",
          (_FLAT, _SPLITS + 1),
          None,
          "its row_splits must begin with 0 and end with the number of ids, 8,"
          " got array\\(\\[1",
      ),
      (
          "splits_that_end_early",
          (_FLAT, _SPLITS[:-1]),
          None,
          "its row_splits must begin with 0 and end with the number of ids, 8",
      ),
      ("no_splits", (_FLAT[:0], _SPLITS[:0]), None, "must begin with 0"),
      (
          "splits_that_descend",
          (_FLAT, np.array([0, 4, 2, 6, 8])),
          None,
          "row_splits must be 5 numbers that ascend from 0 to the number of",
      ),
      (
          "splits_of_rank_2",
          (_FLAT, _SPLITS[:, None]),
          None,
          "its row_splits must have one dimension, got shape \\(5, 1\\)",
      ),
      (
          "values_of_rank_2",
          (_IDS, _SPLITS),
          None,
          "its ids must have one dimension, got shape \\(4, 2\\)",
      ),
      (
          "too_few_weights_of_splits",
          (_FLAT, _SPLITS),
          np.ones(7),
          "has 8 ids and 7 weights. Pass one weight per id",
      ),
      (
          "other_splits_of_weights",
          (_FLAT, _SPLITS),
          (np.ones(8), np.array([0, 1, 4, 6, 8])),
          "the row_splits of its weights are not those of its ids",
      ),
      (
          "more_splits_of_weights",
          (_FLAT, _SPLITS),
          (np.ones(8), np.array([0, 2, 4, 6, 8, 8])),
          "the row_splits of its weights are not those of its ids",
      ),
      (
          "sample_too_large",
          _sparse(indices=_index(2, 4)),
          None,
          "entry 2 is of sample 4, outside of \\[0, 4\\), the samples that its",
      ),
      (
          "negative_sample",
          _sparse(indices=_index(5, -1)),
          None,
          "entry 5 is of sample -1, outside of \\[0, 4\\)",
      ),
      (
          "indices_of_rank_1",
          _sparse(indices=_INDICES[:, 0]),
          None,
          "its indices must have shape \\(8, 2\\), .* got shape \\(8,\\)",
      ),
      (
          "fewer_indices",
          _sparse(indices=_INDICES[:7]),
          None,
          "its indices must have shape \\(8, 2\\), .* got shape \\(7, 2\\)",
      ),
      (
          "no_dense_shape",
          _sparse(dense_shape=np.zeros(0, int)),
          None,
          "its dense_shape must be the numbers of samples and of positions",
      ),
      (
          "negative_dense_shape",
          _sparse(dense_shape=(-4, 2)),
          None,
          "has -4 samples, outside of \\[0, 67108863\\]",
      ),
      (
          "enormous_dense_shape",
          _sparse(dense_shape=(2**40, 2)),
          None,
          "has 1099511627776 samples, outside of .* smaller batches",
      ),
      (
          "other_indices_of_weights",
          _sparse(),
          _sparse(values=np.ones(8), indices=_index(0, 1)),
          "the indices of its weights are not those of its ids",
      ),
      (
          "too_few_weights_of_a_tensor",
          _sparse(),
          np.ones(7),
          "has 8 ids and 7 weights",
      ),
      (
          "weights_of_a_matrix",
          scipy.sparse.csr_array((4, 8)),
          np.ones(8),
          "it is a sparse matrix, whose values are the weights of its ids",
      ),
      (
          "a_sparse_vector",
          scipy.sparse.coo_array(np.ones(4)),
          None,
          "a sparse matrix must have shape \\[samples, vocabulary_size\\], got",
      ),
      (
          "null_list",
          pa.array([[1], None, [2], [3]], pa.list_(pa.int32())),
          None,
          "its ids have nulls. Replace them, for example with fill_null",
      ),
      (
          "null_id",
          pa.array([[1], [None], [2], [3]], pa.list_(pa.int32())),
          None,
          "its ids have nulls",
      ),
      (
          "null_weight",
          _ARROW,
          pa.array([[1.0, None]] * 4),
          "its weights have nulls",
      ),
      (
          "fewer_lists_of_weights",
          _ARROW,
          pa.array([[1.0, 2.0]] * 3),
          "ids have 4 lists and weights 3",
      ),
      (
          "a_shorter_list_of_weights",
          _ARROW,
          pa.array([[1.0, 2.0]] * 3 + [[1.0]]),
          "list 3 of its weights is not as long as that of its ids",
      ),
  )
  def test_values_that_cannot_be(self, ids, weights, message):
    with self.assertRaisesRegex(ValueError, "Feature 'f': .*" + message):
      converter_calls.call(features=[ids], feature_weights=[weights])

  @parameterized.named_parameters(
      (
          "float_ids",
          np.zeros((4, 2)),
          None,
          "ids must be integers, got dtype float64. Convert them",
      ),
      ("boolean_ids", np.zeros((4, 2), bool), None, "got dtype bool"),
      *(
          (
              f"strings_{name}",
              ids,
              None,
              "ids must be integers, got strings of dtype .*. Look them up in a"
              " vocabulary, or hash them",
          )
          for name, ids in (
              ("unicode", np.array([["a", "b"]] * 4)),
              ("bytes", np.array([[b"a", b"b"]] * 4)),
              ("rows", _ragged([["a", "b"]] * 4)),
          )
      ),
      (
          "ragged_float_ids",
          _ragged([[1.5]] * 4),
          None,
          "ids must be integers, got dtype float64",
      ),
      (
          "complex_weights",
          _IDS,
          np.zeros((4, 2), np.complex64),
          "weights must be real numbers, got dtype complex64",
      ),
      (
          "void_weights",
          _IDS,
          np.zeros((4, 2), "V2"),
          "weights must be real numbers, got dtype \\|V2",
      ),
      (
          "rows_that_are_numbers",
          _ragged([1, 2, 3, 4]),
          None,
          "row 0 of its ids must be a 1-D array or a list .* got 1",
      ),
      (
          "rows_that_are_none",
          np.empty(4, object),
          None,
          "row 0 of its ids must be a 1-D array or a list .* got None",
      ),
      (
          "rows_without_a_common_type",
          _ragged([np.int8([1]), np.uint64([1]), [1], [1]]),
          None,
          "the rows of its ids are of signed and of 64-bit unsigned integers",
      ),
      (
          "three_arrays",
          (_FLAT, _SPLITS, _SPLITS),
          None,
          "a tuple must be \\(values, row_splits\\), got 3 elements",
      ),
      (
          "float_splits",
          (_FLAT, _SPLITS * 1.0),
          None,
          "row_splits must be integers, got dtype float64",
      ),
      (
          "float_indices",
          _sparse(indices=_INDICES * 1.0),
          None,
          "indices must be integers, got dtype float64",
      ),
      (
          "float_lists",
          pa.array([[1.0]] * 4),
          None,
          "ids must be integers, or lists of them, got an Arrow array of format"
          " '\\+l' of 'g'. Cast it, for example to pa.list_\\(pa.int32",
      ),
      (
          "arrow_strings",
          pa.array(["1"] * 4),
          None,
          "ids must be integers, or lists of them, .* format 'u'",
      ),
      (
          "arrow_dictionary",
          pa.array(["1"] * 4).dictionary_encode(),
          None,
          "ids must be integers, or lists of them",
      ),
      (
          "arrow_of_lists_of_lists",
          pa.array([[[1]]] * 4),
          None,
          "ids must be integers, or lists of them, .* of '\\+l'",
      ),
      (
          "weights_of_arrow_ids",
          _ARROW,
          np.ones((4, 2)),
          "its ids are an Arrow array, and its weights are of type ndarray",
      ),
  )
  def test_objects_of_the_wrong_kind(self, ids, weights, message):
    with self.assertRaisesRegex(TypeError, "Feature 'f': .*" + message):
      converter_calls.call(features=[ids], feature_weights=[weights])

  def test_lists_of_different_lengths(self):
    arguments = converter_calls.baseline()
    del arguments["features"], arguments["feature_weights"]
    lists = {"indices": [_INDICES], "values": [_FLAT], "dense_shapes": [(4, 2)]}
    for name in lists:
      with self.assertRaisesRegex(
          ValueError, f"{name} has 0 elements and feature_specs 1"
      ):
        converter_calls.converter.preprocess_sparse_dense_matmul_sparse_coo_input(
            **(lists | {name: []}), **arguments
        )


if __name__ == "__main__":
  absltest.main()
