# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import layout
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format


class TableFormatTest(parameterized.TestCase):

  @parameterized.parameters(
      ((64, 16), (0, 1)), ((64, 1), (1, 0)), ((64,), (0,))
  )
  def test_format_is_the_sharding_with_the_layout(self, shape, dimensions):
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(jax.devices()[:1], ("x",)),
        jax.sharding.PartitionSpec("x"),
    )
    self.assertEqual(
        table_format.table_format(sharding, shape),
        layout.Format(
            layout.Layout(major_to_minor=dimensions, tiling=((8,),)), sharding
        ),
    )

  def test_tiles_have_as_many_bytes_in_every_type(self):
    found = table_format.table_layout((64, 32), "bfloat16")
    self.assertEqual(found.tiling, ((16,),))

  @parameterized.parameters(
      ((64, 32), ((8, 128),)),
      ((64, 128), None),  # XLA's own is the same
      ((64, 1), None),
      ((64,), None),
  )
  def test_layout_without_sparsecores(self, shape, tiling):
    found = table_format.tensor_core_layout(shape)
    expected = None
    if tiling is not None:
      expected = layout.Layout(major_to_minor=(0, 1), tiling=tiling)
    self.assertEqual(found, expected)


if __name__ == "__main__":
  absltest.main()
