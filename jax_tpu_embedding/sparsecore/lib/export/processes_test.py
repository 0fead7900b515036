# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Two processes that export and publish together, and one that fails or dies."""

from __future__ import annotations

import json
import os
import pathlib
import socket

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _parts
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import export
from jax_tpu_embedding.sparsecore.lib.export.testing import one_of_two
from jax_tpu_embedding.sparsecore.lib.export.testing import plain_reader
from jax_tpu_embedding.sparsecore.serving import embedding_tables
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_TOPOLOGY = any_tables.Topology(1, 1, "alone")
# Rows of the first process, whose blocks have 88 and 72 rows (one_of_two.py),
# and bytes of a row.
_FIRST_ROWS = {"items": (6 * 88, 20), "users": (72, 20), "hours": (5, 20)}


def _free_port() -> int:
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


def _results_of_two(task, directory):
  port = _free_port()
  children = [one_of_two.start(task, directory, i, port) for i in range(2)]
  lines = [child.communicate()[0].splitlines() for child in children]
  return [
      None if child.returncode else json.loads(of_child[-1])
      for child, of_child in zip(children, lines)
  ]


def _variables(specs, step):
  return any_tables.random_variables(
      _TOPOLOGY, specs, one_of_two.values_of_step(step)
  )


def _files(version):
  return {
      path.name: path.read_bytes()
      for path in pathlib.Path(version).iterdir()
      if path.name != "manifest.json"
  }


class RunsTest(parameterized.TestCase):

  @parameterized.parameters(
      # One process; blocks of 10 rows.
      ((0,), 35, {0: (0, 35)}, [(0, 10), (10, 20), (20, 30), (30, 35)]),
      (
          (0, 0, 1, 1),
          45,
          {0: (0, 30), 1: (30, 45)},
          [(0, 10), (10, 20), (30, 40), (40, 45)]
          + [(20, 30), (0, 0), (0, 0), (0, 0)],
      ),
      # Rows go to processes in the order of their devices.
      ((1, 0), 35, {1: (0, 20), 0: (20, 35)},
       [(0, 10), (20, 30), (10, 20), (30, 35)]),
      # A process with more devices has more rows.
      ((0, 1, 0), 30, {0: (0, 20), 1: (20, 30)},
       [(0, 10), (20, 30), (10, 20)]),
      ((0, 1), 5, {0: (0, 5), 1: (5, 5)}, [(0, 5), (0, 0)]),
  )  # fmt: skip
  def test_runs_and_their_blocks(self, turns, rows, runs, blocks):
    of_rows = _row_blocks.ArrayRows("t", np.zeros((rows, 1), np.float32))
    of_rows.block_rows = 10
    source = _sources.Source(
        tables={}, rows_of={"t": of_rows}, turns={"t": turns}
    )
    found = _parts.runs_of(source, "t")
    self.assertEqual(found, runs)
    self.assertEqual(list(found), list(runs))
    self.assertEqual(_parts.blocks_in_turn(found, 10, turns), blocks)


class ProcessesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(self.create_tempdir().full_path)
    self.served = self.directory / "served"
    self.specs = any_tables.feature_specs(_TOPOLOGY)

  def assert_has_step(self, step):
    """Every reader has the rows that were published, as one process does."""
    tables = embedding_tables.open(self.served, verify=True)
    int8 = _encodings.ENCODINGS["int8"]
    found = plain_reader.read(self.served)
    for name, by_slot in one_of_two.values_of_step(step).items():
      rows = _encodings.encode(int8, by_slot[None]).rows
      np.testing.assert_array_equal(found[name], rows, name)
      np.testing.assert_array_equal(
          tables.lookup(name, np.arange(len(rows))),
          int8.decode(rows, by_slot[None].shape[1]),
          name,
      )

  def test_two_processes_write_together(self):
    first, second = _results_of_two("write", self.directory)
    with self.subTest("export"):
      self.check_exports(first, second)
    with self.subTest("publish"):
      self.check_publishing(first, second)

  def check_exports(self, first, second):
    variables = _variables(self.specs, 0)
    for stacking in one_of_two.STACKINGS:
      for name, by_slot in any_tables.values().items():
        rows, row_bytes = _FIRST_ROWS[name]
        # One process has all rows of a table that every device has.
        is_whole = stacking == "mixed" and name != "users"
        rows = len(by_slot[None]) if is_whole else rows
        expected = export.export_tables(
            self.directory / f"{stacking} {name}",
            variables,
            self.specs,
            tables=[name],
            encoding="int8",
            max_file_bytes=rows * row_bytes,
        )
        together = self.directory / f"{stacking} safetensors"
        files = _files(expected.path)
        found = _files(together / "v000000")
        self.assertLen(files, 1 if name == "hours" or is_whole else 2)
        self.assertEqual(files, {key: found[key] for key in files})
        manifests = [
            plain_reader.versions(served)[0]["tables"][name]
            for served in (together, pathlib.Path(expected.path).parent)
        ]
        rms_errors = [manifest.pop("rms_error") for manifest in manifests]
        # Their terms are added in another order.
        np.testing.assert_allclose(*rms_errors, rtol=1e-6)
        self.assertEqual(*manifests)
        array = np.load(self.directory / f"{stacking} npy/v000000/{name}.npy")
        np.testing.assert_array_equal(array, by_slot[None])
      written = {name: rows for name, rows, _ in any_tables.TABLES}
      for result in (first, second):
        for file_format in ("safetensors", "npy"):
          self.assertEqual(result[f"{stacking} {file_format}"], written)

  def check_publishing(self, first, second):
    for result in (first, second):
      whole = {"hours": 5, "items": 1003, "users": 130}
      self.assertEqual(result["full"], ["full", whole])
      for key, items, users in (
          ("delta", 4, 1),
          # With what could not be published before.
          ("after errors", 1, 0),
          ("restarted", 1, 0),
          ("again", 1, 0),
          ("moved", 1, 0),
      ):
        changed = {"hours": 0, "items": items, "users": users}
        self.assertEqual(result[key], ["delta", changed], key)
    for key, process, message in (
        ("NaN", 0, "ValueError: .*'items': 2 of 1003 rows cannot be encoded as"
         " int8. The first is row 5: nan in column 3"),
        ("NaN of one", 0, "ValueError: .*'items': 1 of 1003 rows cannot be"),
        ("steps", 0, "ValueError: .*Process 1 publishes step 3, and process 0"
         " step 2"),
        ("disk", 1, "OSError: .*File too large"),
        ("not shared", 1, "OSError: .*v000003, which another process has"
         " written, is not here.* on a file system that all processes share"),
        ("lost", 0, "OSError: .*v000003/items.delta-00002-of-00002.safetensors,"
         " which another process has written, is not here"),
        ("locked", 0, "RuntimeError: .*is being written by process"),
        ("forgotten", None, "TimeoutError: Nobody told"),
        ("late", None, "OSError: Process 1 could not write its part: it did not"
         " finish within 1 seconds"),
        ("arguments", 1, "ValueError: .*must be one of .*got 'int7'"),
        ("one process", None, "ValueError: Stack '.*' is on devices of the"
         r" processes \[[01]\], and the job has 2"),
    ):  # fmt: skip
      other = f": Process {process} could not write its part: "
      for i, result in enumerate((first, second)):
        self.assertRegex(result[key], "^" + message)
        self.assertEqual(other in result[key], process not in (None, i), key)
    self.assertFalse((self.directory / "other").exists())
    self.assert_has_step(5)
    self.assertCountEqual(
        os.listdir(self.served),
        ["CURRENT", "LOCK", *(f"v{number:06}" for number in range(6))],
    )
    # Both processes have changed rows of "items", and one of "users".
    self.assertCountEqual(
        _files(self.served / "v000001"),
        [
            "items.delta-00001-of-00002.safetensors",
            "items.delta-00002-of-00002.safetensors",
            "users.delta-00002-of-00002.safetensors",
        ],
    )
    # One process goes on.
    with export.Publisher(self.served, self.specs) as publisher:
      version = publisher.publish(_variables(self.specs, 6), 6)
    self.assertEqual(version.kind, "delta")
    self.assertEqual(version.tables["items"].written_rows, 1)
    self.assert_has_step(6)

  def test_a_process_that_dies_leaves_the_version_before(self):
    first, second = _results_of_two("die", self.directory)
    self.assertIsNone(second)
    self.assertRegex(first, "Error: ")
    self.assert_has_step(0)
    self.assertCountEqual(
        os.listdir(self.served), ["CURRENT", "LOCK", "v000000"]
    )
    with export.Publisher(self.served, self.specs) as publisher:
      version = publisher.publish(_variables(self.specs, 1), 1)
    self.assertEqual((version.number, version.kind), (1, "delta"))
    self.assert_has_step(1)


if __name__ == "__main__":
  absltest.main()
