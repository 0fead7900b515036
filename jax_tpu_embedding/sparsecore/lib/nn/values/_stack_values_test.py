# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Moving rows takes no more memory than it has to.

That rows arrive where they should is tested through _reshard_test.py.
"""

from __future__ import annotations

import tracemalloc

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _stack_values
import numpy as np

jax.config.update("jax_num_cpu_devices", 16)

_MEBIBYTE = 1 << 20
_FLOAT32 = np.dtype(np.float32)


def _place(num_shards, sizes=(30_000, 20_016, 9_984), columns=16):
  """Tables of one width, each rotated against the one before it."""
  tables = []
  end = 0
  for i, rows in enumerate(sizes):
    local_rows = -(-rows // (8 * num_shards)) * 8
    tables.append(
        _placement.TablePlacement(
            name=f"t{i}",
            vocabulary_size=rows,
            embedding_dim=columns,
            padded_vocabulary_size=local_rows * num_shards,
            row_offset_in_shard=end,
            shard_rotation=i % num_shards,
        )
    )
    end += local_rows
  return _placement.StackPlacement(
      name="stack",
      num_shards=num_shards,
      rows_in_shard=end,
      embedding_dim=columns,
      tables=tuple(tables),
  )


def _tables(placement, dtype=np.float32):
  return [
      np.zeros((table.vocabulary_size, table.embedding_dim), dtype)
      for table in placement.tables
  ]


def _peak_bytes(function):
  tracemalloc.start()
  try:
    function()
    return tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


class HostTest(parameterized.TestCase):

  # Another dtype is converted on the way, not in an array of its own.
  @parameterized.parameters(np.float32, np.float64)
  def test_stacking_allocates_the_stack_only(self, dtype):
    placement = _place(6)
    tables = _tables(placement, dtype)
    peak = _peak_bytes(
        lambda: _stack_values.stack_on_host(placement, tables, 0.0, _FLOAT32)
    )
    size = 4 * placement.num_rows * placement.embedding_dim
    self.assertGreater(size, 3 * _MEBIBYTE)
    self.assertBetween(peak, size, size + _MEBIBYTE // 4)

  def test_unstacking_allocates_the_tables_only(self):
    placement = _place(6)
    shards = np.zeros(
        (6, placement.rows_in_shard, placement.embedding_dim), np.float32
    )
    peak = _peak_bytes(
        lambda: _stack_values.unstack_on_host(placement, shards, _FLOAT32)
    )
    size = sum(table.nbytes for table in _tables(placement))
    self.assertBetween(peak, size, size + _MEBIBYTE // 4)


class DeviceTest(parameterized.TestCase):

  def _analyze(self, num_devices):
    """Memory of both programs, and the bytes of the stack, on one device."""
    placement = _place(16)
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
    by_rows = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec("x", None)
    )
    shape = (placement.num_rows, placement.embedding_dim)
    tables = [jax.device_put(table, by_rows) for table in _tables(placement)]
    stack = jax.device_put(np.zeros(shape, np.float32), by_rows)
    stacking = _stack_values.stack_program(
        placement, shape, _FLOAT32, by_rows, by_rows
    )
    unstacking = _stack_values.unstack_program(
        placement, _FLOAT32, by_rows, (by_rows,) * len(tables)
    )
    programs = stacking.lower(tables, 0.0), unstacking.lower(stack)
    return (
        [program.compile().memory_analysis() for program in programs],
        stack.nbytes // num_devices,
    )

  def test_one_device_needs_no_temporary(self):
    programs, size = self._analyze(1)
    self.assertEqual(programs[0].output_size_in_bytes, size)
    for program in programs:
      self.assertLess(program.temp_size_in_bytes, _MEBIBYTE // 64)

  def test_devices_hold_their_part_only(self):
    programs, size = self._analyze(16)
    self.assertEqual(programs[0].output_size_in_bytes, size)
    # What is sent and what is received. A whole stack would be 16 sizes.
    for program in programs:
      self.assertLess(program.temp_size_in_bytes, 2.5 * size)


if __name__ == "__main__":
  absltest.main()
