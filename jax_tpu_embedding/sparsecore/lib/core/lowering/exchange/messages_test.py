# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Blocks have room for all rows that the limits of a stack let through."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SCS, _ROWS_PER_SHARD, _BATCH_PER_SC, _DIM = 8, 8, 24, 4


def _most_unique_ids(num_minibatches):
  """Of a partition, if it has all rows: the limit that a user may set.

  Buckets are the remainders of rows in random_coo.
  """
  return -(-_ROWS_PER_SHARD // (num_minibatches or 1))


class CapacityTest(parameterized.TestCase):

  @parameterized.product(
      lowering=["reference_messages", "cpu_messages", "gpu_messages"],
      num_minibatches=[None, 3, 8],
  )
  def test_exact_limits_suffice(self, lowering, num_minibatches):
    lowering = every_lowering.LOWERINGS[lowering]
    # So many that almost every SparseCore asks for almost every row.
    coo = random_coo.random_coo(
        num_sc_per_device=_NUM_SCS,
        rows_per_shard=_ROWS_PER_SHARD,
        batch_size_per_sc=_BATCH_PER_SC,
        ids_per_sample=24,
        num_minibatches=num_minibatches,
    )
    by_source = np.abs(coo.weights).reshape(_NUM_SCS, _BATCH_PER_SC, -1)
    self.assertGreater(np.mean(by_source.any(axis=1)), 0.9)
    params = dict(
        max_ids_per_partition=4096,
        max_unique_ids_per_partition=_most_unique_ids(num_minibatches),
        enable_minibatching=num_minibatches is not None,
    )

    @lowering.compiled
    def step(coo, table):
      (activations,) = lowering.bind(
          "lookup",
          *coo,
          table,
          device_batch_size=_NUM_SCS * _BATCH_PER_SC // lowering.num_devices,
          **params,
      )
      (table,) = lowering.bind(
          "update_sgd", *coo, table, activations, np.float32(0.01), **params
      )
      return activations, table

    shape = (_NUM_SCS * _ROWS_PER_SHARD, _DIM)
    table = np.float32(np.random.default_rng(0).normal(size=shape))
    activations, stepped = step(lowering.coo_operands(coo, _NUM_SCS), table)
    expected = coo.weights @ table
    np.testing.assert_allclose(activations, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        stepped, table - 0.01 * coo.weights.T @ expected, rtol=1e-4, atol=1e-4
    )


if __name__ == "__main__":
  absltest.main()
