# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookups of entries out of range, which no converter writes, without errors.

In plain jnp no device can raise, and one that raised before a message would
leave the others waiting. A row of another shard, or a sample of another
SparseCore, would be a wrong number that nobody sees.
"""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_disable_most_optimizations", True)

_NUM_SCS, _ROWS_PER_SHARD, _BATCH_PER_SC, _DIM = 8, 16, 6, 4
_SHAPE = (_NUM_SCS * _ROWS_PER_SHARD, _DIM)
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)
_COO = random_coo.random_coo(
    num_sc_per_device=_NUM_SCS,
    rows_per_shard=_ROWS_PER_SHARD,
    batch_size_per_sc=_BATCH_PER_SC,
    ids_per_sample=4,
)
_TABLE = np.float32(np.random.default_rng(0).normal(size=_SHAPE))
_LOWERINGS = ["reference", "reference_messages", "cpu_messages"]


def _entry(source, target):
  """Cell, row and sample of the first entry of a partition."""
  pointers = _COO.row_pointers.reshape(_NUM_SCS, 8)[source]
  start = -(-pointers[target - 1] // 8) * 8 if target else 0
  assert start < pointers[target]
  cell = source * (_COO.embedding_ids.size // _NUM_SCS) + start
  row = target * _ROWS_PER_SHARD + _COO.embedding_ids[cell]
  return cell, row, source * _BATCH_PER_SC + _COO.sample_ids[cell]


def _look_up(lowering, coo):
  lowering = every_lowering.LOWERINGS[lowering]

  @lowering.compiled
  def run(coo, table):
    return lowering.bind(
        "lookup",
        *coo,
        table,
        device_batch_size=_NUM_SCS * _BATCH_PER_SC // lowering.num_devices,
        **_LIMITS,
    )

  (activations,) = run(lowering.coo_operands(coo, _NUM_SCS), _TABLE)
  return activations


def _assert_close(actual, expected):
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class OutOfRangeTest(parameterized.TestCase):

  @parameterized.product(lowering=_LOWERINGS)
  def test_valid_entries_are_looked_up(self, lowering):
    _assert_close(_look_up(lowering, _COO), _COO.weights @ _TABLE)

  # Behind the first shard of a device and before its second: rows of the other.
  @parameterized.product(
      lowering=_LOWERINGS, place=[(_ROWS_PER_SHARD, 4), (-1, 5)]
  )
  def test_sample_of_a_wrong_id_is_nan(self, lowering, place):
    wrong_id, target = place
    cell, _, sample = _entry(source=2, target=target)
    ids = _COO.embedding_ids.copy()
    ids[cell] = wrong_id
    expected = _COO.weights @ _TABLE
    expected[sample] = np.nan
    _assert_close(
        _look_up(lowering, dataclasses.replace(_COO, embedding_ids=ids)),
        expected,
    )

  # Likewise, samples of a device's two SparseCores.
  @parameterized.product(
      lowering=_LOWERINGS, place=[(_BATCH_PER_SC, 2), (-1, 3)]
  )
  def test_entry_of_a_wrong_sample_is_left_out(self, lowering, place):
    wrong_sample, source = place
    cell, row, sample = _entry(source=source, target=5)
    samples = _COO.sample_ids.copy()
    samples[cell] = wrong_sample
    expected = _COO.weights @ _TABLE
    expected[sample] -= _COO.gains[cell] * _TABLE[row]
    _assert_close(
        _look_up(lowering, dataclasses.replace(_COO, sample_ids=samples)),
        expected,
    )


if __name__ == "__main__":
  absltest.main()
