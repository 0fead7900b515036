# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the native converter takes, what it refuses, and its threads."""

from __future__ import annotations

import concurrent.futures
import os
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import converter_requests
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
import numpy as np


def _baseline(**changes):
  """Arguments of a call that is fine: 4 samples of 2 ids on 2 SparseCores."""
  feature = input_preprocessing.Feature(
      name="f",
      ids=np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32),
      vocabulary_size=8,
  )
  stack = input_preprocessing.Stack(
      combiner="sum", max_ids_per_partition=8, max_unique_ids_per_partition=8
  )
  arguments = {
      "features": [feature.ids],
      "feature_weights": None,
      "feature_specs": [converter_requests.spec_of(feature, stack)],
      "local_device_count": 1,
      "global_device_count": 1,
      "num_sc_per_device": 2,
  }
  return arguments | changes


def _call(**changes):
  return converter.preprocess_sparse_dense_matmul_input(**_baseline(**changes))


def _spec_with(**changes):
  """The baseline's feature spec; "a.b" names an attribute of an attribute."""
  spec = _baseline()["feature_specs"][0]
  for path, value in changes.items():
    *objects, attribute = path.split(".")
    holder = spec
    for name in objects:
      holder = getattr(holder, name)
    setattr(holder, attribute, value)
  return [spec]


_STACKED = "table_spec.stacked_table_spec"


