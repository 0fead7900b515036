# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax.experimental import topologies
from jax_tpu_embedding.sparsecore.lib.core.gpu import topology


class TopologyMeshTest(parameterized.TestCase):

  @parameterized.parameters(
      ("a100:1", 1, "NVIDIA A100-SXM4-80GB", "8.0"),
      ("h100:8", 8, "NVIDIA H100 80GB HBM3", "9.0"),
      ("h200:2", 2, "NVIDIA H200", "9.0"),
      ("b200:4", 4, "NVIDIA B200", "10.0"),
  )
  def test_mesh_has_the_gpus(self, name, count, kind, capability):
    mesh = topology.topology_mesh(name, ("rows", "rest"))
    self.assertEqual(dict(mesh.shape), {"rows": count, "rest": 1})
    self.assertEqual({d.device_kind for d in mesh.devices.flat}, {kind})
    self.assertEqual(
        {d.compute_capability for d in mesh.devices.flat}, {capability}
    )
    self.assertEqual({d.process_index for d in mesh.devices.flat}, {0})

  @parameterized.parameters("h100", "h100:0", "v100:1", "h100:2x2", "")
  def test_unknown_name_raises_with_those_that_are_known(self, name):
    with self.assertRaisesRegex(
        ValueError, f"no GPUs '{name}'.*a100, b200, h100, h200, .*'h100:8'"
    ):
      topology.topology_mesh(name)

  def test_error_says_what_to_install(self):
    with mock.patch.object(
        topologies,
        "get_topology_desc",
        side_effect=NotImplementedError("topology not implemented for cuda"),
    ):
      with self.assertRaisesRegex(
          RuntimeError, r"pip install 'jax\[cuda13\]'.*not implemented for cuda"
      ):
        topology.topology_mesh("h100:1")


if __name__ == "__main__":
  absltest.main()
