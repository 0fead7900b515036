# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the native converter refuses, and the sizes that it computes.

Its forms of input, policies and threads have tests of their own beside this.
"""

from __future__ import annotations

import re

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_calls
import numpy as np

_STACKED = "table_spec.stacked_table_spec"


class ErrorsTest(parameterized.TestCase):

  def test_the_baseline_is_fine(self):
    row_pointers, *_ = converter_calls.call()
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
          "uneven_batch",
          {"features": [np.zeros((3, 2), np.int32)]},
          "Feature 'f': has 3 samples, which .* 1 \\* 2 SparseCores cannot",
      ),
      (
          "enormous_samples_of_no_batch",
          {
              "features": [np.zeros((0, 2**32), np.int32)],
              "feature_weights": [np.zeros((0, 2**32), np.float32)],
          },
          "Feature 'f': its samples have 4294967296 ids each, and a sample can",
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
          "policy_of_ids",
          {"feature_specs": converter_calls.spec_with(out_of_range_ids="wrap")},
          "Feature 'f': out_of_range_ids must be one of 'error', 'drop',"
          " 'clamp', 'modulo', got 'wrap'",
      ),
      (
          "policy_of_weights",
          {"feature_specs": converter_calls.spec_with(non_finite_weights="")},
          "Feature 'f': non_finite_weights must be one of 'error', 'drop',"
          " 'clamp', 'keep', got ''",
      ),
      (
          "number_of_threads",
          {"num_threads": 0},
          "num_threads must be positive or None, got 0",
      ),
      (
          "combiner",
          {
              "feature_specs": converter_calls.spec_with(
                  **{_STACKED + ".combiner": "max"}
              )
          },
          "Stack 's': unknown combiner 'max'; choose 'sum', 'mean' or 'sqrtn'",
      ),
      (
          "limit_of_ids",
          {
              "feature_specs": converter_calls.spec_with(
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
              "feature_specs": converter_calls.spec_with(
                  **{_STACKED + ".max_unique_ids_per_partition": 1}
              )
          },
          "2 distinct ids for partition 0, and max_unique_ids_per_partition is"
          " 1. Raise it to at least 2",
      ),
      (
          "buffer_too_small",
          {
              "feature_specs": converter_calls.spec_with(
                  **{_STACKED + ".suggested_coo_buffer_size_per_device": 16}
              )
          },
          "SparseCore 0 of local device 0 needs 16 cells and has 8.*Raise"
          " suggested_coo_buffer_size_per_device to at least 32",
      ),
      (
          "suggestion_above_the_theoretical_most",
          {
              "feature_specs": converter_calls.spec_with(
                  **{_STACKED + ".suggested_coo_buffer_size_per_device": 33}
              )
          },
          "Stack 's': suggested_coo_buffer_size_per_device=33, rounded up to"
          " 48",
      ),
  )
  def test_values_that_cannot_be(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      converter_calls.call(**changes)

  @parameterized.named_parameters(
      (
          "tuple_of_features",
          {"features": ()},
          r"^features must be a list with one element per feature, got \(\)\.$",
      ),
      (
          "weights",
          {"feature_weights": 1},
          "feature_weights must be a list .* 1",
      ),
      (
          "specs",
          {"feature_specs": None},
          "feature_specs must be a list .* None",
      ),
      *(
          (name, {name: value}, f"^{name} must be {expected}, got {value!r}")
          for name, value, expected in (
              ("local_device_count", 1.5, "an integer"),
              ("global_device_count", "1", "an integer"),
              ("num_sc_per_device", None, "an integer"),
              ("sharding_strategy", 3, "a ShardingStrategy"),
              ("has_leading_dimension", "yes", "a bool"),
              ("allow_id_dropping", "no", "a bool"),
              ("batch_number", 2**31, r"an integer below 2\*\*31"),
              ("enable_minibatching", "no", "a bool"),
              ("feature_stacking_strategy", 0, "a FeatureStackingStrategy"),
              ("num_threads", 2.5, "an integer or None"),
              ("output_pool", 1, "an OutputPool or None"),
          )
      ),
      (
          "limit_that_is_no_integer",
          {
              "feature_specs": converter_calls.spec_with(
                  **{_STACKED + ".max_ids_per_partition": 2.5}
              )
          },
          "Feature 'f': its max_ids_per_partition cannot be 2.5",
      ),
  )
  def test_objects_of_the_wrong_kind(self, changes, message):
    with self.assertRaisesRegex(TypeError, message):
      converter_calls.call(**changes)

  def test_specs_may_lack_policies(self):
    specs = converter_calls.spec_with()
    del specs[0].out_of_range_ids, specs[0].non_finite_weights
    converter_calls.call(feature_specs=specs)

  def test_specs_without_a_stack_come_too_early(self):
    with self.assertRaisesRegex(
        RuntimeError, "Feature 'f': its table 'table_of_f' is not part of a"
    ):
      converter_calls.call(
          feature_specs=converter_calls.spec_with(**{_STACKED: None})
      )

  def test_the_number_in_the_message_is_enough(self):
    limit = _STACKED + ".max_ids_per_partition"
    with self.assertRaises(ValueError) as raised:
      converter_calls.call(
          feature_specs=converter_calls.spec_with(**{limit: 1})
      )
    enough = int(re.search("at least (\\d+)", str(raised.exception))[1])
    converter_calls.call(
        feature_specs=converter_calls.spec_with(**{limit: enough})
    )


class FeatureSpecsTest(absltest.TestCase):

  def test_specs_are_as_they_were_read(self):
    specs = converter_calls.spec_with()
    read = converter.FeatureSpecs(specs)
    specs[0].table_spec.stacked_table_spec.max_ids_per_partition = 1
    with self.assertRaises(ValueError):
      converter_calls.call(feature_specs=specs)
    expected = converter_calls.call()
    for _ in range(2):  # nothing is taken out of them
      actual = converter_calls.call(feature_specs=read)
      for a, b in zip(actual[:4], expected[:4]):
        np.testing.assert_array_equal(a["s"], b["s"])

  def test_sparse_tensors_have_them_too(self):
    ids = np.arange(8)
    indices = np.stack([ids // 2, ids % 2], axis=1)
    specs = converter_calls.spec_with()
    of_list, of_specs = (
        converter.preprocess_sparse_dense_matmul_sparse_coo_input(
            [indices], [ids], [np.array([4, 2])], s, 1, 1, num_sc_per_device=2
        )
        for s in (specs, converter.FeatureSpecs(specs))
    )
    for a, b in zip(of_list[:4], of_specs[:4]):
      np.testing.assert_array_equal(a["s"], b["s"])

  def test_features_of_another_number_are_an_error(self):
    read = converter.FeatureSpecs(converter_calls.spec_with() * 2)
    with self.assertRaisesRegex(
        ValueError, "features has 1 elements and feature_specs 2. Pass one"
    ):
      converter_calls.call(feature_specs=read)

  def test_what_is_no_spec_is_an_error_when_it_is_read(self):
    with self.assertRaises(AttributeError):
      converter.FeatureSpecs([None])
    with self.assertRaises(TypeError):
      converter.FeatureSpecs(None)


class SizesTest(parameterized.TestCase):

  @parameterized.parameters((None, 10, 512), (1, 8, 32), (33, 8, 64))
  def test_buffer_size_takes_the_suggestion(self, suggestion, limit, cells):
    specs = converter_calls.spec_with(
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
    for size in (0, 2**31, 2**62):
      with self.assertRaisesRegex(
          ValueError, rf"max_ids_per_partition must be in .*got {size}\."
      ):
        converter.compute_theoretical_max_coo_buffer_size(size, 1, 4)

  def test_stats_are_read_only(self):
    stats = converter.SparseDenseMatmulInputStats()
    self.assertEqual(stats.dropped_id_count, {})
    with self.assertRaises(AttributeError):
      stats.dropped_id_count = {}


if __name__ == "__main__":
  absltest.main()
