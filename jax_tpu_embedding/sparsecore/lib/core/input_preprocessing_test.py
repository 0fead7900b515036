# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The converter agrees with its reference, and refuses what it must."""

from __future__ import annotations

from collections.abc import Sequence
import concurrent.futures
import dataclasses
import os
import re
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
import numpy as np

hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, max_examples=200
)
hypothesis.settings.load_profile("deterministic")

_BUFFERS = ("row_pointers", "embedding_ids", "sample_ids", "gains")


def _spec(
    feature: input_preprocessing.Feature,
    stack: input_preprocessing.Stack,
    stack_name: str = "s",
) -> types.SimpleNamespace:
  """What the converter reads of a FeatureSpec."""
  return types.SimpleNamespace(
      name=feature.name,
      input_shape=(len(feature.ids), 1),
      _id_transformation=types.SimpleNamespace(
          row_offset=feature.row_offset,
          col_offset=feature.col_offset,
          col_shift=feature.col_shift,
      ),
      table_spec=types.SimpleNamespace(
          name=f"table_of_{feature.name}",
          vocabulary_size=feature.vocabulary_size,
          setting_in_stack=types.SimpleNamespace(stack_name=stack_name),
          stacked_table_spec=types.SimpleNamespace(**dataclasses.asdict(stack)),
      ),
  )


def _rows(rows: Sequence) -> np.ndarray:
  array = np.empty(len(rows), object)
  for i, row in enumerate(rows):
    array[i] = row
  return array


def _convert(
    stack: input_preprocessing.Stack,
    features: Sequence[input_preprocessing.Feature],
    topology: layout.Topology,
    allow_id_dropping: bool = False,
) -> input_preprocessing.ConvertedStack:
  """The converter behind the interface of convert_stack."""
  weights = [feature.weights for feature in features]
  *buffers, _, stats = converter.preprocess_sparse_dense_matmul_input(
      [feature.ids for feature in features],
      None if weights[0] is None else weights,
      [_spec(feature, stack) for feature in features],
      topology.local_device_count,
      topology.global_device_count,
      num_sc_per_device=topology.num_sc_per_device,
      has_leading_dimension=True,
      allow_id_dropping=allow_id_dropping,
  )
  return input_preprocessing.ConvertedStack(
      **{name: by_stack["s"] for name, by_stack in zip(_BUFFERS, buffers)},
      max_ids_per_partition=stats.max_ids_per_partition["s"],
      max_unique_ids_per_partition=stats.max_unique_ids_per_partition["s"],
      required_buffer_size_per_sc=stats.required_buffer_sizes["s"],
      dropped_id_count=stats.dropped_id_count["s"],
  )


def _assert_same(actual, expected):
  for field in dataclasses.fields(expected):
    a, b = getattr(actual, field.name), getattr(expected, field.name)
    if field.name == "gains":
      # Any NaN is as good as another, but for padding.
      is_padding = expected.sample_ids == constants.PADDING_VALUE
      assert (a.view(np.uint32)[is_padding] == 0x7FC00000).all()
      both_nan = np.isnan(a) & np.isnan(b)
      a, b = (np.where(both_nan, 0, x).view(np.uint32) for x in (a, b))
    np.testing.assert_array_equal(a, b, err_msg=field.name, strict=True)