class ErrorsTest(parameterized.TestCase):

  def test_the_baseline_is_fine(self):
    row_pointers, *_ = _call()
    np.testing.assert_array_equal(row_pointers["s"], ([2, 10] + [16] * 6) * 2)

  @parameterized.named_parameters(
      ("local_devices", {"local_device_count": 0}, "local_device_count must"),
      (
          "global_devices",
          {"global_device_count": 0},
          "global_device_count must be greater than 0",
      ),
      (
          "more_local_than_global_devices",
          {"local_device_count": 2},
          "global_device_count must be greater than or equal to",
      ),
      ("sparse_cores", {"num_sc_per_device": 0}, "num_sc_per_device must"),
      (
          "no_features",
          {"features": [], "feature_specs": []},
          "input_batches cannot be empty",
      ),
      (
          "fewer_features_than_specs",
          {"features": []},
          "features has 0 elements and feature_specs 1",
      ),
      (
          "fewer_weights_than_specs",
          {"feature_weights": []},
          "feature_weights has 0 elements and feature_specs 1",
      ),
      (
          "weights_that_are_none",
          {"feature_weights": [None]},
          "Feature 'f': its weights are None",
      ),
      (
          "uneven_batch",
          {"features": [np.zeros((3, 2), np.int32)]},
          "Feature 'f': has 3 samples, which .* 1 \\* 2 SparseCores cannot",
      ),
      (
          "rank_3",
          {"features": [np.zeros((4, 2, 1), np.int32)]},
          "Feature 'f': ids must have shape .* got shape \\(4, 2, 1\\)",
      ),
      (
          "weights_of_another_shape",
          {"feature_weights": [np.zeros((4, 1), np.float32)]},
          "Feature 'f': ids have shape \\(4, 2\\) and weights \\(4, 1\\)",
      ),
      (
          "fewer_weight_rows",
          {
              "features": [converter_requests.ragged([[1]] * 4)],
              "feature_weights": [converter_requests.ragged([[1.0]] * 3)],
          },
          "Feature 'f': ids have 4 rows and weights 3",
      ),
      (
          "a_short_weight_row",
          {
              "features": [converter_requests.ragged([[1], [2], [3, 4], [5]])],
              "feature_weights": [converter_requests.ragged([[1.0]] * 4)],
          },
          "Feature 'f': row 2 has 2 ids and 1 weights",
      ),
      (
          "dense_weights_of_ragged_ids",
          {
              "features": [converter_requests.ragged([[1]] * 4)],
              "feature_weights": [np.zeros((4, 1))],
          },
          "Feature 'f': ids are ragged, so weights must be",
      ),
      (
          "id_too_large",
          {"features": [np.array([[0], [1], [8], [2]])]},
          "Feature 'f': sample 2 has id 8 at position 0, outside of \\[0, 8\\)",
      ),
      (
          "negative_id",
          {"features": [np.array([[0], [-1]])]},
          "Feature 'f': sample 1 has id -1",
      ),
      (
          "id_beyond_int32",
          {"features": [np.array([[2**32], [0]])]},
          "Feature 'f': sample 0 has id 4294967296",
      ),
      (
          "combiner",
          {"feature_specs": _spec_with(**{_STACKED + ".combiner": "max"})},
          "Stack 's': unknown combiner 'max'; choose 'sum', 'mean' or 'sqrtn'",
      ),
      (
          "limit_of_ids",
          {
              "feature_specs": _spec_with(
                  **{_STACKED + ".max_ids_per_partition": 1}
              )
          },
          "Stack 's': SparseCore 0 of local device 0 has 2 ids for partition 0,"
          " and max_ids_per_partition is 1. Raise it to at least 2, or pass"
          " allow_id_dropping=True",
      ),
      (
          "limit_of_unique_ids",
          {
              "feature_specs": _spec_with(
                  **{_STACKED + ".max_unique_ids_per_partition": 1}
              )
          },
          "2 distinct ids for partition 0, and max_unique_ids_per_partition is"
          " 1. Raise it to at least 2",
      ),
      (
          "buffer_too_small",
          {
              "feature_specs": _spec_with(
                  **{_STACKED + ".suggested_coo_buffer_size_per_device": 16}
              )
          },
          "SparseCore 0 of local device 0 needs 16 cells and has 8.*Raise"
          " suggested_coo_buffer_size_per_device to at least 32",
      ),
      (
          "suggestion_above_the_theoretical_most",
          {
              "feature_specs": _spec_with(
                  **{_STACKED + ".suggested_coo_buffer_size_per_device": 33}
              )
          },
          "Stack 's': suggested_coo_buffer_size_per_device=33, rounded up to"
          " 48",
      ),
  )
  def test_values_that_cannot_be(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _call(**changes)

  @parameterized.named_parameters(
      ("tuple_of_features", {"features": ()}, "incompatible function"),
      (
          "float_ids",
          {"features": [np.zeros((4, 2))]},
          "Feature 'f': ids must be integers, got dtype float64. Convert them",
      ),
      (
          "ragged_float_ids",
          {"features": [converter_requests.ragged([[1.5]] * 4)]},
          "Feature 'f': ids must be integers, got dtype float64",
      ),
      (
          "complex_weights",
          {"feature_weights": [np.zeros((4, 2), np.complex64)]},
          "Feature 'f': weights must be real numbers, got dtype complex64",
      ),
      (
          "limit_that_is_no_integer",
          {
              "feature_specs": _spec_with(
                  **{_STACKED + ".max_ids_per_partition": 2.5}
              )
          },
          "Feature 'f': its max_ids_per_partition cannot be 2.5",
      ),
      (
          "rows_that_are_numbers",
          {"features": [converter_requests.ragged([1, 2, 3, 4])]},
          "Feature 'f': row 0 of its ids must be a 1-D array or a list .* got"
          " 1",
      ),
  )
  def test_objects_of_the_wrong_kind(self, changes, message):
    with self.assertRaisesRegex(TypeError, message):
      _call(**changes)

  def test_specs_without_a_stack_come_too_early(self):
    with self.assertRaisesRegex(
        RuntimeError, "Feature 'f': its table 'table_of_f' is not part of a"
    ):
      _call(feature_specs=_spec_with(**{_STACKED: None}))

  def test_minibatching_is_not_there_yet(self):
    with self.assertRaisesRegex(NotImplementedError, "enable_minibatching"):
      _call(enable_minibatching=True)

  def test_the_number_in_the_message_is_enough(self):
    limit = _STACKED + ".max_ids_per_partition"
    with self.assertRaises(ValueError) as raised:
      _call(feature_specs=_spec_with(**{limit: 1}))
    enough = int(re.search("at least (\\d+)", str(raised.exception))[1])
    _call(feature_specs=_spec_with(**{limit: enough}))


class InputTypesTest(parameterized.TestCase):
  """All spellings of one batch give the same buffers."""

  _IDS = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)
  _WEIGHTS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)

  def _assert_same_as_baseline(self, **changes):
    changes.setdefault("feature_weights", [self._WEIGHTS])
    expected = _call(feature_weights=[self._WEIGHTS])
    for a, b in zip(_call(**changes)[:4], expected[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])

  @parameterized.parameters(
      np.int8, np.uint16, np.uint32, np.int64, np.uint64, ">i4", ">i8"
  )
  def test_integer_types(self, dtype):
    self._assert_same_as_baseline(features=[self._IDS.astype(dtype)])
    self._assert_same_as_baseline(
        features=[converter_requests.ragged(list(self._IDS.astype(dtype)))],
        feature_weights=[converter_requests.ragged(list(self._WEIGHTS))],
    )

  @parameterized.parameters(np.float64, np.float16, np.int64, ">f4")
  def test_weight_types(self, dtype):
    self._assert_same_as_baseline(feature_weights=[self._WEIGHTS.astype(dtype)])
    self._assert_same_as_baseline(
        features=[converter_requests.ragged(list(self._IDS))],
        feature_weights=[
            converter_requests.ragged(list(self._WEIGHTS.astype(dtype)))
        ],
    )

  def test_strides(self):
    wide = np.full((8, 6), -1, np.int32)
    wide[::2, 1:5:3] = self._IDS
    self._assert_same_as_baseline(features=[wide[::2, 1:5:3]])
    self._assert_same_as_baseline(features=[np.asfortranarray(self._IDS)])
    self._assert_same_as_baseline(features=[self._IDS[::-1][::-1]])
    self._assert_same_as_baseline(
        features=[
            converter_requests.ragged(
                [row[::-1].copy()[::-1] for row in self._IDS]
            )
        ],
        feature_weights=[converter_requests.ragged(list(self._WEIGHTS))],
    )
    self._assert_same_as_baseline(
        features=[converter_requests.ragged(list(self._IDS[::-1]))[::-1]],
        feature_weights=[converter_requests.ragged(list(self._WEIGHTS))],
    )

  def test_misaligned_memory(self):
    misaligned = (
        np.frombuffer(b"x" + self._IDS.tobytes(), np.uint8)[1:]
        .view(np.int32)
        .reshape(4, 2)
    )
    self.assertFalse(misaligned.flags.aligned)
    self._assert_same_as_baseline(features=[misaligned])

  def test_ragged_rows_may_be_lists_and_mixed(self):
    self._assert_same_as_baseline(
        features=[
            converter_requests.ragged(
                [[0, 1], np.array([2, 3]), self._IDS[2], np.uint8([6, 7])]
            )
        ],
        feature_weights=[converter_requests.ragged(self._WEIGHTS.tolist())],
    )

  def test_empty_ragged_rows_may_be_of_any_type(self):
    row_pointers, *_ = _call(
        features=[
            converter_requests.ragged(
                [[], np.array([]), np.zeros(0, np.int32), ()]
            )
        ]
    )
    self.assertEqual(row_pointers["s"].tolist(), [0] * 16)

  def test_one_dimension_is_one_id_per_sample(self):
    ids = np.array([3, 1, 4, 1])
    a = _call(features=[ids])
    b = _call(features=[ids[:, None]])
    for x, y in zip(a[:4], b[:4]):
      np.testing.assert_array_equal(x["s"], y["s"])

  def test_input_is_not_written(self):
    ids = self._IDS.copy()
    ids.flags.writeable = False
    self._assert_same_as_baseline(features=[ids])


