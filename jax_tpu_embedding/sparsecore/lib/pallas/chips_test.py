# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib import pallas

_ONE = jax.sharding.AbstractMesh((1,), ("x",))


class ChipsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("v5p", 2, (4, 16, 8)),
      ("v6e", 1, (2, 16, 8)),
      ("7x", 1, (2, 16, 16)),
      ("v5e", 1, None),
      ("v4", 2, None),
  )
  def test_facts(self, name, tensor_cores, sparse_core):
    chip = pallas.find_chip(name)
    self.assertEqual(chip.num_tensor_cores, tensor_cores)
    self.assertEqual(
        pallas.tensor_core_mesh(chip=name).shape["core"], tensor_cores
    )
    info = chip.facts.sparse_core
    if sparse_core is None:
      self.assertIsNone(info)
    else:
      found = info.num_cores, info.num_subcores, info.num_lanes
      self.assertEqual(found, sparse_core)
      vector = pallas.vector_subcore_mesh("a", "b", name)
      self.assertEqual(
          tuple(vector.shape.items()),
          (("a", info.num_cores), ("b", info.num_subcores)),
      )
      scalar = pallas.scalar_subcore_mesh("c", name)
      self.assertEqual(dict(scalar.shape), {"c": info.num_cores})

  @parameterized.parameters("v5e", "v4")
  def test_a_chip_without_sparsecores_has_no_mesh_of_them(self, name):
    for make in (pallas.vector_subcore_mesh, pallas.scalar_subcore_mesh):
      with self.assertRaisesRegex(
          ValueError,
          f"Chip '{name}' has no SparseCores. Use tensor_core_mesh, or one of:"
          " v5p, v6e, 7x",
      ):
        make(chip=name)

  def test_an_unknown_chip_is_an_error_that_lists_them(self):
    with self.assertRaisesRegex(
        ValueError, "no chip 'v7x'. Use one of: v5p, v6e, 7x, v5e, v4"
    ):
      pallas.find_chip("v7x")

  def test_a_cpu_stands_for_a_v5p_or_what_the_mesh_says(self):
    self.assertEqual(pallas.find_chip().name, "v5p")
    self.assertEqual(pallas.find_chip(jax.make_mesh((1,), ("x",))).name, "v5p")
    self.assertEqual(pallas.find_chip(pallas.on_chip(_ONE, "7x")).name, "7x")

  def test_unknown_devices_are_an_error(self):
    mesh = jax.sharding.AbstractMesh(
        (1,),
        ("x",),
        abstract_device=jax.sharding.AbstractDevice(
            device_kind="TPU v9", num_cores=1, platform="tpu"
        ),
    )
    with self.assertRaisesRegex(ValueError, "Devices are 'TPU v9'"):
      pallas.find_chip(mesh)


if __name__ == "__main__":
  absltest.main()
