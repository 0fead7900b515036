# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Versions: deltas in order, what does not fit, damaged files, readers."""

import json
import os
import pathlib
import shutil
import signal
import threading
import time
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.serving import _versions
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

_CASES = flags.DEFINE_integer("cases", 300, "Damages that are tried.")

_ROWS, _COLUMNS = 40, 6
_EVERY_ID = np.arange(_ROWS)
_IMPLEMENTATIONS = ("native", "numpy")

# A table that needs no files.
_NO_ROWS = {
    "rows": 0,
    "columns": 6,
    "row_bytes": 24,
    "encoding": "float32",
    "combiner": "sum",
    "files": [],
}


class WithVersions(parameterized.TestCase):
  """A directory where row r of version v is v in some rows, else older."""

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path) / "served"
    self.random = np.random.default_rng(0)
    self.crc32 = {}
    self.expected = {}  # version -> rows of "items"
    self.written = {
        "items": written_tables.WrittenTable(
            self.random.integers(0, 9, (_ROWS, _COLUMNS)).astype(np.float32)
        ),
        "users": written_tables.WrittenTable(
            np.ones((7, 3), np.float32), "int8"
        ),
    }

  def write_full(self, number, **kwargs):
    self.crc32[number] = written_tables.write_full(
        self.directory, self.written, number, **kwargs
    )
    self.expected[number] = self.written["items"].values.copy()

  def write_delta(self, number, base=None, base_crc32=None, **kwargs):
    """Changes some rows of both tables, and deletes one."""
    base = number - 1 if base is None else base
    rows = np.sort(self.random.choice(_ROWS, 6, replace=False))
    change = written_tables.WrittenChange(
        rows=rows[:5],
        values=np.full((5, _COLUMNS), number, np.float32),
        deleted=rows[5:],
    )
    users = written_tables.WrittenChange(
        rows=[2], values=np.full((1, 3), number, np.float32)
    )
    self.crc32[number] = written_tables.write_delta(
        self.directory,
        self.written,
        {"items": change, "users": users},
        number,
        (base, base_crc32 or self.crc32[base]),
        **kwargs,
    )
    self.written["items"].values[rows[:5]] = number
    self.written["items"].values[rows[5:]] = 0
    self.written["users"].values[2] = number
    self.expected[number] = self.written["items"].values.copy()

  def open(self, implementation="native", **kwargs):
    native = embedding_tables.pybind_embedding_tables
    with mock.patch.object(
        embedding_tables,
        "pybind_embedding_tables",
        native if implementation == "native" else None,
    ):
      return embedding_tables.open(self.directory, **kwargs)

  def assert_is_version(self, tables, number):
    self.assertEqual(tables.version, number)
    np.testing.assert_array_equal(
        tables.lookup("items", _EVERY_ID), self.expected[number]
    )


class RefreshTest(WithVersions):

  @parameterized.product(
      implementation=_IMPLEMENTATIONS, copy_to_huge_pages=(False, True)
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
        np.zeros((_ROWS + 5, 2), np.float32), "float16"
    )
    self.write_full(1)
    with self.assertLogs(level="INFO") as logs:
      self.assertTrue(tables.refresh())
    self.assertRegex(logs.output[0], "loaded the full version 1: .*version 0")
    self.assertEqual(tables.version, 1)
    self.assertEqual(tables.lookup("items", _ROWS + 4).shape, (2,))
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

  @parameterized.parameters(*_IMPLEMENTATIONS)
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
        [3, 3], np.zeros((2, _COLUMNS), np.float32)
    )
    for rows in ([3, 3], [-1, 4], [4, _ROWS]):
      change.rows = rows
      written_tables.write_delta(
          self.directory,
          self.written,
          {"items": change},
          1,
          (0, self.crc32[0]),
      )
      for implementation in _IMPLEMENTATIONS:
        with self.assertLogs(level="WARNING") as logs:
          tables = self.open(implementation)
        self.assertRegex(logs.output[0], "ascending rows below 40")
        self.assert_is_version(tables, 0)

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_a_delta_may_have_several_files(self, implementation):
    self.write_full(0)
    tables = self.open(implementation)
    rows = np.array([1, 2, 3, 20, 39])
    values = self.random.integers(0, 9, (5, _COLUMNS)).astype(np.float32)
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