@st.composite
def _requests(draw):
  """A stack, its features in any order, and a topology."""
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  local_device_count = draw(st.integers(1, 3))
  topology = layout.Topology(
      local_device_count=local_device_count,
      global_device_count=local_device_count * draw(st.integers(1, 3)),
      num_sc_per_device=draw(st.integers(1, 5)),
  )
  num_local_scs = local_device_count * topology.num_sc_per_device
  has_weights = draw(st.booleans())
  id_type = draw(st.sampled_from((np.int32, np.int64)))
  ragged = draw(st.booleans())
  row_offset = col_offset = 0
  features = []
  for f in range(draw(st.integers(1, 3))):
    samples_per_sc = draw(st.integers(0, 4))
    vocabulary_size = draw(st.sampled_from((1, 3, 17, 1000, 10**6)))
    num_samples = samples_per_sc * num_local_scs
    lengths = (
        rng.integers(0, 9, num_samples)
        if ragged
        else np.full(num_samples, draw(st.integers(0, 6)))
    )
    # Squared, so that small ids are more frequent.
    ids = [
        (rng.random(n) ** 2 * vocabulary_size).astype(id_type) for n in lengths
    ]
    weights = [
        np.where(
            rng.random(n) < 0.1, 0, rng.normal(size=n).astype(np.float32)
        ).astype(np.float32)
        for n in lengths
    ]
    if not ragged:
      shape = (num_samples, lengths[0] if num_samples else 0)
      ids = np.array(ids, id_type).reshape(shape)
      weights = np.array(weights, np.float32).reshape(shape)
    features.append(
        input_preprocessing.Feature(
            name=f"f{f}",
            ids=_rows(ids) if ragged else ids,
            weights=(_rows(weights) if ragged else weights)
            if has_weights
            else None,
            vocabulary_size=vocabulary_size,
            row_offset=row_offset,
            col_offset=col_offset,
            col_shift=draw(st.integers(0, 2 * topology.num_scs)),
        )
    )
    row_offset += samples_per_sc * topology.num_scs
    col_offset += layout.round_up(vocabulary_size, 8 * topology.num_scs)
  stack = input_preprocessing.Stack(
      combiner=draw(st.sampled_from(input_preprocessing.COMBINERS)),
      max_ids_per_partition=draw(st.sampled_from((1, 3, 8, 200))),
      max_unique_ids_per_partition=draw(st.sampled_from((1, 2, 8, 200))),
  )
  most = layout.max_coo_cells_per_device(stack.max_ids_per_partition, topology)
  if draw(st.booleans()):
    stack = dataclasses.replace(
        stack,
        suggested_coo_buffer_size_per_device=draw(
            st.integers(1, min(most, 64 * topology.num_sc_per_device))
        ),
    )
  return stack, draw(st.permutations(features)), topology


