# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Plain updates and buffers that are corrupt, on one device and on several."""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend import core
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import table as lowerings
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import corrupt_buffers
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.testing import device_buffers
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_NUM_SCS, _BATCH_PER_SC, _ROWS_PER_SHARD, _DIM = 4, 6, 24, 8
_LIMITS = dict(
    max_ids_per_partition=64, max_unique_ids_per_partition=_ROWS_PER_SHARD
)
_LOWEST, _HIGHEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def _coo(num_minibatches=None):
  return random_coo.random_coo(
      num_sc_per_device=_NUM_SCS,
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=_BATCH_PER_SC,
      ids_per_sample=4,
      num_minibatches=num_minibatches,
  )


_TABLE = np.ones((_NUM_SCS * _ROWS_PER_SHARD, _DIM), np.float32)
_GRADIENT = np.ones((_NUM_SCS * _BATCH_PER_SC, _DIM), np.float32)


def _sgd(*coo_and_table, **params):
  *coo, table, gradient = coo_and_table
  return update.UPDATE_PRIMITIVES["sgd"].bind(
      *coo, table, gradient, np.float32(1), **_LIMITS, **params
  )


def _define(name, rule):
  primitive = core.Primitive(name)
  primitive.def_abstract_eval(lambda *operands, **params: operands[5])
  mlir.register_lowering(primitive, rule)
  return primitive


_plain_sgd_p = _define(
    "plain_sgd", lowerings.lowering_rules("update_sgd")[None]
)


def _plain_sgd(*coo_and_table, **params):
  """As on a platform that has no rule of its own."""
  *coo, table, gradient = coo_and_table
  return _plain_sgd_p.bind(
      *coo,
      table,
      gradient,
      np.float32(1),
      **(dict(enable_minibatching=False) | _LIMITS | params),
  )


def _custom(*coo_and_table, **params):
  *coo, table, gradient = coo_and_table
  (table,) = custom_update.custom_update_p.bind(
      *coo,
      gradient,
      table,
      num_hyperparameters=0,
      custom_computation_fn=lambda grad, row: row - grad,
      **_LIMITS,
      **params,
  )
  return table


