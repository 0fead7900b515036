# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows that are timed on this machine, and estimates that are made of them."""

import dataclasses
import sys
from unittest import mock

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.planning import _cost_picture
from jax_tpu_embedding.sparsecore.lib.planning import _row_probe
from jax_tpu_embedding.sparsecore.lib.planning import _this_machine
from jax_tpu_embedding.sparsecore.lib.planning import chips
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload
import numpy as np

_TIMES = {
    "lookup": chips.RowTimes(per_id=1e-3, per_byte=1e-6, per_new_byte=1e-5),
    "update": chips.RowTimes(per_id=2e-3, per_byte=2e-6, per_new_byte=3e-5),
}


def _estimate(topology, **arguments):
  """64 samples with ids of 16 rows of 128 columns, by Adagrad."""
  table = embedding_spec.TableSpec(
      name="t",
      vocabulary_size=64,
      embedding_dim=128,
      optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
  )
  feature = embedding_spec.FeatureSpec(
      name="f", table_spec=table, input_shape=(64, 1), output_shape=(64, 128)
  )
  ids = np.tile(np.arange(16), 4).reshape(64, 1)
  return cost_report.estimate(
      feature, topology, workload=workload.FromBatches([ids]), **arguments
  )


class ThisMachineTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    _this_machine._row_times.cache_clear()
    self.addCleanup(_this_machine._row_times.cache_clear)

  def _enter_times(self, times=None):
    return self.enter_context(
        mock.patch.object(_row_probe, "measure", return_value=times or _TIMES)
    )

  def test_seconds_are_those_of_rows(self):
    self._enter_times()
    report = _estimate("cpu:1")
    (stack,) = report.stacks
    row = 128 * 4
    activations = 64 * row / report.topology.chip.memory_bytes_per_second
    self.assertAlmostEqual(
        stack.lookup_seconds,
        64 * (1e-3 + row * 1e-6) + 16 * row * 1e-5 + activations,
    )
    # The table's rows, and the slots'.
    self.assertAlmostEqual(
        stack.update_seconds, 64 * (2e-3 + row * 2e-6) + 16 * 2 * row * 3e-5
    )

  def test_devices_share_the_machine(self):
    self._enter_times()
    whole, half = (chips.topology(f"cpu:{n}").chip for n in (1, 2))
    for name in ("lookup_times", "update_times"):
      of_whole, of_half = (
          dataclasses.astuple(getattr(chip, name)) for chip in (whole, half)
      )
      self.assertEqual(of_half, tuple(2 * x for x in of_whole))

  def test_a_share_of_the_bandwidth_takes_their_place(self):
    self._enter_times()
    report = _estimate("cpu:1", sc_efficiency=0.5)
    (stack,) = report.stacks
    row, bandwidth = 128 * 4, report.topology.chip.memory_bytes_per_second
    self.assertAlmostEqual(
        stack.lookup_seconds,
        (16 * row + 12 * 64 + 64 * row) / bandwidth / 0.5,
    )
    self.assertIn("an efficiency of 0.50", report.describe())

  def test_the_report_says_where_times_are_from(self):
    self._enter_times()
    report = _estimate("cpu:1")
    text = report.describe()
    self.assertStartsWith(
        text,
        "Measured: times are what rows took in lookups and updates of this"
        " machine.\n",
    )
    self.assertNotIn("efficiency", text)
    self.assertNotIn(" at 1.0", text)
    calibrated = report.with_measured_lookup(2 * report.lookup_seconds)
    self.assertAlmostEqual(calibrated.update_seconds, 2 * report.update_seconds)
    self.assertIn(", times a measured lookup over that.", calibrated.describe())
    self.assertEqual(_cost_picture._source_of_times(report), "measured")

  def test_rows_are_timed_once(self):
    measure = self._enter_times()
    for name in ("cpu:1", "cpu:4", "cpu:1"):
      chips.topology(name)
    measure.assert_called_once_with()
    with mock.patch.object(hardware, "num_schedulable_cpus", return_value=99):
      chips.topology("cpu:1")
    self.assertEqual(measure.call_count, 2)


class RowProbeTest(absltest.TestCase):

  def test_rows_of_this_machine(self):
    times = _row_probe.measure()
    self.assertEqual(set(times), {"lookup", "update"})
    for of_call in times.values():
      # From memory, rows of 256 bytes take 2 ns to 2 us anywhere.
      seconds = of_call.seconds(1, 256, 1, 256)
      self.assertBetween(seconds, 2e-9, 2e-6)
    # Raises if there is a backend here.
    jax.config.update("jax_num_cpu_devices", 1)

  def test_times_are_those_that_the_tables_took(self):
    per_id, per_byte, per_new_byte = 5e-9, 2e-11, 7e-11
    n = _row_probe._NUM_IDS
    rows = _row_probe._MANY_ROWS * (1 - np.exp(-n / _row_probe._MANY_ROWS))
    times = _row_probe._fit(
        narrow=n * (per_id + 64 * per_byte),
        wide=n * (per_id + 512 * per_byte),
        many=n * (per_id + 256 * per_byte) + rows * 256 * per_new_byte,
    )
    np.testing.assert_allclose(
        dataclasses.astuple(times), (per_id, per_byte, per_new_byte), rtol=1e-4
    )

  def test_noise_makes_no_times_below_zero(self):
    times = _row_probe._fit(narrow=2e-3, wide=1e-3, many=1e-3)
    self.assertEqual((times.per_byte, times.per_new_byte), (0, 0))
    self.assertGreater(times.per_id, 0)

  def test_a_process_that_fails_says_why(self):
    with (
        mock.patch.object(sys, "path", ["/nowhere"]),
        self.assertRaisesRegex(
            RuntimeError,
            "(?s)topology of cpu:N.*ended with 1:.*No module named",
        ),
    ):
      _row_probe.measure()


if __name__ == "__main__":
  absltest.main()
