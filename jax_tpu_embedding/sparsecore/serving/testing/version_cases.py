# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A directory of versions, written from NumPy, for tests."""

from __future__ import annotations

import pathlib
from unittest import mock

from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.serving import embedding_tables
from jax_tpu_embedding.sparsecore.serving.testing import written_tables
import numpy as np

IMPLEMENTATIONS = ("native", "numpy")
# Of table "items".
ROWS, COLUMNS = 40, 6
EVERY_ID = np.arange(ROWS)


class TestCase(parameterized.TestCase):
  """A directory where row r of version v is v in some rows, else older."""

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path) / "served"
    self.random = np.random.default_rng(0)
    self.crc32 = {}
    self.expected = {}  # version -> rows of "items"
    self.written = {
        "items": written_tables.WrittenTable(
            self.random.integers(0, 9, (ROWS, COLUMNS)).astype(np.float32)
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
    rows = np.sort(self.random.choice(ROWS, 6, replace=False))
    change = written_tables.WrittenChange(
        rows=rows[:5],
        values=np.full((5, COLUMNS), number, np.float32),
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
        tables.lookup("items", EVERY_ID), self.expected[number]
    )
