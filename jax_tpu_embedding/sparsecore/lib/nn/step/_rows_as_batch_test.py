# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows as a batch are what the converter makes of such a batch."""

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import partitions
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.step import _rows_as_batch
from jax_tpu_embedding.sparsecore.lib.nn.testing import two_table_model
import numpy as np

_BATCH = 24


def _entries(row_pointers, cells, num_sc):
  """Those of every partition, in order."""
  blocks = np.reshape(row_pointers, (num_sc, -1))[:, :num_sc]
  regions = np.reshape(cells, (num_sc, -1))
  entries = []
  for ends, region in zip(blocks, regions):
    start = 0
    for end in ends:
      entries.append(region[start:end].tolist())
      start = layout.round_up(int(end), 8)
  return entries


class RowsAsBatchTest(parameterized.TestCase):

  @parameterized.product(num_sc=[1, 2, 3], is_sorted=[True, False])
  def test_is_what_the_converter_makes(self, num_sc, is_sorted):
    table = two_table_model.table(vocabulary_size=48 * num_sc)
    specs = {"f": two_table_model.feature("f", table, 1, _BATCH)}
    embedding.prepare_feature_specs_for_training(specs, 1, num_sc)
    rows_per_shard = table.stacked_table_spec.stack_vocab_size // num_sc
    rng = np.random.default_rng(num_sc)
    rows = rng.integers(rows_per_shard * num_sc, size=_BATCH, dtype=np.int32)
    if is_sorted:
      rows.sort()
    shard, row = np.divmod(rows, rows_per_shard)
    inputs, _ = embedding.preprocess_sparse_dense_matmul_input(
        {"f": (row * num_sc + shard)[:, None]},
        None,
        specs,
        1,
        1,
        num_sc_per_device=num_sc,
    )
    buffers = _rows_as_batch.rows_as_batch(
        rows,
        rows_per_shard,
        layout.Topology(
            local_device_count=1,
            global_device_count=1,
            num_sc_per_device=num_sc,
        ),
    )
    expected = [by_stack["t"] for by_stack in inputs.sparse_dense_matmul_input]
    pointers, *cells = expected
    np.testing.assert_array_equal(buffers.row_pointers, pointers)
    for actual, of_converter in zip(buffers[1:4], cells, strict=True):
      self.assertEqual(
          _entries(pointers, actual, num_sc),
          _entries(pointers, of_converter, num_sc),
      )

  @parameterized.parameters(1, 3)
  def test_minibatches_have_ranges_of_rows(self, num_sc):
    rows_per_shard = 200  # of 4 to each of the first 50 minibatches
    rng = np.random.default_rng(num_sc)
    rows = rng.integers(rows_per_shard * num_sc, size=150, dtype=np.int32)
    rows[::10] = constants.PADDING_VALUE
    rows[1] = rows[2]
    buffers = _rows_as_batch.rows_as_batch(
        rows,
        rows_per_shard,
        layout.Topology(
            local_device_count=1,
            global_device_count=1,
            num_sc_per_device=num_sc,
        ),
        enable_minibatching=True,
    )
    cells = partitions.read_partitions(
        buffers.row_pointers,
        buffers.num_minibatches,
        num_cells=buffers.embedding_ids.size,
        num_sources=num_sc,
        num_targets=num_sc,
        enable_minibatching=True,
    )
    is_entry = np.asarray(cells.is_entry)
    ids = buffers.embedding_ids[is_entry]
    partition = cells.partition[is_entry]
    np.testing.assert_array_equal(partition // num_sc % 64, ids // 4)
    order = np.stack([partition, ids])
    np.testing.assert_array_equal(order, order[:, np.lexsort((ids, partition))])
    sample = cells.source[is_entry] * (150 // num_sc)
    sample += buffers.sample_ids[is_entry]
    self.assertCountEqual(
        np.asarray(sample), np.flatnonzero(rows != constants.PADDING_VALUE)
    )
    np.testing.assert_array_equal(
        ids + cells.target[is_entry] * rows_per_shard, rows[sample]
    )


if __name__ == "__main__":
  absltest.main()
