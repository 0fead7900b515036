# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import importlib.util
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax.experimental import topologies
from jax_tpu_embedding.sparsecore.lib.core.tpu import topology


@absltest.skipIf(
    importlib.util.find_spec("libtpu") is None,
    "libtpu is not installed: pip install 'jax[tpu]'.",
)
class TopologyMeshTest(parameterized.TestCase):

  @parameterized.parameters(
      ("v5p:2x2x1", 4, "TPU v5"),
      ("v6e:2x4", 8, "TPU v6 lite"),
      ("tpu7x:2x2x1", 8, "TPU7x"),
  )
  def test_mesh_has_the_devices_of_the_slice(self, name, count, kind):
    mesh = topology.topology_mesh(name, ("rows", "rest"))
    self.assertEqual(dict(mesh.shape), {"rows": count, "rest": 1})
    self.assertEqual({d.device_kind for d in mesh.devices.flat}, {kind})

  def test_one_name_is_that_of_the_only_axis(self):
    mesh = topology.topology_mesh("v6e:2x2", "rows")
    self.assertEqual(dict(mesh.shape), {"rows": 4})

  def test_options_of_jax_are_passed_on(self):
    mesh = topology.topology_mesh("v6e:2x2", num_slices=2)
    self.assertEqual(mesh.size, 8)

  @parameterized.parameters("v7x:2x2x1", "v5p-8")
  def test_unknown_slice_raises_with_examples(self, name):
    with self.assertRaisesRegex(
        ValueError, f"There is no TPU slice '{name}'.*'v6e:4x4'"
    ):
      topology.topology_mesh(name)


class WithoutLibtpuTest(absltest.TestCase):

  def test_error_says_what_to_install(self):
    with mock.patch.object(
        topologies, "get_topology_desc", side_effect=AttributeError("no path")
    ):
      with self.assertRaisesRegex(RuntimeError, r"pip install 'jax\[tpu\]'"):
        topology.topology_mesh("v5p:2x2x1")


if __name__ == "__main__":
  absltest.main()
