# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs that make a variable show all they take, and need little memory.

What it is made of is tested through _initialize_test.py.
"""

from __future__ import annotations

import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _slot_variables
from jax_tpu_embedding.sparsecore.lib.nn.testing import huge_pages
from jax_tpu_embedding.sparsecore.lib.nn.values import _fills
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _table_blocks
import numpy as np

jax.config.update("jax_num_cpu_devices", 8)

_ROWS = 160_000
_COLUMNS = 16
_TABLE_BYTES = 4 * _ROWS * _COLUMNS


def _make_fills(num_devices, num_tables, initializer, variable=0):
  """What makes a stack of equal tables, or one of their slots."""
  rows_in_shard = _ROWS // num_devices
  placement = _placement.StackPlacement(
      name="s",
      num_shards=num_devices,
      rows_in_shard=rows_in_shard * num_tables,
      embedding_dim=_COLUMNS,
      tables=tuple(
          _placement.TablePlacement(
              name=f"t{i}",
              vocabulary_size=_ROWS - 3,
              embedding_dim=_COLUMNS,
              padded_vocabulary_size=_ROWS,
              row_offset_in_shard=i * rows_in_shard,
              shard_rotation=i % num_devices,
          )
          for i in range(num_tables)
      ),
  )
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
  # These tests are about programs that write into stacks.
  with mock.patch.object(_host_fill, "_MAX_BYTES", 0):
    return _fills.plan_fills(
        jax.random.key(0),
        placement,
        variable,
        [initializer] * num_tables,
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)),
        np.dtype(np.float32),
    )


def _whole(key, shape):
  """Random numbers that are not made in blocks of rows."""
  return jax.nn.initializers.normal()(jax.random.fold_in(key, 1), shape)


def _memory(num_devices, num_tables, initializer=_whole, variable=0):
  """What one device needs for the programs of each table of a stack."""
  fills = _make_fills(num_devices, num_tables, initializer, variable)
  return [
      [program.compile().memory_analysis() for program in fill.lower()]
      for fill in fills
  ]


_MAX_BLOCK_BYTES = 2**16


class TextTest(absltest.TestCase):

  def test_programs_show_arguments_that_they_do_not_need(self):
    # _compile_once.py takes two programs of one text for the same.
    for fill in _make_fills(1, num_tables=2, initializer=_whole):
      arguments = jax.tree.leaves((fill.stack, fill.source, fill.place))
      (signature,) = re.findall(r"@main\((.*?)\) ->", fill.lower()[0].as_text())
      self.assertLen(re.findall(r"%arg\d+: ", signature), len(arguments))


class MemoryTest(parameterized.TestCase):

  def test_no_device_holds_a_whole_table(self):
    ((memory,),) = _memory(num_devices=8, num_tables=1)
    part = _TABLE_BYTES // 8
    self.assertEqual(memory.output_size_in_bytes, part)
    # Random bits take three times their result, sending it once more.
    self.assertLess(memory.temp_size_in_bytes, 5 * part)

  def test_one_device_holds_what_the_initializer_needs(self):
    own = (
        jax.jit(_whole, static_argnums=1)
        .lower(jax.random.key(0), (_ROWS, _COLUMNS))
        .compile()
        .memory_analysis()
    )
    ((memory,),) = _memory(num_devices=1, num_tables=1)
    self.assertLess(memory.temp_size_in_bytes, own.temp_size_in_bytes + 1000)

  @parameterized.parameters(1, 8)
  def test_tables_are_written_into_their_stack_in_place(self, num_devices):
    num_tables = 8
    (first,), *others = _memory(num_devices, num_tables)
    others = [memory for (memory,) in others]
    part = _TABLE_BYTES // num_devices
    self.assertEqual(first.output_size_in_bytes, num_tables * part)
    for memory in others:
      self.assertEqual(memory.alias_size_in_bytes, num_tables * part)
    # Of one table, not of the stack.
    for memory in (first, *others):
      self.assertLess(memory.temp_size_in_bytes, 5 * part)

  @parameterized.product(
      num_devices=(1, 8),
      initializer=(jax.nn.initializers.normal(), jax.nn.initializers.ones),
  )
  def test_blocks_of_rows_take_their_own_memory(self, num_devices, initializer):
    num_tables = 8
    with mock.patch.object(
        _table_blocks, "_MAX_ELEMENTS", _MAX_BLOCK_BYTES // 32
    ):
      (new,), *tables = _memory(num_devices, num_tables, initializer)
    stack = num_tables * _TABLE_BYTES // num_devices
    self.assertEqual(new.output_size_in_bytes, stack)
    self.assertEqual(new.temp_size_in_bytes, 0)
    self.assertLen(tables, num_tables)
    for make, write in tables:
      self.assertLessEqual(
          make.temp_size_in_bytes + make.output_size_in_bytes, _MAX_BLOCK_BYTES
      )
      self.assertEqual(write.output_size_in_bytes, stack)
      self.assertEqual(write.alias_size_in_bytes, stack)
      self.assertLess(write.temp_size_in_bytes, _MAX_BLOCK_BYTES)

  @parameterized.product(
      num_devices=(1, 8),
      case=(
          (_slot_variables.Constant(0.5), 1),
          (lambda: np.zeros((_ROWS, _COLUMNS), np.float32), 0),
      ),
  )
  def test_others_are_written_into_zeros_too(self, num_devices, case):
    initializer, variable = case
    (new,), *tables = _memory(num_devices, 2, initializer, variable)
    stack = 2 * _TABLE_BYTES // num_devices
    self.assertEqual(new.output_size_in_bytes, stack)
    self.assertLen(tables, 2)
    for (memory,) in tables:
      self.assertEqual(memory.alias_size_in_bytes, stack)
      self.assertLess(memory.temp_size_in_bytes, 1000)

  @parameterized.parameters(1, 8)
  def test_blocks_are_written_into_zeros_in_huge_pages(self, num_devices):
    new, *_ = _make_fills(
        num_devices, num_tables=8, initializer=jax.nn.initializers.normal()
    )
    stack = new.run(new.programs, None)
    np.testing.assert_array_equal(stack, np.zeros(new.stack.shape))
    self.assertEqual(stack.sharding, new.stack.sharding)
    huge_pages.assert_are_under(self, stack)


if __name__ == "__main__":
  absltest.main()