class ThreadsTest(parameterized.TestCase):

  def _large_request(self):
    rng = np.random.default_rng(7)
    features = [
        input_preprocessing.Feature(
            name=f"f{i}",
            ids=rng.integers(0, 5000, (4096, 3 + i), np.int32),
            weights=rng.random((4096, 3 + i), np.float32),
            vocabulary_size=5000,
            row_offset=4096 * i,
        )
        for i in range(3)
    ]
    stack = input_preprocessing.Stack(
        combiner="sqrtn",
        max_ids_per_partition=10000,
        max_unique_ids_per_partition=10000,
    )
    topology = layout.Topology(
        local_device_count=4, global_device_count=4, num_sc_per_device=2
    )
    return stack, features, topology

  def test_bytes_do_not_depend_on_the_number_of_threads(self):
    request = self._large_request()
    variable = "SPARSECORE_INPUT_PREPROCESSING_THREADS"
    with mock.patch.dict(os.environ, {variable: "1"}):
      expected = converter_requests.convert(*request)
    for value in ("2", "64", "0", "-1", "many", ""):
      with mock.patch.dict(os.environ, {variable: value}):
        converter_requests.assert_same(
            converter_requests.convert(*request), expected
        )

  def test_sixteen_python_threads_at_once(self):
    request = self._large_request()
    expected = converter_requests.convert(*request)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      for actual in pool.map(
          lambda _: converter_requests.convert(*request), range(48)
      ):
        converter_requests.assert_same(actual, expected)


class SizesTest(parameterized.TestCase):

  @parameterized.parameters((None, 10, 512), (1, 8, 32), (33, 8, 64))
  def test_buffer_size_takes_the_suggestion(self, suggestion, limit, cells):
    specs = _spec_with(
        **{
            _STACKED + ".max_ids_per_partition": limit,
            _STACKED + ".suggested_coo_buffer_size_per_device": suggestion,
        }
    )
    self.assertEqual(
        converter.compute_coo_buffer_size_per_device(specs, 2, 4), {"s": cells}
    )

  def test_sizes_of_nothing_are_errors(self):
    with self.assertRaisesRegex(ValueError, "num_sc_per_device"):
      converter.compute_row_pointers_size_per_device(1, 0)
    with self.assertRaisesRegex(ValueError, "max_ids_per_partition"):
      converter.compute_theoretical_max_coo_buffer_size(0, 1, 1)

  def test_stats_are_read_only(self):
    stats = converter.SparseDenseMatmulInputStats()
    self.assertEqual(stats.dropped_id_count, {})
    with self.assertRaises(AttributeError):
      stats.dropped_id_count = {}


if __name__ == "__main__":
  absltest.main()
