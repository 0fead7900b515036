# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions: deltas in order, what does not fit, readers."""

import shutil
import signal
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import version_cases
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np


class RefreshTest(version_cases.TestCase):

  @parameterized.product(
      implementation=version_cases.IMPLEMENTATIONS,
      copy_to_huge_pages=(False, True),
  )
  def test_deltas_change_rows_in_order(
      self, implementation, copy_to_huge_pages
  ):
    self.write_full(3)
    tables = self.open(implementation, copy_to_huge_pages=copy_to_huge_pages)
    self.assert_is_version(tables, 3)
    self.assertFalse(tables.refresh())
    for number in (4, 5, 6):
      self.write_delta(number)
      if number != 5:  # Two at once.
        self.assertTrue(tables.refresh())
        self.assert_is_version(tables, number)
    self.assertFalse(tables.refresh())
    np.testing.assert_array_equal(tables.lookup("users", 2), [6, 6, 6])
    self.assert_is_version(self.open(implementation, verify=True), 6)
    # What it reads is unchanged: another reader sees the full version.
    written_tables.write_current(self.directory, 3, self.crc32[3])
    self.assert_is_version(self.open(implementation), 3)

  def test_a_full_version_replaces_what_is_loaded(self):
    self.write_full(0)
    tables = self.open()
    self.written["items"] = written_tables.WrittenTable(
        np.zeros((version_cases.ROWS + 5, 2), np.float32), "float16"
    )
    self.write_full(1)
    with self.assertLogs(level="INFO") as logs:
      self.assertTrue(tables.refresh())
    self.assertRegex(logs.output[0], "loaded the full version 1: .*version 0")
    self.assertEqual(tables.version, 1)
    self.assertEqual(tables.lookup("items", version_cases.ROWS + 4).shape, (2,))
    self.assertEqual(tables.tables["items"].encoding, "float16")

  def test_versions_missed_and_foreign_ones_load_the_full_one(self):
    self.write_full(0)
    self.write_delta(1)
    tables = self.open()
    # Another run took the directory over: the same numbers, other rows.
    shutil.rmtree(self.directory)
    self.written["items"].values[:] = 77
    self.write_full(0, run="ff" * 16)
    self.write_delta(1, run="ff" * 16)
    with self.assertLogs(level="INFO") as logs:
      self.assertTrue(tables.refresh())
    self.assertRegex(logs.output[0], r"manifest \w+\) is not made of version 1")
    self.assert_is_version(tables, 1)

  def test_a_delta_of_another_run_is_refused(self):
    self.write_full(0)
    tables = self.open()
    self.write_delta(1, run="ff" * 16)
    self.write_delta(2, run="ff" * 16)
    for refresh in (tables.refresh, self.open):
      with self.assertLogs(level="WARNING") as logs:
        refresh()
      self.assertRegex(
          logs.output[0], "staying at version 0.*v000001.*run ffff.*run 5a5a"
      )
    self.assert_is_version(tables, 0)

  def test_a_missing_delta_is_an_error_that_names_it(self):
    self.write_full(0)
    tables = self.open()
    self.write_delta(1)
    self.write_delta(2)
    shutil.rmtree(self.directory / "v000001")
    for refresh in (tables.refresh, self.open):
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError,
          r"v000001/manifest.json: cannot be read .*manifest of version 1",
      ):
        refresh()
    self.assert_is_version(tables, 0)
    self.write_full(3)
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 3)

  def test_a_delta_of_another_base_is_an_error(self):
    self.write_full(0)
    self.write_delta(1)
    tables = self.open()
    self.write_delta(2, base_crc32="00000000")
    with self.assertRaisesRegex(
        embedding_tables.ServedFileError, "v000001.*crc32 is .* expected 0000"
    ):
      tables.refresh()
    self.assert_is_version(tables, 1)

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_a_damaged_delta_is_not_used_and_tried_again(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)
    self.write_delta(1)
    self.write_delta(2)
    self.write_delta(3)
    path = self.directory / "v000002" / "items.delta.safetensors"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    for _ in range(2):
      with self.assertLogs(level="WARNING") as logs:
        tables.refresh()
      self.assertRegex(
          logs.output[0], "staying at version 1, since version 2 .*crc32"
      )
      self.assert_is_version(tables, 1)
    with self.assertLogs(level="WARNING"):
      self.assert_is_version(self.open(implementation), 1)
    path.write_bytes(intact)
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 3)

  def test_goes_on_from_the_delta_that_was_reached(self):
    self.write_full(0)
    tables = self.open()
    for number in (1, 2, 3):
      self.write_delta(number)
    path = self.directory / "v000003" / "items.delta.safetensors"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    current = (3, self.crc32[3])
    # Replaced while it was read, and then again what it was.
    with mock.patch.object(
        embedding_tables._versions,
        "read_current",
        side_effect=[current, current, (4, "0" * 8), current],
    ):
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError, "v000003/items.delta"
      ):
        tables.refresh()
    self.assert_is_version(tables, 2)
    path.write_bytes(intact)
    # No longer needed: rows of version 1 would come back.
    shutil.rmtree(self.directory / "v000001")
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 3)

  def test_what_was_reached_before_it_was_read_again_counts(self):
    self.write_full(0)
    tables = self.open()
    for number in (1, 2):
      self.write_delta(number)
    (self.directory / "v000002" / "items.delta.safetensors").write_bytes(b"")
    current, replaced = (2, self.crc32[2]), (3, "0" * 8)
    with mock.patch.object(
        embedding_tables._versions,
        "read_current",
        side_effect=[current] * 2 + [replaced] * 2 + [current] * 3,
    ):
      with self.assertLogs(level="WARNING"):
        self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 1)

  def test_rows_that_do_not_ascend_are_refused(self):
    self.write_full(0)
    change = written_tables.WrittenChange(
        [3, 3], np.zeros((2, version_cases.COLUMNS), np.float32)
    )
    for rows in ([3, 3], [-1, 4], [4, version_cases.ROWS]):
      change.rows = rows
      written_tables.write_delta(
          self.directory,
          self.written,
          {"items": change},
          1,
          (0, self.crc32[0]),
      )
      for implementation in version_cases.IMPLEMENTATIONS:
        with self.assertLogs(level="WARNING") as logs:
          tables = self.open(implementation)
        self.assertRegex(logs.output[0], "ascending rows below 40")
        self.assert_is_version(tables, 0)

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_a_delta_may_have_several_files(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)
    rows = np.array([1, 2, 3, 20, 39])
    values = self.random.integers(0, 9, (5, version_cases.COLUMNS)).astype(
        np.float32
    )
    change = written_tables.WrittenChange(rows, values, [7], num_files=2)

    def write(number, **changes):
      for field, value in changes.items():
        setattr(change, field, value)
      self.crc32[number] = written_tables.write_delta(
          self.directory,
          self.written,
          {"items": change},
          number,
          (number - 1, self.crc32[number - 1]),
      )

    write(1)
    self.expected[1] = self.expected[0].copy()
    self.expected[1][rows], self.expected[1][7] = values, 0
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 1)
    self.assert_is_version(self.open(implementation), 1)
    # In each file they ascend, and from one to the next they do not.
    write(2, rows=[1, 2, 20, 20, 39])
    with self.assertLogs(level="WARNING") as logs:
      tables.refresh()
    self.assertRegex(logs.output[0], "v000002.*expected ascending rows below")
    self.assert_is_version(tables, 1)

  def test_a_delta_with_other_columns_is_refused(self):
    self.write_full(0)
    tables = self.open()
    self.written["users"].combiner = "mean"
    self.write_delta(1)
    for refresh in (tables.refresh, self.open):
      with self.assertLogs(level="WARNING") as logs:
        refresh()
      self.assertRegex(logs.output[0], "v000001.*'users'.*'mean'.*'sum'")
    self.assert_is_version(tables, 0)
    self.written["users"].combiner = "sum"
    self.written["new"] = self.written["users"]
    self.write_delta(1, base=0)
    with self.assertLogs(level="WARNING") as logs:
      self.assertFalse(tables.refresh())
    self.assertRegex(logs.output[0], "table 'new' has .* expected None")

  def test_versions_that_are_removed_meanwhile_are_read_again(self):
    self.write_full(0)
    read_version = embedding_tables._versions.read_version

    def replace(directory, number, crc32):
      if number == 0:
        shutil.rmtree(self.directory / "v000000")
        self.write_full(1)
      return read_version(directory, number, crc32)

    with mock.patch.object(embedding_tables._versions, "read_version", replace):
      tables = self.open()
    self.assert_is_version(tables, 1)


