# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Native chunks and those of tensorstore are the same files."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import _zarr_rows
import ml_dtypes
import numpy as np

# As all files here that share a process.
jax.config.update("jax_num_cpu_devices", 6)

_VARIABLE = _row_blocks.Variable(table="items")


class ChunkFilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path)
    # A URL is tensorstore's.
    self.native = _zarr_rows.Directory(f"{self.path}/native")
    self.store = _zarr_rows.Directory(f"file://{self.path}/store")

  def write(self, directory, array, values):
    sink = directory.create_array("items.table", array, _VARIABLE)
    written = [
        sink.write(first, values[first:end]) for first, end in array.ranges()
    ]
    for write in written:
      write.result()
    directory.sync()

  def read(self, directory, array, ranges):
    source = directory.open_array("items.table", array, _VARIABLE)
    return [values for _, values in source.blocks(ranges)]

  @parameterized.parameters(
      (np.float32, 96, 24),
      (ml_dtypes.bfloat16, 100, 24),  # the last chunk has 4 rows
      (np.float16, 7, 7),
  )
  def test_both_write_and_read_the_same(self, dtype, rows, chunk_rows):
    array = _zarr_rows.ArrayFormat(
        rows=rows, columns=3, dtype=np.dtype(dtype).name, chunk_rows=chunk_rows
    )
    values = np.random.default_rng(0).normal(size=(rows, 3)).astype(dtype)
    for directory in (self.native, self.store):
      self.write(directory, array, values)
    files = sorted((self.path / "store").rglob("*.*.*"))
    self.assertLen(files, len(array.ranges()))
    for file in files:
      self.assertEqual(
          (self.path / "native" / "items.table" / file.name).read_bytes(),
          file.read_bytes(),
          file.name,
      )
    # Whole chunks, and what a table with fewer rows takes of them.
    for end in (rows, rows - 2):
      ranges = _row_blocks.ranges_of(end, chunk_rows)
      for directory in (self.native, self.store):
        found = np.concatenate(self.read(directory, array, ranges))
        np.testing.assert_array_equal(found, values[:end], strict=True)

  def test_blocks_are_of_one_chunk(self):
    array = _zarr_rows.ArrayFormat(
        rows=40, columns=3, dtype="float32", chunk_rows=8
    )
    self.write(self.native, array, np.zeros((40, 3), np.float32))
    for block in ((4, 8), (0, 9)):
      with self.assertRaisesRegex(
          ValueError, r"native/items.table: rows \[.* chunks have 8"
      ):
        self.read(self.native, array, [block])

  def test_directories_that_cannot_be_made_are_an_error(self):
    (self.path / "native").mkdir()
    array = _zarr_rows.ArrayFormat(
        rows=40, columns=3, dtype="float32", chunk_rows=8
    )
    (self.path / "native" / "items.table").touch()
    with self.assertRaisesRegex(
        _row_blocks.CheckpointError, "Cannot write table 'items' to .*native"
    ):
      self.native.create_array(
          "items.table", array, _VARIABLE, with_metadata=False
      )

  @parameterized.parameters(None, "zstd")
  def test_files_that_are_gone_are_noticed(self, compression):
    array = _zarr_rows.ArrayFormat(
        rows=16,
        columns=4,
        dtype="float32",
        chunk_rows=8,
        compression=compression,
    )
    rows = self.native.create_array("items.table", array, _VARIABLE)
    for first, _ in array.ranges():
      rows.write(first, np.ones((8, 4), np.float32)).result()
    self.native.sync()
    directory = self.path / "native" / "items.table"
    for name in ("zarr.json", "c.1.0"):
      content = (directory / name).read_bytes()
      (directory / name).unlink()
      with self.assertRaisesRegex(
          _row_blocks.CheckpointError, f"1 files are gone, .*table/{name}:"
      ):
        self.native.sync()
      (directory / name).write_bytes(content)
    self.native.sync()
    directory.rename(self.path / "moved")
    with self.assertRaisesRegex(_row_blocks.CheckpointError, "Cannot write to"):
      self.native.sync()


if __name__ == "__main__":
  absltest.main()
