# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import io
import pathlib
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _progress
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint import convert
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables

jax.config.update("jax_num_cpu_devices", 6)

_MIB = 2**20


class _Terminal(io.StringIO):

  def isatty(self):
    return True


class ProgressTest(parameterized.TestCase):

  def shown(self, out, *steps):
    """What is printed for steps of (second, MiB), of 100 MiB in all."""
    clock = mock.Mock(side_effect=[0.0, *(second for second, _ in steps)])
    with _progress.Progress("saving", 100 * _MIB, out, clock) as progress:
      for _, mebibytes in steps:
        progress.add(mebibytes * _MIB)
    return out.getvalue()

  def test_shows_rate_and_time_left_after_two_seconds(self):
    printed = self.shown(
        _Terminal(), (1.9, 10), (2.0, 10), (2.1, 10), (4.0, 10)
    )
    self.assertEqual(
        printed,
        "\r\x1b[Ksaving: 20.0 MiB of 100 MiB (20%), 10.0 MiB/s, 8 s left"
        "\r\x1b[Ksaving: 40.0 MiB of 100 MiB (40%), 10.0 MiB/s, 6 s left"
        "\r\x1b[K",
    )

  def test_what_is_quick_shows_nothing(self):
    self.assertEqual(self.shown(_Terminal(), (0.5, 50), (1.0, 50)), "")

  def test_files_get_nothing(self):
    self.assertEqual(self.shown(io.StringIO(), (3.0, 50)), "")

  def test_it_makes_no_devices(self):
    # Whose number, or whether this program may have them, is not its business.
    with mock.patch.object(jax, "process_index", side_effect=AssertionError):
      self.assertIn("50%", self.shown(_Terminal(), (3.0, 50)))

  def test_what_cannot_be_written_to_shows_nothing(self):
    closed = _Terminal()
    closed.close()
    gone = _Terminal()
    gone.write = mock.Mock(side_effect=OSError(5, "Input/output error"))
    for out in (closed, gone):
      clock = mock.Mock(side_effect=[0.0, 3.0, 4.0])
      with _progress.Progress("saving", 100 * _MIB, out, clock) as progress:
        progress.add(_MIB)
        progress.add(_MIB)
    gone.write.assert_called_once()
    with mock.patch.object(sys, "stderr", None):
      with _progress.Progress("saving", 100 * _MIB) as progress:
        progress.add(_MIB)

  @parameterized.parameters(
      (26.4, "26 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")
  )
  def test_durations(self, seconds, text):
    self.assertEqual(_progress._duration(seconds), text)

  def test_all_that_may_take_long_shows_it(self):
    path = pathlib.Path(self.create_tempdir().full_path)
    topology = any_tables.Topology(1, 2, "auto")
    specs = any_tables.feature_specs(topology)
    variables = any_tables.new_variables(topology, specs)
    tasks = {
        "saving": lambda: any_tables.save(path / "a", variables, specs),
        "checking": lambda: checkpoint.verify(path / "a"),
        "restoring": lambda: checkpoint.restore(
            path / "a",
            specs,
            any_tables.sharding(topology),
            num_sc_per_device=2,
        ),
        "converting": lambda: convert.convert(
            path / "a",
            path / "b",
            layout="stacked",
            num_devices=1,
            num_sc_per_device=2,
        ),
    }
    for what, run in tasks.items():
      with (
          mock.patch.object(_progress, "_SECONDS_UNTIL_SHOWN", -1),
          mock.patch.object(_progress, "_SECONDS_BETWEEN", 0),
          mock.patch.object(sys, "stderr", _Terminal()) as terminal,
      ):
        run()
      self.assertRegex(terminal.getvalue(), rf"{what}: .* \(100%\).* 0 s left")


if __name__ == "__main__":
  absltest.main()
