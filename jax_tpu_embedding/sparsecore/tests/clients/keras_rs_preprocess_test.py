# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Batches preprocessed with the calls of keras-rs, and their statistics."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import multihost_utils
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
from jax_tpu_embedding.sparsecore.tests.clients import keras_rs_calls
import numpy as np


class PreprocessTest(parameterized.TestCase):

  @parameterized.parameters((1, 1), (1, 4), (4, 2))
  def test_row_pointers_rounded_up_are_where_the_next_rows_begin(
      self, num_devices, num_sc
  ):
    specs = keras_rs_calls.make_specs(
        embedding_spec.SGDOptimizerSpec(), num_devices, num_sc
    )
    inputs, _ = keras_rs_calls.preprocess(
        specs, keras_rs_calls.random_ids(specs), num_devices, num_sc
    )
    (row_pointers,) = inputs.lhs_row_pointers.values()
    (embedding_ids,) = inputs.lhs_embedding_ids.values()
    for ends, rows in zip(
        np.split(row_pointers, num_devices * num_sc),
        np.split(embedding_ids, num_devices * num_sc),
    ):
      starts = np.concatenate(
          [[0], table_stacking._next_largest_multiple(ends[:-1], 8)]
      )
      is_in_a_partition = np.zeros(rows.shape, bool)
      for start, end in zip(starts, ends, strict=True):
        is_in_a_partition[start:end] = True
      np.testing.assert_array_equal(
          is_in_a_partition, rows != constants.PADDING_VALUE
      )

  @parameterized.parameters((1, 2), (4, 1))
  def test_rows_may_have_any_length(self, num_devices, num_sc):
    specs = keras_rs_calls.make_specs(
        embedding_spec.SGDOptimizerSpec(), num_devices, num_sc
    )
    lengths = np.arange(keras_rs_calls.BATCH) % 3
    ids = keras_rs_calls.random_ids(specs)
    weights = {n: np.ones(values.shape, "f4") for n, values in ids.items()}
    for tree, dtype in ((ids, np.int32), (weights, np.float32)):
      tree["last"] = np.array(
          [np.ones(length, dtype) for length in lengths], dtype=np.ndarray
      )
    counts = num_devices, num_sc
    with_weights, _ = keras_rs_calls.preprocess(specs, ids, *counts, weights)
    without, _ = keras_rs_calls.preprocess(specs, ids, *counts)
    jax.tree.map(np.testing.assert_array_equal, with_weights, without)

  @parameterized.parameters(1, 2, 4, 8)
  def test_any_number_of_sparsecores(self, num_sc):
    specs = keras_rs_calls.make_specs(
        embedding_spec.SGDOptimizerSpec(), 1, num_sc
    )
    inputs, _ = keras_rs_calls.preprocess(
        specs, keras_rs_calls.random_ids(specs), 1, num_sc
    )
    (row_pointers,) = inputs.lhs_row_pointers.values()
    self.assertLen(row_pointers, 8 * num_sc)


class StatsTest(parameterized.TestCase):

  def _make_specs(self, num_devices, num_sc):
    self.num_devices, self.num_sc = num_devices, num_sc
    self.specs = keras_rs_calls.make_specs(
        embedding_spec.SGDOptimizerSpec(), num_devices, num_sc
    )

  def _preprocess(self):
    """The statistics of a batch of which every id is 0."""
    ids = {
        name: np.zeros(spec.input_shape, np.int32)
        for name, spec in self.specs.items()
    }
    _, stats = keras_rs_calls.preprocess(
        self.specs, ids, self.num_devices, self.num_sc
    )
    return stats

  def _stack(self):
    (stack,) = embedding.get_stacked_table_specs(self.specs).values()
    return stack

  def _set_limits(self, limit, required_buffer_size):
    name = self._stack().stack_name
    embedding.update_preprocessing_parameters(
        self.specs,
        embedding.SparseDenseMatmulInputStats(
            max_ids_per_partition={name: np.int32(limit)},
            max_unique_ids_per_partition={name: np.int32(limit)},
            required_buffer_size_per_sc=required_buffer_size,
            id_drop_counters={name: 0},
        ),
        self.num_sc,
    )

  @parameterized.parameters((1, 2), (4, 1))
  def test_callers_may_make_statistics_with_few_entries(
      self, num_devices, num_sc
  ):
    self._make_specs(num_devices, num_sc)
    self._set_limits(8, {})
    self.assertEqual(self._stack().max_ids_per_partition, 8)
    self.assertEqual(self._stack().max_unique_ids_per_partition, 8)
    self.assertIsNone(self._stack().suggested_coo_buffer_size_per_device)
    self._set_limits(16, {self._stack().stack_name: np.int32(40)})
    self.assertEqual(
        self._stack().suggested_coo_buffer_size_per_device, 40 * num_sc
    )
    self._set_limits(24, {"another stack": np.int32(1)})
    self.assertEqual(
        self._stack().suggested_coo_buffer_size_per_device, 40 * num_sc
    )

  @parameterized.parameters(
      # Each SparseCore has 16 samples of 3 features, all with row 0 of one of 2
      # tables.
      (1, 2, 48, 2),
      # 8 samples; "item" and "last" have row 0 of one table, and that of the
      # other table is on another SparseCore.
      (4, 1, 16, 1),
  )
  def test_limits_raised_to_the_largest_statistics_drop_nothing(
      self, num_devices, num_sc, num_ids, num_unique_ids
  ):
    self._make_specs(num_devices, num_sc)
    self._set_limits(8, {})
    stats = self._preprocess()
    name = self._stack().stack_name
    # Devices with one SparseCore raise limits by themselves.
    self.assertEqual(stats.id_drop_counters[name] > 0, num_sc > 1)

    gathered = multihost_utils.process_allgather(stats)
    self.assertEqual(jax.tree.structure(gathered), jax.tree.structure(stats))
    largest = jax.tree.map(np.max, gathered)
    self.assertEqual(largest.max_ids_per_partition[name], num_ids)
    self.assertEqual(largest.max_unique_ids_per_partition[name], num_unique_ids)
    largest.max_unique_ids_per_partition[name] = np.max(
        [largest.max_unique_ids_per_partition[name], 8]
    )
    embedding.update_preprocessing_parameters(self.specs, largest, num_sc)
    self.assertEqual(self._stack().max_ids_per_partition, num_ids)
    self.assertEqual(self._stack().max_unique_ids_per_partition, 8)
    self.assertEqual(self._preprocess().id_drop_counters[name], 0)


if __name__ == "__main__":
  absltest.main()
