# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Policies for ids and weights, mixed weights, and stacking strategies."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import feature_samples
from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_calls
from jax_tpu_embedding.sparsecore.lib.core.testing import converter_requests
import numpy as np

_TOPOLOGY = layout.Topology(
    local_device_count=1, global_device_count=2, num_sc_per_device=2
)
_STACK = input_preprocessing.Stack(
    combiner="mean", max_ids_per_partition=16, max_unique_ids_per_partition=16
)


def _feature(ids, **changes):
  return input_preprocessing.Feature(
      **({"name": "f", "ids": ids, "vocabulary_size": 8} | changes)
  )


def _rows(*rows, dtype=np.int64):
  return converter_requests.ragged([np.array(row, dtype) for row in rows])


def _weights(*rows):
  return _rows(*rows, dtype=np.float32)


class PoliciesTest(parameterized.TestCase):

  def _assert_reads(self, feature, as_if, num_dropped=0):
    """Both the converter and its reference read `feature` like `as_if`."""
    as_if = dataclasses.replace(
        feature, out_of_range_ids="error", non_finite_weights="error", **as_if
    )
    expected = dataclasses.replace(
        input_preprocessing.convert_stack(_STACK, [as_if], _TOPOLOGY),
        dropped_id_count=num_dropped,
    )
    for convert in (
        converter_requests.convert,
        input_preprocessing.convert_stack,
    ):
      converter_requests.assert_same(
          convert(_STACK, [feature], _TOPOLOGY), expected
      )

  @parameterized.named_parameters(
      ("drop", "drop", _rows([1], [], [7, 0], [2]), 4),
      ("clamp", "clamp", _rows([1, 0], [7], [7, 0], [2, 0, 7]), 0),
      ("modulo", "modulo", _rows([1, 7], [0], [7, 0], [2, 0, 5]), 0),
  )
  def test_ids_out_of_range(self, policy, as_if, num_dropped):
    ids = _rows([1, -1], [8], [7, 0], [2, -(2**40), 2**40 + 5])
    self._assert_reads(
        _feature(ids, out_of_range_ids=policy), {"ids": as_if}, num_dropped
    )

  @parameterized.named_parameters(
      ("drop", "drop", [1, 2, 3], [[1], [], [2], [3]], 3),
      (
          "clamp",
          "clamp",
          None,
          [[1, 3.4028235e38], [-3.4028235e38], [2, 0], [3]],
          0,
      ),
  )
  def test_weights_that_are_not_finite(self, policy, ids, weights, num_dropped):
    ids = (
        _rows([1, 2], [3], [4, 5], [6])
        if ids is None
        else _rows([1], [], [4], [6])
    )
    self._assert_reads(
        _feature(
            _rows([1, 2], [3], [4, 5], [6]),
            weights=_weights([1, np.inf], [-np.inf], [2, np.nan], [3]),
            non_finite_weights=policy,
        ),
        {"ids": ids, "weights": _weights(*weights)},
        num_dropped,
    )

  def test_weights_may_be_kept_as_they_are(self):
    feature = _feature(
        _rows([1], [2], [3], [4]),
        weights=_weights([np.inf], [-np.inf], [np.nan], [1]),
        non_finite_weights="keep",
    )
    stack = dataclasses.replace(_STACK, combiner="sum")
    converted = converter_requests.convert(stack, [feature], _TOPOLOGY)
    used = converted.sample_ids != constants.PADDING_VALUE
    np.testing.assert_array_equal(
        np.sort(converted.gains[used]), [-np.inf, 1, np.inf, np.nan]
    )
    converter_requests.assert_same(
        converted,
        input_preprocessing.convert_stack(stack, [feature], _TOPOLOGY),
    )

  @parameterized.product(
      convert=(converter_requests.convert, input_preprocessing.convert_stack),
      case=(
          ("mean", [[0, 0], [1, 0]], [0, 0, 0, 1]),
          ("sqrtn", [[0, 0], [3, 4]], [0, 0, 0.6, 0.8]),
          # The sum is zero, and that of the squares is not.
          ("mean", [[1, -1], [1, 3]], [0, 0, 0.25, 0.75]),
          # float32 has no number as small as the sum of these squares.
          ("sqrtn", [[1e-30, 1e-30], [0, 2]], [0, 0, 0, 1]),
          ("sum", [[0, 0], [1, -1]], [0, 0, -1, 1]),
      ),
  )
  def test_where_the_divisor_is_zero_gains_are(self, convert, case):
    combiner, weights, expected = case
    converted = convert(
        dataclasses.replace(_STACK, combiner=combiner),
        [
            _feature(
                np.array([[0, 1], [2, 3], [4, 5], [6, 7]]),
                weights=np.array(weights * 2, np.float32),
            )
        ],
        _TOPOLOGY,
    )
    used = converted.sample_ids != constants.PADDING_VALUE
    np.testing.assert_allclose(
        np.sort(converted.gains[used]), np.sort(expected * 2), rtol=1e-6
    )

  @parameterized.product(
      convert=(converter_requests.convert, input_preprocessing.convert_stack),
      case=(("mean", 3e38, "sum"), ("sqrtn", 1e20, "sum of squares")),
  )
  def test_where_the_divisor_overflows(self, convert, case):
    combiner, large, what = case
    stack = dataclasses.replace(_STACK, combiner=combiner)
    feature = _feature(
        np.array([[0, 1], [2, 3], [4, 5], [6, 7]]),
        weights=np.array([[1, 1], [1, 1], [large] * 2, [1, 1]], np.float32),
    )
    message = "Feature 'f': "
    if convert is converter_requests.convert:
      message += f"sample 2 has weights whose {what} is more than float32 can"
    with self.assertRaisesRegex(ValueError, message):
      convert(stack, [feature], _TOPOLOGY)
    for policy in ("drop", "clamp", "keep"):
      converted = convert(
          stack,
          [dataclasses.replace(feature, non_finite_weights=policy)],
          _TOPOLOGY,
      )
      self.assertEqual(converted.dropped_id_count, 0)
      used = converted.sample_ids != constants.PADDING_VALUE
      self.assertEqual((converted.gains[used] == 0).sum(), 2)

  @parameterized.parameters(np.nan, 3e38)
  def test_the_weight_of_a_dropped_id_does_not_matter(self, weight):
    self._assert_reads(
        _feature(
            _rows([1, 9], [2], [3], [4]),
            weights=_weights([2, weight], [1], [1], [1]),
            out_of_range_ids="drop",
        ),
        {
            "ids": _rows([1], [2], [3], [4]),
            "weights": _weights([2], [1], [1], [1]),
        },
        num_dropped=1,
    )

  @parameterized.parameters(np.uint32, np.uint64)
  def test_large_unsigned_ids_are_not_negative(self, dtype):
    largest = np.iinfo(dtype).max
    ids = np.array([[largest], [largest], [1], [2]], dtype)
    self._assert_reads(
        _feature(ids, out_of_range_ids="clamp"),
        {"ids": np.array([[7], [7], [1], [2]])},
    )
    self._assert_reads(
        _feature(ids, out_of_range_ids="modulo", vocabulary_size=7),
        {"ids": np.array([[int(largest) % 7]] * 2 + [[1], [2]])},
    )

  @parameterized.named_parameters(
      (
          "id",
          {"features": [np.array([[0], [1], [8], [2]])]},
          "Feature 'f': sample 2 has id 8 at position 0, outside of \\[0, 8\\), the"
          " range of its table. Map ids into the range, raise vocabulary_size, or"
          " set the feature's out_of_range_ids to 'drop', 'clamp' or 'modulo'",
      ),
      (
          "weight",
          {"feature_weights": [np.array([[1, 1]] * 3 + [[1, np.nan]])]},
          "Feature 'f': sample 3 has weight nan at position 1, and weights must be"
          " finite. Correct it, or set the feature's non_finite_weights to 'drop',"
          " 'clamp' or 'keep'",
      ),
  )
  def test_errors_name_the_policy(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      converter_calls.call(**changes)


class MixedWeightsTest(parameterized.TestCase):

  @parameterized.parameters(*input_preprocessing.COMBINERS)
  def test_no_weights_are_weights_of_one(self, combiner):
    stack = dataclasses.replace(_STACK, combiner=combiner)
    ids = _rows([1, 2, 2], [3], [], [4, 5, 6, 7, 1])
    ones = _weights([1, 1, 1], [1], [], [1] * 5)
    weights = _weights([1, 3, 0.3], [2], [], [4, 5, 6, 7, 1])
    weighted = _feature(ids, weights=weights)
    with_ones = _feature(ids, name="g", weights=ones, row_offset=8)
    without = dataclasses.replace(with_ones, weights=None)
    expected = converter_requests.convert(
        stack, [weighted, with_ones], _TOPOLOGY
    )
    for convert in (
        converter_requests.convert,
        input_preprocessing.convert_stack,
    ):
      converter_requests.assert_same(
          convert(stack, [weighted, without], _TOPOLOGY), expected
      )


class StrategyTest(parameterized.TestCase):

  def _request(self, num_samples, seed=0):
    """Features with batches of these sizes on 2 of 4 devices."""
    rng = np.random.default_rng(seed)
    topology = layout.Topology(
        local_device_count=2, global_device_count=4, num_sc_per_device=4
    )
    features = []
    row_offset = col_offset = 0
    for f, n in enumerate(num_samples):
      lengths = rng.integers(0, 5, n)
      features.append(
          _feature(
              converter_requests.ragged(
                  [rng.integers(0, 40, k) for k in lengths]
              ),
              name=f"f{f}",
              weights=converter_requests.ragged(
                  [rng.random(k, np.float32) for k in lengths]
              ),
              vocabulary_size=40,
              row_offset=row_offset,
              col_offset=col_offset,
              col_shift=3 * f,
          )
      )
      row_offset += n * 2  # global batches
      col_offset += 128
    return _STACK, features, topology

  def _entries(self, converted, features, topology, strategy):
    """(device, feature, its sample, partition, row, gain) of every entry."""
    entries = []
    regions = converted.gains.shape[1] // topology.num_sc_per_device
    for local_sc in range(
        topology.local_device_count * topology.num_sc_per_device
    ):
      device, sc = divmod(local_sc, topology.num_sc_per_device)
      samples = {
          sample_id: (feature.name, i)
          for feature, i, sample_id in feature_samples.samples_of(
              features, topology, local_sc, strategy
          )
      }
      pointers = converted.row_pointers[device].reshape(
          topology.num_sc_per_device, -1
      )[sc]
      begin = 0
      for partition in range(topology.num_scs):
        for cell in range(begin, pointers[partition]):
          at = device, sc * regions + cell
          entries.append(
              (
                  device,
                  *samples[converted.sample_ids[at]],
                  partition,
                  converted.embedding_ids[at],
                  converted.gains[at],
              )
          )
        begin = layout.round_up(pointers[partition], 8)
    return sorted(entries)

  def test_both_strategies_give_each_device_the_same_entries(self):
    request = self._request((16, 8, 24))
    entries = {
        strategy: self._entries(
            converter_requests.convert(
                *request, feature_stacking_strategy=strategy
            ),
            *request[1:],
            strategy,
        )
        for strategy in raw_ids.FEATURE_STACKING_STRATEGIES
    }
    self.assertGreater(len(entries["SPLIT_THEN_STACK"]), 50)
    self.assertEqual(*entries.values())

  @parameterized.parameters((16, 8, 24), (2, 14), (6, 6, 4), (8,), (0, 8))
  def test_stacking_first_gives_the_bytes_of_the_reference(self, *num_samples):
    request = self._request(num_samples, seed=sum(num_samples))
    keywords = {"feature_stacking_strategy": "STACK_THEN_SPLIT"}
    converter_requests.assert_same(
        converter_requests.convert(*request, **keywords),
        input_preprocessing.convert_stack(*request, **keywords),
    )

  def test_stacking_first_needs_whole_parts_of_the_stack_only(self):
    stack, features, topology = self._request((6, 10))
    with self.assertRaisesRegex(
        ValueError, "Feature 'f0': has 6 samples, which .* 2 \\* 4 SparseCores"
    ):
      converter_requests.convert(stack, features, topology)
    converter_requests.convert(
        stack, features, topology, feature_stacking_strategy="STACK_THEN_SPLIT"
    )

  @parameterized.named_parameters(
      (
          "samples",
          (6, 8),
          slice(None),
          "Stack 's0': its features have 7 samples per device, which"
          " num_sc_per_device = 4 SparseCores cannot share evenly",
      ),
      (
          "devices",
          (7, 9),
          slice(None),
          "Feature 'f0': has 7 samples, which local_device_count = 2 devices"
          " cannot share evenly",
      ),
      (
          "missing_feature",
          (8, 8),
          slice(1, None),
          "Stack 's0': feature 'f1' is at row_offset=16, and the features before"
          " it have 0 samples on all devices. With STACK_THEN_SPLIT, pass all",
      ),
  )
  def test_batches_that_cannot_be_stacked_first(self, sizes, which, message):
    stack, features, topology = self._request(sizes)
    with self.assertRaisesRegex(ValueError, message):
      converter_requests.convert(
          stack,
          features[which],
          topology,
          feature_stacking_strategy="STACK_THEN_SPLIT",
      )


if __name__ == "__main__":
  absltest.main()
