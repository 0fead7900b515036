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


if __name__ == "__main__":
  absltest.main()
