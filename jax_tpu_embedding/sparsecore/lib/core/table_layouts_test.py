# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import einops
import jax
from jax.experimental import layout
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
import numpy as np

P = jax.sharding.PartitionSpec


class ShardTableTest(parameterized.TestCase):

  def test_rows_go_round_the_shards(self):
    sharded = table_layouts.shard_emb_table(
        np.arange(16), num_devices=2, num_sc_per_device=4
    )
    self.assertEqual(
        sharded.tolist(),
        [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]],
    )

  @parameterized.product(devices=(1, 2, 3), num_sc=(1, 2, 5))
  def test_unshard_is_the_inverse(self, devices, num_sc):
    table = np.arange(devices * num_sc * 4 * 3).reshape(-1, 3)
    sharded = table_layouts.shard_emb_table(
        table, num_devices=devices, num_sc_per_device=num_sc
    )
    self.assertEqual(sharded.shape, (devices, num_sc * 4, 3))
    np.testing.assert_array_equal(
        table_layouts.unshard_emb_table(sharded, num_sc), table
    )

  def test_indivisible_rows_are_an_error(self):
    with self.assertRaises(einops.EinopsError):
      table_layouts.shard_emb_table(
          np.arange(15), num_devices=2, num_sc_per_device=4
      )

  @parameterized.parameters("mod", "DIV")
  def test_other_strategies_are_errors(self, strategy):
    with self.assertRaisesRegex(ValueError, f"'{strategy}'. Use 'MOD'"):
      table_layouts.shard_emb_table(
          np.arange(4),
          num_devices=2,
          num_sc_per_device=2,
          sharding_strategy=strategy,
      )


class TableFormatTest(absltest.TestCase):

  def test_tables_of_tpus_have_the_layout_of_their_kind(self):
    tilings = {}
    for kind in ("TPU v5", "TPU v5 lite"):
      mesh = jax.sharding.AbstractMesh(
          (1,),
          ("x",),
          abstract_device=jax.sharding.AbstractDevice(
              device_kind=kind, num_cores=1, platform="tpu"
          ),
      )
      found = table_layouts.embedding_table_format(mesh, P("x"), (8, 32))
      tilings[kind] = found.layout.tiling
    self.assertEqual(tilings, {"TPU v5": ((8,),), "TPU v5 lite": ((8, 128),)})

  def test_cpu_tables_have_no_special_layout(self):
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, P("x", None))
    self.assertEqual(
        table_layouts.embedding_table_format(mesh, P("x", None)), sharding
    )

  def test_other_tables_are_tiled_by_eight_rows(self):
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    table_format = table_layouts.embedding_table_format(mesh, P("x", None))
    self.assertIsInstance(table_format, layout.Format)
    self.assertEqual(table_format.layout.tiling, ((8,),))
    self.assertEqual(table_format.layout.major_to_minor, (0, 1))

  def test_slots_of_one_number_per_row_have_no_padding(self):
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    slot_format = table_layouts.embedding_table_format(
        mesh, P("x", None), (64, 1)
    )
    self.assertEqual(slot_format.layout.major_to_minor, (1, 0))


if __name__ == "__main__":
  absltest.main()