class AtOneVersionTest(version_cases.TestCase):

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_lookups_see_one_version(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)
    refreshed = threading.Event()

    def refresh():
      tables.refresh()
      refreshed.set()

    with tables.at_one_version() as held:
      self.write_delta(1)
      thread = threading.Thread(target=refresh)
      thread.start()
      with tables.at_one_version():  # Once more does nothing.
        self.assertFalse(refreshed.wait(0.2))
      self.assert_is_version(held, 0)
      self.assert_is_version(tables, 0)
      with self.assertRaisesRegex(RuntimeError, "in at_one_version"):
        tables.refresh()
    thread.join()
    self.assert_is_version(tables, 1)
    with self.assertRaises(KeyError), tables.at_one_version():
      tables.lookup("none", 0)
    self.write_delta(2)
    self.assertTrue(tables.refresh())

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_what_a_signal_raises_gives_the_version_back(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)

    class Timeout(Exception):
      pass

    def handle(*_):
      raise Timeout

    before = signal.signal(signal.SIGALRM, handle)
    self.addCleanup(signal.signal, signal.SIGALRM, before)
    for i in range(300):
      try:
        try:
          signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 20))
          while True:
            with tables.at_one_version():
              tables.lookup("items", 3)
        finally:
          signal.setitimer(signal.ITIMER_REAL, 0)
      except Timeout:
        pass
      # This thread could refresh, and so can another one.
      self.assertFalse(tables.refresh())
      other = threading.Thread(
          target=tables._snapshot.rows.apply, args=([], 0), daemon=True
      )
      other.start()
      other.join(20)
      self.assertFalse(other.is_alive())

  def test_another_thread_may_end_a_block(self):
    self.write_full(0)
    tables = self.open()
    block = tables.at_one_version()
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    self.write_full(1)
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 1)

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_blocks_of_a_thread_may_end_in_any_order(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)
    first, second = tables.at_one_version(), tables.at_one_version()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # As one of two coroutines that wait.
    self.write_full(1)
    with self.assertRaisesRegex(RuntimeError, "in at_one_version"):
      tables.refresh()
    self.assert_is_version(tables, 0)
    second.__exit__(None, None, None)
    self.assertTrue(tables.refresh())
    self.assert_is_version(tables, 1)

  @parameterized.parameters(*version_cases.IMPLEMENTATIONS)
  def test_readers_never_see_a_mix(self, implementation):
    self.written["items"].values[:] = 0
    self.written["users"].values[:] = 0
    self.write_full(0)
    tables = self.open(implementation)
    wrong, looks, is_done = [], [], threading.Event()
    ids = np.repeat(version_cases.EVERY_ID, 50)

    def read():
      while not is_done.is_set():
        rows = tables.lookup("items", ids)
        if rows.min() != rows.max():
          wrong.append("a lookup")
        with tables.at_one_version():
          version = tables.version
          rows = tables.lookup("items", version_cases.EVERY_ID)
          users = tables.lookup("users", [0, 6])
        if not (rows == version).all() or not (users == version).all():
          wrong.append("lookups at one version")
        looks.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
      thread.start()
    for number in range(1, 9):
      changes = {
          name: written_tables.WrittenChange(
              np.arange(len(table.values)),
              np.full(table.values.shape, number, np.float32),
          )
          for name, table in self.written.items()
      }
      if number == 5:
        for table in self.written.values():
          table.values[:] = number
        self.write_full(number)
      else:
        self.crc32[number] = written_tables.write_delta(
            self.directory,
            self.written,
            changes,
            number,
            (number - 1, self.crc32[number - 1]),
        )
      self.assertTrue(tables.refresh())
      begin = len(looks)
      while len(looks) < begin + 4 and not wrong:
        time.sleep(0.001)
    is_done.set()
    for thread in threads:
      thread.join()
    self.assertEmpty(wrong)


if __name__ == "__main__":
  absltest.main()
