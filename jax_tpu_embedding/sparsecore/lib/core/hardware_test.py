# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import dataclasses
import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware


@dataclasses.dataclass
class Device:
  device_kind: str
  platform: str = "tpu"


class NumSparsecoresTest(parameterized.TestCase):

  @parameterized.parameters(
      ("TPU v5", 4), ("TPU v5p", 4), ("TPU v6e", 2), ("TPU7x", 2)
  )
  def test_chips_have_their_number(self, kind, expected):
    self.assertEqual(
        hardware.num_sparsecores_per_device(Device(kind)), expected
    )

  def test_added_kinds_are_known(self):
    with mock.patch.dict(hardware.NUM_SC_PER_DEVICE_MAP, {"TPU v99": 16}):
      self.assertEqual(
          hardware.num_sparsecores_per_device(Device("TPU v99")), 16
      )

  @parameterized.parameters("cpu", "gpu", "cuda", "rocm")
  def test_emulating_platforms_have_one(self, platform):
    with mock.patch.dict(os.environ):
      os.environ.pop(hardware.NUM_SC_ENV, None)
      device = Device("some product", platform)
      self.assertEqual(hardware.num_sparsecores_per_device(device), 1)

  def test_the_environment_sets_the_number_of_emulated_ones(self):
    with mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: "3"}):
      self.assertEqual(hardware.num_sparsecores_per_device(), 3)
      self.assertEqual(hardware.num_sparsecores_per_device(jax.devices()[0]), 3)
      self.assertEqual(hardware.num_sparsecores_per_device(Device("TPU v5")), 4)

  @parameterized.parameters("0", "-1", "two", "")
  def test_a_bad_environment_is_an_error(self, value):
    with mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: value}):
      with self.assertRaisesRegex(
          ValueError, f"{hardware.NUM_SC_ENV} must be a positive.*'{value}'"
      ):
        hardware.num_sparsecores_per_device()

  def test_unknown_kinds_are_an_error_that_lists_the_known(self):
    with self.assertRaisesRegex(
        ValueError,
        "Unknown sparsecore count for device kind 'TPU v9'.*TPU v5p.*TPU v5e",
    ):
      hardware.num_sparsecores_per_device(Device("TPU v9"))

  @parameterized.parameters("TPU v5 lite", "TPU v5e", "TPU v4", "TPU v3")
  def test_tpus_without_sparsecores_emulate_them_as_cpus_do(self, kind):
    with mock.patch.dict(os.environ):
      os.environ.pop(hardware.NUM_SC_ENV, None)
      self.assertEqual(hardware.num_sparsecores_per_device(Device(kind)), 1)
      os.environ[hardware.NUM_SC_ENV] = "4"
      self.assertEqual(hardware.num_sparsecores_per_device(Device(kind)), 4)
    self.assertTrue(hardware.emulates_sparsecores(Device(kind)))
    self.assertTrue(hardware.is_tpu_without_sparsecores(Device(kind)))
    self.assertFalse(hardware.is_tpu_without_sparsecores(Device("TPU v5")))

  def test_no_kind_is_an_error(self):
    with self.assertRaisesRegex(ValueError, "no device_kind"):
      hardware.num_sparsecores_per_device(object())

  def test_an_explicit_number_wins(self):
    with mock.patch.dict(os.environ, {hardware.NUM_SC_ENV: "3"}):
      self.assertEqual(hardware.resolve_num_sc_per_device(5), 5)
      self.assertEqual(hardware.resolve_num_sc_per_device(None), 3)

  def test_an_explicit_number_must_be_positive(self):
    with self.assertRaisesRegex(ValueError, "Invalid num_sc_per_device: 0"):
      hardware.resolve_num_sc_per_device(0)


class NumSchedulableCpusTest(absltest.TestCase):

  def test_affinity_counts(self):
    allowed = os.sched_getaffinity(0)
    self.assertBetween(hardware.num_schedulable_cpus(), 1, len(allowed))
    # A quota of the control group may be less than all of them, not than one.
    os.sched_setaffinity(0, {min(allowed)})
    self.addCleanup(os.sched_setaffinity, 0, allowed)
    self.assertEqual(hardware.num_schedulable_cpus(), 1)


if __name__ == "__main__":
  absltest.main()
