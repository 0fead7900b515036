# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.utils import utils


class UtilsTest(absltest.TestCase):

  def test_names_are_those_of_core(self):
    self.assertIs(utils.NUM_SC_PER_DEVICE_MAP, hardware.NUM_SC_PER_DEVICE_MAP)
    self.assertIs(utils.shard_emb_table, table_layouts.shard_emb_table)


if __name__ == "__main__":
  absltest.main()
