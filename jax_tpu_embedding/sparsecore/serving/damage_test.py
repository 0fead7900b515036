# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Damaged and foreign files are named errors."""

import json
import os
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.serving import _rows
from jax_tpu_embedding.sparsecore.serving import _versions
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import version_cases
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

_CASES = flags.DEFINE_integer("cases", 300, "Damages that are tried.")

# A table that needs no files.
_NO_ROWS = {
    "rows": 0,
    "columns": 6,
    "row_bytes": 24,
    "encoding": "float32",
    "combiner": "sum",
    "files": [],
}


class DamageTest(version_cases.TestCase):

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
    check = _rows._check_head
    [path, *_] = self.directory.rglob("items*.safetensors")
    size = path.stat().st_size

    def check_and_cut(table, file, opened):
      check(table, file, opened)
      if file.path == path:
        os.truncate(path, size - 1)

    with (
        mock.patch.object(_rows, "_check_head", check_and_cut),
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
    for implementation in version_cases.IMPLEMENTATIONS:
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
    found = np.concatenate(list(_rows.read_rows(table, file)))
    np.testing.assert_array_equal(found.view(np.float32), rows)
    # Cut off while it is read: no page of it may be touched.
    pieces = _rows.read_rows(table, file)
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
            tables = self.open(
                version_cases.IMPLEMENTATIONS[case % 2], verify=True
            )
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
