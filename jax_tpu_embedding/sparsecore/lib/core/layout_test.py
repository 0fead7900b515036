# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as native


def topology(global_device_count=1, num_sc_per_device=1):
  return layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )


class LayoutTest(parameterized.TestCase):

  @parameterized.parameters(
      # devices, SparseCores, minibatching, row pointers, cells for limit 10
      (1, 2, False, 16, 64),
      (1, 4, False, 32, 256),
      (2, 4, False, 32, 512),
      (4, 4, False, 64, 1024),
      (1, 2, True, 1024, 4096),
      (2, 4, True, 2048, 32768),
      (1, 1, False, 8, 16),
      (3, 3, False, 27, 432),
  )
  def test_sizes(self, devices, num_sc, minibatching, row_pointers, cells):
    top = topology(devices, num_sc)
    self.assertEqual(
        layout.row_pointers_per_device(top, minibatching), row_pointers
    )
    self.assertEqual(
        layout.max_coo_cells_per_device(10, top, minibatching), cells
    )

  @parameterized.product(
      devices=(1, 2, 3, 6), num_sc=(1, 2, 4, 5), minibatching=(False, True)
  )
  def test_agrees_with_cc(self, devices, num_sc, minibatching):
    top = topology(devices, num_sc)
    self.assertEqual(
        layout.row_pointers_per_device(top, minibatching),
        native.compute_row_pointers_size_per_device(
            devices, num_sc, minibatching
        ),
    )
    self.assertEqual(
        layout.max_coo_cells_per_device(13, top, minibatching),
        native.compute_theoretical_max_coo_buffer_size(
            13, devices, num_sc, minibatching
        ),
    )

  @parameterized.product(
      devices=(1, 2, 3, 64),
      num_sc=(1, 2, 3, 4, 8, 19),
      minibatching=(False, True),
  )
  def test_row_pointers_tell_the_sparsecores(
      self, devices, num_sc, minibatching
  ):
    size = layout.row_pointers_per_device(
        topology(devices, num_sc), minibatching
    )
    self.assertEqual(
        layout.num_sc_per_device_from_row_pointers(size, devices, minibatching),
        num_sc,
    )

  def test_impossible_row_pointers_are_an_error(self):
    with self.assertRaisesRegex(ValueError, "17 entries, which fits no number"):
      layout.num_sc_per_device_from_row_pointers(17, 1)

  @parameterized.parameters(
      (dict(local_device_count=0), "local_device_count must be greater than 0"),
      (
          dict(global_device_count=-1),
          "global_device_count must be greater than 0, got -1",
      ),
      (dict(num_sc_per_device=0), "num_sc_per_device must be greater than 0"),
      (
          dict(local_device_count=5),
          "must be greater than or equal to local_device_count, got 4 < 5",
      ),
  )
  def test_bad_topologies_are_errors(self, change, message):
    baseline = dict(
        local_device_count=2, global_device_count=4, num_sc_per_device=2
    )
    self.assertEqual(layout.Topology(**baseline).num_scs, 8)
    with self.assertRaisesRegex(ValueError, message):
      layout.Topology(**(baseline | change))

  @parameterized.parameters("2", 2.0, None, True)
  def test_counts_are_integers(self, count):
    with self.assertRaisesRegex(
        TypeError, f"num_sc_per_device must be an integer, got {count!r}"
    ):
      layout.Topology(
          local_device_count=2, global_device_count=4, num_sc_per_device=count
      )


if __name__ == "__main__":
  absltest.main()