class AtOneVersionTest(WithVersions):

  @parameterized.parameters(*_IMPLEMENTATIONS)
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

  @parameterized.parameters(*_IMPLEMENTATIONS)
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

  @parameterized.parameters(*_IMPLEMENTATIONS)
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

  @parameterized.parameters(*_IMPLEMENTATIONS)
  def test_readers_never_see_a_mix(self, implementation):
    self.written["items"].values[:] = 0
    self.written["users"].values[:] = 0
    self.write_full(0)
    tables = self.open(implementation)
    wrong, looks, is_done = [], [], threading.Event()
    ids = np.repeat(_EVERY_ID, 50)

    def read():
      while not is_done.is_set():
        rows = tables.lookup("items", ids)
        if rows.min() != rows.max():
          wrong.append("a lookup")
        with tables.at_one_version():
          version = tables.version
          rows = tables.lookup("items", _EVERY_ID)
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


class DamageTest(WithVersions):

  def edit(self, change, number=0):
    """Changes a manifest, and makes it current."""
    path = self.directory / f"v{number:06d}" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    written_tables.write_manifest(self.directory, manifest)

  @parameterized.parameters(
      ("CURRENT", None, "CURRENT: cannot be read .*expected the line"),
      ("CURRENT", b"0 v000000\n", "CURRENT: the line is .*expected a number"),
      ("CURRENT", b"0 ../x 00000000\n", "CURRENT: it names '../x', expected"),
      ("v000000/manifest.json", None, "cannot be read .*manifest of version 0"),
      ("v000000/manifest.json", b"{}", "its crc32 is a3a6bf43, exp"),
      ("v000000/items-00001-of-00001.safetensors", None, "cannot be read"),
      ("v000000/items-00001-of-00001.safetensors", b"", "it has 0 bytes"),
  )
  def test_missing_and_foreign_files_are_errors(self, name, content, message):
    self.write_full(0)
    path = self.directory / name
    path.unlink()
    if content is not None:
      path.write_bytes(content)
    with self.assertRaisesRegex(embedding_tables.ServedFileError, message) as e:
      self.open()
    self.assertIn(str(path), str(e.exception))

  @parameterized.parameters(
      ("CURRENT", "CURRENT: it has .*, expected the line .*of at most 100"),
      ("v000000/manifest.json", "expected the manifest of version 0, of at"),
      ("v000001/items.delta.safetensors", "it has .* bytes, expected changes"),
  )
  def test_files_that_are_too_large_are_not_read(self, name, message):
    self.write_full(0)
    self.write_delta(1)
    # Of holes, which take no room on the disk.
    os.truncate(self.directory / name, 1 << 40)
    if "delta" not in name:
      with self.assertRaisesRegex(embedding_tables.ServedFileError, message):
        self.open()
      return
    with self.assertLogs(level="WARNING") as logs:
      self.assertEqual(self.open().version, 0)
    self.assertRegex(logs.output[0], message)

  @parameterized.parameters(
      ("format_version", 2, "has version 2, expected 1. Install a newer"),
      ("format_version", True, "is True, expected int"),
      ("format", "other", "'format' .*expected one of jax_tpu_embedding"),
      ("version", 1, r"v000001/items\S+: cannot be read"),
      ("kind", "half", "'kind' .* is 'half', expected one of full, delta"),
      ("run", 3, "'run' .* is 3, expected str"),
      ("step", "x", "'step' .* expected int or null"),
      ("tables", [], r"'tables' .* is \[\], expected dict"),
      ("tables", {"a": 1}, "'a' of the manifest is 1, expected an object"),
      ("tables", {"a\ud800": _NO_ROWS}, r"'a.ud800' .* half of a character"),
      ("features", {"f": {"table": "no"}}, "'table' .* 'no', expected one of"),
      (
          "features",
          {"f": {"table": "items", "columns": 7}},
          "'f' of .* has 7 columns, expected at most the 6 of table 'items'",
      ),
      (
          "features",
          {"f": {"table": "items", "columns": 0}},
          "'columns' of 'f' .* is 0, expected int from 1 to 2.60",
      ),
      ("file_format", "npy", "its files are 'npy', which only other programs"),
  )
  def test_wrong_manifests_are_errors(self, key, value, message):
    self.write_full(0)
    self.edit(lambda manifest: manifest.update({key: value}))
    with self.assertRaisesRegex(embedding_tables.ServedFileError, message):
      self.open()

  @parameterized.parameters(
      ("rows", -1, "'rows' .* is -1, expected int from 0 to 2.60"),
      ("rows", 10**30, "expected int from 0 to 2.60"),
      ("rows", 41, "its files have 40 rows, expected 41"),
      ("columns", 0, "'columns' .* from 1 to 2.60"),
      ("columns", 7, "'row_bytes' .* is 24, expected 28 for 7 columns"),
      ("encoding", "int2", "'encoding' .* 'int2', expected one of float32"),
      ("encoding", "int8", "'row_bytes' .* is 24, expected 16"),
      ("combiner", "max", "'combiner' .* expected one of sum, mean, sqrtn"),
      ("files", {}, "'files' .* expected list"),
      ("files", [3], "is 3, expected an object"),
  )
  def test_wrong_tables_are_errors(self, key, value, message):
    self.write_full(0)
    self.edit(lambda manifest: manifest["tables"]["items"].update({key: value}))
    with self.assertRaisesRegex(embedding_tables.ServedFileError, message):
      self.open()

  @parameterized.parameters(
      ("name", "../items", "'name' .* expected a file beside it"),
      ("name", "", "'name' .* expected a file beside it"),
      ("name", "a\0b", "'name' .* expected a file beside it"),
      ("name", "a\ud800", r"'name' .*'a.ud800', expected a file beside it"),
      ("name", "none", "v000000/none: cannot be read"),
      ("first_row", 1, "begins with row 1, expected 0"),
      ("offset", 0, "its header has 0 bytes"),
      ("offset", 192, "do not fit"),
      ("bytes", 2**60, "checksums, expected"),
      ("first_row", 2**60 + 1, "'first_row' .*, expected int from 0 to 2.60"),
      ("crc32", [3], "'crc32' of file 0 .* has .3., expected str"),
      ("crc32", [], "has 0 checksums, expected 1"),
  )
  def test_wrong_file_entries_are_errors(self, key, value, message):
    self.write_full(0)
    self.edit(
        lambda manifest: manifest["tables"]["items"]["files"][0].update(
            {key: value}
        )
    )
    with self.assertRaisesRegex(embedding_tables.ServedFileError, message):
      self.open()

  def test_files_of_deltas_must_have_the_changed_rows(self):
    for key, value, message in (
        ("changed_rows", 6, "1 files with 5 rows, expected 6 changed and 1"),
        ("files", [], "0 files with 0 rows, expected 5 changed and 1 deleted"),
    ):
      self.write_full(0)
      self.write_delta(1)
      self.edit(lambda m: m["tables"]["items"].update({key: value}), 1)
      with self.assertRaisesRegex(embedding_tables.ServedFileError, message):
        self.open()

  def test_headers_must_say_what_the_manifest_says(self):
    self.write_full(0)
    [path] = (self.directory / "v000000").glob("items-*")
    data = path.read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b"[40, 6]", b"[6, 40]")):
      self.assertIn(old, data)
      path.write_bytes(data.replace(old, new))
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError, r"expected F32\[40, 6\] of 960"
      ):
        self.open()

  def test_rows_must_begin_where_the_manifest_says(self):
    self.write_full(0)
    [path] = (self.directory / "v000000").glob("items-*")
    path.write_bytes(path.read_bytes() + bytes(64))

    def move(manifest):
      [entry] = manifest["tables"]["items"]["files"]
      entry["bytes"] += 64
      entry["offset"] += 64

    self.edit(move)
    with self.assertRaisesRegex(
        embedding_tables.ServedFileError, r"rows begin at byte \d+, expected"
    ):
      self.open()

  def test_verify_reads_all_rows(self):
    self.write_full(0)
    [path] = (self.directory / "v000000").glob("items-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    self.open()
    with self.assertRaisesRegex(
        embedding_tables.ServedFileError, f"{path}: the crc32 of its bytes"
    ):
      self.open(verify=True)

  def test_a_file_that_changes_while_it_is_verified_is_an_error(self):
    # More than was read with the header.
    self.written["items"].values = np.ones((9000, 6), np.float32)
    self.write_full(0)
    check = _versions._check_head
    [path, *_] = self.directory.rglob("items*.safetensors")
    size = path.stat().st_size

    def check_and_cut(table, file, opened):
      check(table, file, opened)
      if file.path == path:
        os.truncate(path, size - 1)

    with (
        mock.patch.object(_versions, "_check_head", check_and_cut),
        self.assertRaisesRegex(
            embedding_tables.ServedFileError,
            f"items.*: it was cut off at byte {size - 1} while it was read,"
            " expected rows 0 to 9000 of table 'items'",
        ),
    ):
      self.open(verify=True)

  @parameterized.parameters(
      "CURRENT",
      "v000000/manifest.json",
      "v000000/items-00001-of-00001.safetensors",
  )
  def test_what_is_no_file_is_an_error_and_is_not_waited_for(self, name):
    self.write_full(0)
    path = self.directory / name
    path.unlink()
    os.mkfifo(path)
    for implementation in _IMPLEMENTATIONS:
      with self.assertRaisesRegex(
          embedding_tables.ServedFileError,
          f"{path}: cannot be read .it is no regular file.",
      ):
        self.open(implementation)

  def test_rows_are_read_in_pieces_that_are_checked(self):
    # The second piece begins in a row.
    rows = np.arange(3 * 400_000, dtype=np.float32).reshape(-1, 3)
    self.written = {"items": written_tables.WrittenTable(rows)}
    self.write_full(0)
    [version] = _versions.read_chain(self.directory)
    table = version.tables["items"]
    [file] = table.files
    found = np.concatenate(list(_versions.read_rows(table, file)))
    np.testing.assert_array_equal(found.view(np.float32), rows)
    # Cut off while it is read: no page of it may be touched.
    pieces = _versions.read_rows(table, file)
    next(pieces)
    os.truncate(file.path, 100)
    with self.assertRaisesRegex(
        embedding_tables.ServedFileError, "cut off at byte .* expected rows 0"
    ):
      next(pieces)

  def test_random_damage_is_an_error_or_changes_nothing(self):
    self.write_full(0)
    self.write_delta(1)
    self.write_delta(2)
    intact = {
        path: path.read_bytes()
        for path in sorted(self.directory.rglob("*"))
        if path.is_file()
    }
    random = np.random.default_rng(0)
    results = {"error": 0, "older": 0, "same": 0}
    paths = list(intact)
    for case in range(_CASES.value):
      path = paths[random.integers(len(paths))]
      data = bytearray(intact[path])
      kind = random.integers(3)
      at = random.integers(len(data))
      if kind == 0:
        data[at] ^= 1 << random.integers(8)
      elif kind == 1:
        del data[at:]
      else:
        data[at:at] = random.bytes(3)
      path.write_bytes(data)
      with self.subTest(f"{case}: {path.name} {kind} {at}"):
        try:
          with self.assertLogs(level="INFO") as logs:
            embedding_tables._log.info("")
            tables = self.open(_IMPLEMENTATIONS[case % 2], verify=True)
        except embedding_tables.ServedFileError as error:
          self.assertIn(str(self.directory), str(error))
          results["error"] += 1
        else:
          self.assert_is_version(tables, tables.version)
          is_older = tables.version != 2
          self.assertEqual(is_older, len(logs.output) > 1)
          results["older" if is_older else "same"] += 1
      path.write_bytes(intact[path])
    self.assertGreater(results["error"], 0)
    self.assertGreater(results["older"], 0)


if __name__ == "__main__":
  absltest.main()
