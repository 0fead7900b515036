# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A table without columns is looked up as one of one column."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SCS, _ROWS_PER_SHARD, _BATCH_PER_SC = 4, 16, 6
_COO = random_coo.random_coo(
    num_sc_per_device=_NUM_SCS,
    rows_per_shard=_ROWS_PER_SHARD,
    batch_size_per_sc=_BATCH_PER_SC,
    ids_per_sample=4,
)


class WithoutColumnsTest(parameterized.TestCase):

  @parameterized.parameters(list(every_lowering.LOWERINGS))
  def test_lookup(self, lowering):
    lowering = every_lowering.LOWERINGS[lowering]

    @lowering.compiled
    def run(coo, table):
      return lowering.bind(
          "lookup",
          *coo,
          table,
          device_batch_size=_NUM_SCS * _BATCH_PER_SC // lowering.num_devices,
          max_ids_per_partition=64,
          max_unique_ids_per_partition=64,
      )

    table = np.random.default_rng(0).normal(size=_NUM_SCS * _ROWS_PER_SHARD)
    coo = lowering.coo_operands(_COO, _NUM_SCS)
    (activations,) = run(coo, np.float32(table))
    np.testing.assert_allclose(
        activations, _COO.weights @ table, rtol=1e-4, atol=1e-4
    )


if __name__ == "__main__":
  absltest.main()
