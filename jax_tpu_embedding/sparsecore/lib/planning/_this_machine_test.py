# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Calls that are timed on this machine, and estimates that are made of them."""

import dataclasses
import sys
from unittest import mock

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.planning import _call_probe
from jax_tpu_embedding.sparsecore.lib.planning import chips
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload
from jax_tpu_embedding.sparsecore.lib.planning.testing import known_times
import numpy as np


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


def _seconds(times, probe):
  """What the calls of a probe take at these prices."""
  num_ids = probe.num_samples * probe.valency
  num_rows = 0
  if not probe.rows_are_cached:
    # Distinct ones of so many ids, to a millionth.
    num_rows = probe.num_rows * (1 - np.exp(-num_ids / probe.num_rows))
  row = 4 * probe.num_columns
  return probe.num_tables * times.seconds(
      num_ids=num_ids,
      id_bytes=num_ids * row,
      new_rows=num_rows,
      new_bytes=num_rows * row,
      sample_bytes=probe.num_samples * row,
  )


class ThisMachineTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._measure = self.enter_context(known_times.known())

  def test_seconds_are_those_of_calls(self):
    report = _estimate("cpu:1")
    (stack,) = report.stacks
    row = 128 * 4
    self.assertAlmostEqual(
        stack.lookup_seconds,
        0.5
        + 64 * (1e-3 + row * 1e-6)
        + 16 * (7e-3 + row * 1e-5)
        + 64 * row * 4e-5,
    )
    # The table's rows, and the slots'.
    self.assertAlmostEqual(
        stack.update_seconds,
        0.25
        + 64 * (2e-3 + row * 2e-6)
        + 16 * 2 * (9e-3 + row * 3e-5)
        + 64 * row * 5e-5,
    )

  def test_devices_share_the_machine(self):
    whole, half = (chips.topology(f"cpu:{n}").chip for n in (1, 2))
    for call in ("lookup", "update"):
      of_whole, of_half = (
          dataclasses.asdict(getattr(chip.times, call))
          for chip in (whole, half)
      )
      # All their calls run at once.
      self.assertEqual(of_half.pop("per_call"), of_whole.pop("per_call"))
      self.assertEqual(of_half, {k: 2 * x for k, x in of_whole.items()})

  def test_a_share_of_the_bandwidth_takes_their_place(self):
    report = _estimate("cpu:1", sc_efficiency=0.5)
    (stack,) = report.stacks
    row, bandwidth = 128 * 4, report.topology.chip.memory_bytes_per_second
    self.assertAlmostEqual(
        stack.lookup_seconds,
        (16 * row + 12 * 64 + 64 * row) / bandwidth / 0.5,
    )
    self.assertIn("an efficiency of 0.50", report.describe())

  def test_the_report_says_where_times_are_from(self):
    report = _estimate("cpu:1")
    text = report.describe()
    self.assertStartsWith(
        text,
        "Measured: times follow from lookups and updates of this machine.\n",
    )
    self.assertNotIn("efficiency", text)
    self.assertNotIn(" at 1.0", text)
    calibrated = report.with_measured_lookup(2 * report.lookup_seconds)
    self.assertAlmostEqual(calibrated.update_seconds, 2 * report.update_seconds)
    self.assertIn(", times a measured lookup over that.", calibrated.describe())
    self.assertEqual(report.source_of_times, "measured")

  def test_rows_are_timed_once(self):
    for name in ("cpu:1", "cpu:4", "cpu:1"):
      chips.topology(name)
    self._measure.assert_called_once_with()
    with mock.patch.object(hardware, "num_schedulable_cpus", return_value=99):
      chips.topology("cpu:1")
    self.assertEqual(self._measure.call_count, 2)


class CallProbeTest(absltest.TestCase):

  def test_calls_of_this_machine(self):
    times = chips.topology("cpu:1").chip.times
    for of_call in (times.lookup, times.update):
      # From memory, rows of 256 bytes take 2 ns to 2 us anywhere.
      seconds = of_call.seconds(
          num_ids=1, id_bytes=256, new_rows=1, new_bytes=256, sample_bytes=0
      )
      self.assertBetween(seconds - of_call.per_call, 2e-9, 2e-6)
      # One that does nothing takes more than a function, less than a step.
      self.assertBetween(of_call.per_call, 1e-8, 1e-3)
    # Raises if there is a backend here.
    jax.config.update("jax_num_cpu_devices", 1)

  def test_prices_are_those_that_the_probes_took(self):
    names = [field.name for field in dataclasses.fields(chips.CallTimes)]
    for prices in (
        (7e-6, 5e-9, 2e-11, 4e-9, 7e-11, 3e-10),
        (2e-5, 0.0, 9e-11, 0.0, 5e-11, 0.0),
    ):
      times = chips.CallTimes(**dict(zip(names, prices)))
      np.testing.assert_allclose(
          dataclasses.astuple(
              _call_probe._fit(
                  [_seconds(times, probe) for probe in _call_probe._PROBES]
              )
          ),
          prices,
          rtol=1e-4,
          atol=1e-15,
      )

  def test_noise_makes_no_prices_below_zero(self):
    # A wide table in half the time of a narrow one.
    times = _call_probe._fit([2e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-4])
    prices = dataclasses.asdict(times)
    self.assertEqual(prices["per_byte"], 0)
    self.assertGreater(prices["per_id"], 0)
    self.assertGreaterEqual(min(prices.values()), 0)

  def test_a_process_that_fails_says_why(self):
    with (
        mock.patch.object(sys, "path", ["/nowhere"]),
        self.assertRaisesRegex(
            RuntimeError,
            "(?s)topology of cpu:N.*ended with 1:.*No module named",
        ),
    ):
      _call_probe.measure()


if __name__ == "__main__":
  absltest.main()