class ReferenceTest(absltest.TestCase):

  @hypothesis.given(_requests())
  def test_converter_gives_the_bytes_of_the_reference(self, request):
    stack, features, topology = request
    expected = input_preprocessing.convert_stack(
        stack, features, topology, allow_id_dropping=True
    )
    _assert_same(
        _convert(stack, features, topology, allow_id_dropping=True), expected
    )

  @hypothesis.given(_requests())
  def test_both_refuse_to_drop_the_same_batches(self, request):
    stack, features, topology = request
    dropped = input_preprocessing.convert_stack(
        stack, features, topology, allow_id_dropping=True
    ).dropped_id_count
    if dropped:
      for convert in (_convert, input_preprocessing.convert_stack):
        with self.assertRaises(ValueError):
          convert(stack, features, topology)
    else:
      _assert_same(
          _convert(stack, features, topology),
          input_preprocessing.convert_stack(stack, features, topology),
      )

  def test_the_worked_example_of_two_sparse_cores(self):
    converted = input_preprocessing.convert_stack(
        input_preprocessing.Stack(
            combiner="mean",
            max_ids_per_partition=8,
            max_unique_ids_per_partition=8,
        ),
        [
            input_preprocessing.Feature(
                name="f",
                ids=[[0, 0, 3], [5, 2], [], [1]],
                vocabulary_size=6,
            )
        ],
        layout.Topology(
            local_device_count=1, global_device_count=1, num_sc_per_device=2
        ),
    )
    np.testing.assert_array_equal(
        converted.row_pointers, [[2, 10] + [16] * 6 + [0, 1] + [8] * 6]
    )
    # Even ids live on SparseCore 0, odd ones on 1.
    self.assertEqual(converted.embedding_ids[0, :2].tolist(), [0, 1])
    self.assertEqual(converted.sample_ids[0, :2].tolist(), [0, 1])
    np.testing.assert_allclose(converted.gains[0, :2], [2 / 3, 1 / 2])
    self.assertEqual(converted.embedding_ids[0, 8:10].tolist(), [1, 2])
    np.testing.assert_allclose(converted.gains[0, 8:10], [1 / 3, 1 / 2])
    self.assertEqual(converted.required_buffer_size_per_sc.tolist(), [16, 8])


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
      "feature_specs": [_spec(feature, stack)],
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
              "features": [_rows([[1]] * 4)],
              "feature_weights": [_rows([[1.0]] * 3)],
          },
          "Feature 'f': ids have 4 rows and weights 3",
      ),
      (
          "a_short_weight_row",
          {
              "features": [_rows([[1], [2], [3, 4], [5]])],
              "feature_weights": [_rows([[1.0]] * 4)],
          },
          "Feature 'f': row 2 has 2 ids and 1 weights",
      ),
      (
          "dense_weights_of_ragged_ids",
          {
              "features": [_rows([[1]] * 4)],
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
          {"features": [_rows([[1.5]] * 4)]},
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
          {"features": [_rows([1, 2, 3, 4])]},
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
        features=[_rows(list(self._IDS.astype(dtype)))],
        feature_weights=[_rows(list(self._WEIGHTS))],
    )

  @parameterized.parameters(np.float64, np.float16, np.int64, ">f4")
  def test_weight_types(self, dtype):
    self._assert_same_as_baseline(feature_weights=[self._WEIGHTS.astype(dtype)])
    self._assert_same_as_baseline(
        features=[_rows(list(self._IDS))],
        feature_weights=[_rows(list(self._WEIGHTS.astype(dtype)))],
    )

  def test_strides(self):
    wide = np.full((8, 6), -1, np.int32)
    wide[::2, 1:5:3] = self._IDS
    self._assert_same_as_baseline(features=[wide[::2, 1:5:3]])
    self._assert_same_as_baseline(features=[np.asfortranarray(self._IDS)])
    self._assert_same_as_baseline(features=[self._IDS[::-1][::-1]])
    self._assert_same_as_baseline(
        features=[_rows([row[::-1].copy()[::-1] for row in self._IDS])],
        feature_weights=[_rows(list(self._WEIGHTS))],
    )
    self._assert_same_as_baseline(
        features=[_rows(list(self._IDS[::-1]))[::-1]],
        feature_weights=[_rows(list(self._WEIGHTS))],
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
            _rows([[0, 1], np.array([2, 3]), self._IDS[2], np.uint8([6, 7])])
        ],
        feature_weights=[_rows(self._WEIGHTS.tolist())],
    )

  def test_empty_ragged_rows_may_be_of_any_type(self):
    row_pointers, *_ = _call(
        features=[_rows([[], np.array([]), np.zeros(0, np.int32), ()])]
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
      expected = _convert(*request)
    for value in ("2", "64", "0", "-1", "many", ""):
      with mock.patch.dict(os.environ, {variable: value}):
        _assert_same(_convert(*request), expected)

  def test_sixteen_python_threads_at_once(self):
    request = self._large_request()
    expected = _convert(*request)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
      for actual in pool.map(lambda _: _convert(*request), range(48)):
        _assert_same(actual, expected)


class SizesTest(parameterized.TestCase):

  @parameterized.parameters(
      # global devices, SparseCores, minibatching, row pointers, cells
      (1, 2, False, 16, 64),
      (1, 4, False, 32, 256),
      (2, 4, False, 32, 512),
      (4, 4, False, 64, 1024),
      (1, 2, True, 1024, 4096),
      (2, 4, True, 2048, 32768),
  )
  def test_sizes(self, devices, num_sc, minibatching, row_pointers, cells):
    self.assertEqual(
        converter.compute_row_pointers_size_per_device(
            devices, num_sc, minibatching
        ),
        row_pointers,
    )
    self.assertEqual(
        converter.compute_theoretical_max_coo_buffer_size(
            10, devices, num_sc, enable_minibatching=minibatching
        ),
        cells,
    )

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
