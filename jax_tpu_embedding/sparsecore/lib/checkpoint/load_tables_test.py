# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows that are no checkpoint."""

from __future__ import annotations

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import checkpoint_case
import numpy as np
import safetensors
import safetensors.numpy

jax.config.update("jax_num_cpu_devices", 6)

_ONE = checkpoint_case.ONE


class LoadTablesTest(checkpoint_case.CheckpointCase):

  def test_loads_rows_and_leaves_slots(self):
    topology = any_tables.Topology(4, 2, "rotated")
    specs = any_tables.feature_specs(topology)
    before = any_tables.values()
    variables = any_tables.random_variables(topology, specs, before)
    rows = np.random.default_rng(5).normal(size=(1003, 12))
    file = self.create_tempfile("rows.npy").full_path
    np.save(file, rows)

    loaded = checkpoint.load_tables(
        variables, specs, {"items": np.load(file, mmap_mode="r")}
    )

    expected = before | {
        "items": before["items"] | {None: rows.astype(np.float32)}
    }
    self.assert_same_values(any_tables.read(loaded, specs, topology), expected)

  def test_no_rows_are_none(self):
    specs = any_tables.feature_specs(_ONE)
    before = any_tables.values()
    loaded = checkpoint.load_tables(
        any_tables.random_variables(_ONE, specs, before),
        specs,
        {"items": np.ones((0, 12), np.float32)},
        policy=checkpoint.RestorePolicy(rows="grow"),
    )
    self.assert_same_values(any_tables.read(loaded, specs, _ONE), before)

  def load_slice(self, rows, array):
    """Loads a slice of a file of safetensors, which has `rows`."""
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    loaded = checkpoint.load_tables(variables, specs, {"items": array})
    found = any_tables.read(loaded, specs, _ONE)["items"][None]
    np.testing.assert_array_equal(found, rows)

  def test_loads_what_has_the_methods_of_a_slice_of_safetensors(self):
    rows = np.random.default_rng(5).normal(size=(1003, 12)).astype(np.float32)
    read = []

    class Slice:

      def get_shape(self):
        return [1003, 12]

      def __getitem__(self, index):
        read.append(index)
        return rows[index]

    with mock.patch.object(_row_blocks, "BLOCK_BYTES", any_tables.BLOCK_BYTES):
      self.load_slice(rows, Slice())
    # In blocks, never as a whole.
    self.assertGreater(len(read), 10)
    self.assertLess(max(index.stop - index.start for index in read), 100)

  def test_loads_slices_of_safetensors(self):
    rows = np.random.default_rng(5).normal(size=(1003, 12)).astype(np.float32)
    file = self.create_tempfile("rows.safetensors").full_path
    safetensors.numpy.save_file({"rows": rows}, file)
    with safetensors.safe_open(file, "np") as opened:
      self.load_slice(rows, opened.get_slice("rows"))

  @parameterized.parameters(
      (np.zeros((1003, 16), np.float32), "16 columns, the spec 12"),
      (np.zeros((1000, 12), np.float32), "1000 rows, the spec 1003"),
      (np.zeros((1003,), np.float32), r"shape \(1003,\), not"),
      (np.zeros((1003, 12), np.int32), "int32, not of floating point"),
      (np.zeros((1003, 12), "V8"), "void64, not of floating point"),
      (np.zeros((1003, 12), [("x", "f4")]), "void32, not of floating point"),
  )
  def test_arrays_that_do_not_fit_are_not_loaded(self, array, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(ValueError, f"'items': .*{error}"):
      checkpoint.load_tables(variables, specs, {"items": array})

  @parameterized.parameters(
      ([[1.0] * 12] * 1003, "a list in place of an array. .*numpy.asarray"),
      (np.ma.masked_less(np.ones((1003, 12)), 2), "masked.*filled"),
  )
  def test_what_is_no_array_is_not_loaded(self, array, error):
    specs = any_tables.feature_specs(_ONE)
    variables = any_tables.new_variables(_ONE, specs)
    with self.assertRaisesRegex(TypeError, f"'items': .*{error}"):
      checkpoint.load_tables(variables, specs, {"items": array})


if __name__ == "__main__":
  absltest.main()