def _run(
    function,
    coo,
    num_devices,
    change=None,
    num_minibatches=None,
    enable_minibatching=False,
):
  """The table after an update with `coo`, of which `change` is made.

  Args:
    function: the update.
    coo: valid buffers.
    num_devices: that share the SparseCores.
    change: name, position and value in the buffers of the last SparseCore.
    num_minibatches: another number of them than `coo` has.
    enable_minibatching: of the update.
  """
  if num_minibatches is None:
    num_minibatches = coo.num_minibatches
  buffers = [
      *map(np.array, device_buffers.spread(coo, _NUM_SCS, num_devices)),
      np.int32(num_minibatches),
  ]
  if change is not None:
    name, position, value = change
    values = buffers[update_rules.COO_OPERANDS.index(name)]
    values[values.size // _NUM_SCS * (_NUM_SCS - 1) + position] = value
  program = _program(function, num_devices, enable_minibatching)
  return np.asarray(program(*buffers, _TABLE, _GRADIENT))


@functools.cache
def _program(function, num_devices, enable_minibatching):
  run = functools.partial(function, enable_minibatching=enable_minibatching)
  if num_devices > 1:
    split, whole = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
    run = jax.shard_map(
        run,
        mesh=jax.sharding.Mesh(jax.devices()[:num_devices], ("x",)),
        in_specs=(*[split] * 4, whole, split, split),
        out_specs=split,
        check_vma=False,
    )
  return jax.jit(run)


# Name, position and value.
_CHANGES = (
    ("row_pointers", 0, _LOWEST),
    ("row_pointers", 1, -1),
    ("row_pointers", 3, 1000),
    ("row_pointers", 2, _HIGHEST),
    ("row_pointers", 1, 0),
    ("row_pointers", 4, 1000),  # of no partition
    ("embedding_ids", 0, _ROWS_PER_SHARD),
    ("embedding_ids", 1, -1),
    ("sample_ids", 0, _BATCH_PER_SC),
    ("sample_ids", 1, -1),
)


class CheckBuffersTest(parameterized.TestCase):

  @parameterized.product(num_devices=[1, 4], change=_CHANGES)
  def test_custom_updates_raise_what_others_do_on_cpu(
      self, num_devices, change
  ):
    messages = []
    for function in (_sgd, _custom):
      with self.assertRaises(_NATIVE_ERRORS) as raised:
        _run(function, _coo(), num_devices, change)
      messages.append(str(raised.exception).removeprefix("INVALID_ARGUMENT: "))
    self.assertStartsWith(
        messages[0].removeprefix(f"Device {num_devices - 1} of the axis: "),
        change[0],
    )
    self.assertEqual(*messages)

  @parameterized.product(num_devices=[1, 2], num_minibatches=[0, 65])
  def test_number_of_minibatches(self, num_devices, num_minibatches):
    run = functools.partial(
        _run,
        coo=_coo(num_minibatches=2),
        num_devices=num_devices,
        num_minibatches=num_minibatches,
        enable_minibatching=True,
    )
    with self.assertRaisesRegex(
        _NATIVE_ERRORS, f"num_minibatches is {num_minibatches}, expected 1 to"
    ):
      run(_custom)
    self.assertTrue(np.isnan(run(_plain_sgd)).any())

  @parameterized.product(num_devices=[1, 4], change=_CHANGES)
  def test_rows_are_nan_where_programs_cannot_raise(self, num_devices, change):
    name, *_ = change
    valid = _run(_plain_sgd, _coo(), num_devices)
    self.assertFalse(np.isnan(valid).any())
    table = _run(_plain_sgd, _coo(), num_devices, change)
    is_nan = np.isnan(table)
    self.assertTrue(is_nan.any())
    if name == "row_pointers":
      return
    # All rows that the device names, and the one that the wrong id stands for.
    first = (num_devices - 1) * _GRADIENT.shape[0] // num_devices
    named = _coo().weights[first:].any(axis=0)
    self.assertTrue(is_nan[named].all())
    self.assertLessEqual(is_nan[~named].all(axis=1).sum(), 1)

  @parameterized.parameters(
      (False, -1, 1), (False, 1000, 1), (True, -1, 1), (True, 8, 0)
  )
  def test_all_cells_become_entries_if_partitions_are_wrong(
      self, enable_minibatching, pointer, num_minibatches
  ):
    num_pointers = 8 * 64 if enable_minibatching else 8
    cells = np.zeros(16, np.int32)  # all in range
    coo, is_valid = corrupt_buffers.nan_if_corrupt(
        (
            np.full(num_pointers, pointer, np.int32),
            cells,
            cells,
            np.ones(16, np.float32),
            np.int32(num_minibatches),
        ),
        num_devices=1,
        rows_per_device=8,
        batch_size=8,
        enable_minibatching=enable_minibatching,
    )
    self.assertFalse(is_valid)
    self.assertTrue(np.isnan(coo[3]).all())
    np.testing.assert_array_equal(coo[0], np.full(num_pointers, 16))
    self.assertEqual(coo[4], 1)

  def test_in_several_processes_rows_are_nan(self):
    # An error would leave the others in a collective.
    _program.cache_clear()
    self.addCleanup(_program.cache_clear)
    with mock.patch.object(mesh_axis, "_is_in_one_process", lambda _: False):
      table = _run(_custom, _coo(), 4, ("embedding_ids", 0, 1000))
    self.assertTrue(np.isnan(table).any())

  @parameterized.parameters(None, 3)
  def test_valid_buffers_stay_as_they_are(self, num_minibatches):
    coo = _coo(num_minibatches)
    checked, is_valid = corrupt_buffers.nan_if_corrupt(
        coo.operands,
        num_devices=1,
        rows_per_device=_TABLE.shape[0],
        batch_size=_GRADIENT.shape[0],
        enable_minibatching=num_minibatches is not None,
    )
    self.assertTrue(is_valid)
    # Ids and samples beside the entries are of no use.
    for k in (0, 3, 4):
      np.testing.assert_array_equal(checked[k], coo.operands[k])

  @parameterized.product(num_devices=[1, 4], num_minibatches=[None, 3])
  def test_valid_buffers_do_not_raise(self, num_devices, num_minibatches):
    coo = _coo(num_minibatches)
    tables = [
        _run(
            function,
            coo,
            num_devices,
            enable_minibatching=num_minibatches is not None,
        )
        for function in (_custom, _plain_sgd, _sgd)
    ]
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[0], tables[2])


if __name__ == "__main__":
  absltest.main()
