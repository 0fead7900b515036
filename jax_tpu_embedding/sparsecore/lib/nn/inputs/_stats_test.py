# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import types

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _stats
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
import numpy as np


def stats(**fields):
  baseline = dict(max_ids_per_partition={}, max_unique_ids_per_partition={})
  return _stats.SparseDenseMatmulInputStats(**(baseline | fields))


def features(*table_names):
  specs = [
      embedding_spec.FeatureSpec(
          name=f"f_{name}",
          table_spec=embedding_spec.TableSpec(
              name=name,
              vocabulary_size=32,
              embedding_dim=8,
              optimizer=embedding_spec.SGDOptimizerSpec(),
          ),
          input_shape=(16, 1),
          output_shape=(16, 8),
      )
      for name in table_names
  ]
  _plan.prepare_feature_specs_for_training(specs, 1, 2)
  return specs


class StatsTest(parameterized.TestCase):

  @parameterized.parameters(
      ([10, 20, 30, 40], None, 160),
      ([10, 20, 30, 40], 4, 160),
      ([10, 20, 30, 40], 2, 80),
      (7, None, 7),
  )
  def test_required_buffer_size(self, per_sc, num_sc, expected):
    got = stats(required_buffer_size_per_sc={"t": np.array(per_sc)})
    self.assertEqual(
        got.get_required_buffer_size_per_device("t", num_sc), expected
    )

  def test_required_buffer_size_of_an_unknown_stack_is_none(self):
    self.assertIsNone(stats().get_required_buffer_size_per_device("t"))

  def test_set_required_buffer_size(self):
    got = stats()
    got.set_required_buffer_size_per_device("t", 160, 4)
    np.testing.assert_array_equal(
        got.required_buffer_size_per_sc["t"], [40] * 4
    )
    got.set_required_buffer_size_per_device("t", 80)
    np.testing.assert_array_equal(
        got.required_buffer_size_per_sc["t"], [20] * 4
    )

  def test_required_buffer_size_includes_the_alignment_of_minibatches(self):
    got = stats(
        required_buffer_size_per_sc={"t": np.array([16, 40])},
        minibatch_alignment_per_sc={"t": np.array([32, 16])},
    )
    self.assertEqual(got.get_required_buffer_size_per_device("t"), 56 * 2)
    got.set_required_buffer_size_per_device("t", 80)
    self.assertEqual(got.get_required_buffer_size_per_device("t"), 80)

  def test_set_needs_the_number_of_sparsecores(self):
    with self.assertRaisesRegex(
        ValueError, "num_sc_per_device must be provided.*'t'"
    ):
      stats().set_required_buffer_size_per_device("t", 160)

  def test_is_a_pytree_of_its_arrays(self):
    got = stats(
        max_ids_per_partition={"t": np.array([1, 5])}, id_drop_counters={"t": 3}
    )
    reduced = jax.tree.map(np.max, got)
    self.assertEqual(reduced.max_ids_per_partition, {"t": 5})
    self.assertEqual(reduced.id_drop_counters, {"t": 3})

  def test_buffers_of_several_batches_are_those_of_the_largest(self):
    stats = _stats.SparseDenseMatmulInputStats(
        {}, {}, {"t": np.array([[8, 16], [24, 8], [8, 8]])}
    )
    self.assertEqual(stats.get_required_buffer_size_per_device("t"), 48)
    self.assertEqual(stats.get_required_buffer_size_per_device("t", 4), 96)

  def test_the_four_of_the_reference_may_be_given_by_position(self):
    got = _stats.SparseDenseMatmulInputStats(
        {"t": 1}, {"t": 2}, {"t": 3}, {"t": 4}
    )
    self.assertEqual(
        got,
        stats(
            max_ids_per_partition={"t": 1},
            max_unique_ids_per_partition={"t": 2},
            required_buffer_size_per_sc={"t": 3},
            id_drop_counters={"t": 4},
        ),
    )

  def test_from_cc_takes_every_member(self):
    native = types.SimpleNamespace(
        max_ids_per_partition={"t": 1},
        max_unique_ids_per_partition={"t": 2},
        required_buffer_sizes={"t": 3},
        dropped_id_count={"t": 4},
    )
    expected = stats(
        max_ids_per_partition={"t": 1},
        max_unique_ids_per_partition={"t": 2},
        required_buffer_size_per_sc={"t": 3},
        id_drop_counters={"t": 4},
    )
    from_cc = _stats.SparseDenseMatmulInputStats.from_cc
    self.assertEqual(from_cc(native), expected)
    native.minibatch_alignment = {"t": 5}
    self.assertEqual(
        from_cc(native), expected.replace(minibatch_alignment_per_sc={"t": 5})
    )


