# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import pathlib
from unittest import mock

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core import free_memory


class FreeMemoryTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)

  def write(self, **files):
    for name, text in files.items():
      path = self.root / name.replace("__", "/").replace("_DOT_", ".")
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)

  def free(self):
    return free_memory.free_bytes_of_host(self.root)

  def test_of_this_machine(self):
    free = free_memory.free_bytes(jax.devices("cpu")[0])
    self.assertGreater(free, 2**20)
    self.assertLess(free, 2**50)
    self.assertGreater(free_memory.bytes_of_host(), 2**20)
    self.assertLess(free_memory.bytes_of_host(), 2**50)

  def test_what_is_available_and_swap_is_free(self):
    self.assertIsNone(self.free())
    self.write(
        proc__meminfo="MemTotal: 90 kB\nMemAvailable: 70 kB\nSwapFree: 5 kB\n"
    )
    self.assertEqual(self.free(), 75 * 1024)

  def test_the_tightest_group_counts(self):
    self.write(
        proc__meminfo="MemAvailable: 1000 kB\n",
        proc__self__cgroup="0::/job/task\n",
        sys__fs__cgroup__job__memory_DOT_max="9000\n",
        sys__fs__cgroup__job__memory_DOT_current="5000\n",
        sys__fs__cgroup__job__memory_DOT_stat="anon 3\ninactive_file 100\n",
        sys__fs__cgroup__job__task__memory_DOT_max="max\n",
        sys__fs__cgroup__job__task__memory_DOT_current="5000\n",
        sys__fs__cgroup__job__task__memory_DOT_stat="inactive_file 0\n",
    )
    self.assertEqual(self.free(), 4100)
    self.assertEqual(free_memory.bytes_of_host(self.root), 9000)
    # Full to the brim.
    self.write(sys__fs__cgroup__job__memory_DOT_current="9500\n")
    self.assertEqual(self.free(), 0)

  def test_groups_of_version_1(self):
    group = "sys__fs__cgroup__memory__job__memory_DOT_"
    self.write(
        **{
            "proc__meminfo": "MemAvailable: 1000 kB\n",
            "proc__self__cgroup": "5:cpu:/other\n4:memory,x:/job\n",
            group + "limit_in_bytes": "800\n",
            group + "usage_in_bytes": "300\n",
            group + "stat": "total_inactive_file 7\n",
        }
    )
    self.assertEqual(self.free(), 507)
    self.assertEqual(free_memory.bytes_of_host(self.root), 800)

  def test_devices_say_what_they_have(self):
    device = mock.Mock(platform="tpu")
    device.memory_stats.return_value = {"bytes_limit": 10, "bytes_in_use": 4}
    self.assertEqual(free_memory.free_bytes(device), 6)
    device.memory_stats.return_value = None
    self.assertIsNone(free_memory.free_bytes(device))
    device.memory_stats.side_effect = RuntimeError("no such device")
    self.assertIsNone(free_memory.free_bytes(device))


if __name__ == "__main__":
  absltest.main()