class UpdatePreprocessingParametersTest(absltest.TestCase):

  def test_takes_the_largest_and_keeps_what_is_not_mentioned(self):
    specs = features("t1", "t2")
    _stats.update_preprocessing_parameters(
        specs,
        stats(
            max_ids_per_partition={"t1": np.array([3, 9])},
            required_buffer_size_per_sc={
                "t1": np.array([[8, 16], [24, 8]]),
                "t2": np.array([2.5]),
            },
        ),
        num_sc_per_device=2,
    )
    t1, t2 = (spec.table_spec.stacked_table_spec for spec in specs)
    self.assertEqual(t1.max_ids_per_partition, 9)
    self.assertEqual(t1.max_unique_ids_per_partition, 256)
    self.assertEqual(t1.suggested_coo_buffer_size_per_device, 48)
    self.assertEqual(t2.max_ids_per_partition, 256)
    self.assertEqual(t2.suggested_coo_buffer_size_per_device, 5)
    self.assertEqual(specs[0].table_spec.max_ids_per_partition, 256)

  def test_a_stack_without_ids_keeps_the_smallest_buffers(self):
    specs = features("t1")
    none = {"t1": np.zeros(2, np.int32)}
    _stats.update_preprocessing_parameters(
        specs,
        stats(
            max_ids_per_partition=none,
            max_unique_ids_per_partition=none,
            required_buffer_size_per_sc=none,
        ),
        num_sc_per_device=2,
    )
    stack = specs[0].table_spec.stacked_table_spec
    self.assertEqual(stack.max_ids_per_partition, 1)
    self.assertEqual(stack.max_unique_ids_per_partition, 1)
    self.assertEqual(stack.suggested_coo_buffer_size_per_device, 1)

  def test_headroom_and_keeping_larger_numbers_are_asked_for(self):
    params = stats(max_ids_per_partition={"t1": np.array([3, 9])})

    def limit(before, **options):
      specs = features("t1")
      stack = specs[0].table_spec.stacked_table_spec
      specs[0].table_spec.stacked_table_spec = stack.replace(
          max_ids_per_partition=before
      )
      _stats.update_preprocessing_parameters(specs, params, 2, **options)
      return specs[0].table_spec.stacked_table_spec.max_ids_per_partition

    self.assertEqual(limit(256), 9)
    self.assertEqual(limit(256, headroom=1.25), 12)
    self.assertEqual(limit(256, keep_larger=True), 256)
    self.assertEqual(limit(11, headroom=1.25, keep_larger=True), 12)
    for headroom in (0.9, float("nan"), float("inf")):
      with self.assertRaisesRegex(ValueError, "headroom must be a number of"):
        limit(256, headroom=headroom)

  def test_headroom_leaves_no_cells_that_partitions_cannot_fill(self):
    # Of two SparseCores: 8 ids for each from each, after rounding.
    for aligned, expected in (({}, 32), ({"t1": np.array([2, 0])}, 42)):
      specs = features("t1")
      _stats.update_preprocessing_parameters(
          specs,
          stats(
              max_ids_per_partition={"t1": np.array([3, 6])},
              required_buffer_size_per_sc={"t1": np.array([14, 12])},
              minibatch_alignment_per_sc=aligned,
          ),
          num_sc_per_device=2,
          headroom=1.3,
      )
      stack = specs[0].table_spec.stacked_table_spec
      self.assertEqual(stack.max_ids_per_partition, 8)
      self.assertEqual(stack.suggested_coo_buffer_size_per_device, expected)


if __name__ == "__main__":
  absltest.main()
