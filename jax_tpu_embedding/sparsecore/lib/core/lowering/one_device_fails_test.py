# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What is wrong on one of several CPU devices leaves none of them waiting.

In each program all devices add something up after the call. One that failed by
itself would not come, and XLA would end the process, and with it this test.
"""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import custom_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import local_lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import row_gradients
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)
_LIMITS = dict(max_ids_per_partition=16, max_unique_ids_per_partition=16)
# A SparseCore on each of four devices, and as much for each of them; the tables
# are of four rows per device that shares them.
_ROWS, _DIM, _BATCH = 4, 3, 2
_GRADIENT = np.ones((4 * _BATCH, _DIM), np.float32)


def _lookup(coo, table, gradient):
  del gradient
  return lookup.lookup_p.bind(*coo, table, device_batch_size=_BATCH, **_LIMITS)


def _lookup_without_columns(coo, table, gradient):
  return _lookup(coo, table[:, 0], gradient)


def _local_lookup(coo, table, gradient):
  del gradient
  _, embedding_ids, sample_ids, gains, _ = coo
  return local_lookup.local_lookup_p.bind(
      embedding_ids, sample_ids, gains, table, device_batch_size=_BATCH
  )


def _sgd(coo, table, gradient):
  return update.UPDATE_PRIMITIVES["sgd"].bind(
      *coo, table, gradient, np.float32(1), **_LIMITS
  )


def _custom(coo, table, gradient):
  (table,) = custom_update.custom_update_p.bind(
      *coo,
      gradient,
      table,
      num_hyperparameters=0,
      custom_computation_fn=lambda grad, row: row - grad,
      **_LIMITS,
  )
  return table


def _coo(num_sharing, wrong=None):
  """A sample of one id on each device; `wrong` is an id of the last one."""
  row_pointers = np.full((4, 8), 8 * num_sharing, np.int32)
  row_pointers[:, :num_sharing] = 8 * np.arange(num_sharing) + 1
  cells = np.zeros((4, 8 * num_sharing), np.int32)
  embedding_ids = cells.copy()
  if wrong is not None:
    embedding_ids[3, 0] = wrong
  gains = np.ones(cells.shape, np.float32)
  return [x.reshape(-1) for x in (row_pointers, embedding_ids, cells, gains)]


def _mesh(**sizes):
  devices = np.array(jax.devices()).reshape(tuple(sizes.values()))
  return jax.sharding.Mesh(devices, tuple(sizes))


def _run(function, mesh, buffers, *, axis=None):
  """The results of all devices, which wait for those along other axes.

  Args:
    function: of buffers or ids, a table, and the gradient of activations.
    mesh: of four devices.
    buffers: of all of them.
    axis: that splits the table; None: each device has all of it.
  """
  others = tuple(name for name in mesh.axis_names if name != axis)

  def run(buffers, table, gradient):
    coo = (*buffers, np.int32(1)) if len(buffers) > 1 else buffers
    result = function(coo, table, gradient)
    return result, jax.lax.psum(result.sum(keepdims=True), others)

  every = P(mesh.axis_names)
  num_sharing = 1 if axis is None else mesh.shape[axis]
  table = np.ones((_ROWS * num_sharing, _DIM), np.float32)
  program = jax.jit(
      jax.shard_map(
          run,
          mesh=mesh,
          in_specs=(every, P(axis), every),
          out_specs=(every, P(axis)),
      )
  )
  results, _ = jax.block_until_ready(program(buffers, table, _GRADIENT))
  return np.asarray(results)


def _lookup_ids(num_sharing):
  def function(ids, table, gradient):
    del gradient
    return lookup_ids.lookup_ids_p.bind(
        table,
        np.int32(1),
        *ids,
        device_batch_size=_BATCH,
        combiner="sum",
        global_device_count=num_sharing,
        num_sc_per_device=1,
        features=(
            raw_ids.Feature(name="f", vocabulary_size=_ROWS * num_sharing),
        ),
        feature_stacking_strategy="SPLIT_THEN_STACK",
        keeps_errors=False,
        **_LIMITS,
    )

  return function


class EachHasAllRowsTest(parameterized.TestCase):
  """They tell each other nothing, and one has NaN."""

  @parameterized.parameters(
      _lookup, _lookup_without_columns, _local_lookup, _sgd, _custom
  )
  def test_what_depends_on_corrupt_buffers_is_nan(self, function):
    mesh = _mesh(x=4)
    valid = _run(function, mesh, _coo(1))
    self.assertFalse(np.isnan(valid).any())
    *valid, _ = np.split(valid, 4)
    *others, last = np.split(_run(function, mesh, _coo(1, wrong=_ROWS)), 4)
    self.assertTrue(np.isnan(last).any())
    np.testing.assert_array_equal(others, valid)

  def test_wrong_raw_ids_give_nan(self):
    mesh = _mesh(x=4)
    ids = np.zeros((4 * _BATCH, 1), np.int32)
    ids[-1] = _ROWS
    results = _run(_lookup_ids(1), mesh, [ids])
    self.assertTrue(np.isnan(results[-_BATCH:]).all())
    np.testing.assert_array_equal(results[:-_BATCH], 1)

  def test_gradients_of_rows_are_nan(self):
    mesh = _mesh(x=4, rows=1)

    def gradients(coo, table, gradient):
      del table
      with mesh_axis.rows_are_split_over("rows"):
        _, values = row_gradients.row_gradients_p.bind(
            *coo,
            gradient,
            global_device_count=1,
            rows_per_device=_ROWS,
            max_unique_ids_per_partition=16,
        )
      return values

    buffers = _coo(1, wrong=_ROWS)
    *others, last = np.split(_run(gradients, mesh, buffers), 4)
    self.assertTrue(np.isnan(last).any())
    self.assertFalse(np.isnan(others).any())


class RowsAreSharedAlongOneAxisTest(parameterized.TestCase):
  """Devices along other axes are told as well, so that all of them raise."""

  @parameterized.product(
      function=(_lookup, _lookup_without_columns, _sgd, _custom),
      axis=("first", "second"),
  )
  def test_corrupt_buffers_raise_on_all(self, function, axis):
    mesh = _mesh(first=2, second=2)
    valid = _run(function, mesh, _coo(2), axis=axis)
    self.assertFalse(np.isnan(valid).any())
    with self.assertRaisesRegex(_NATIVE_ERRORS, f"embedding_ids.*{_ROWS}"):
      _run(function, mesh, _coo(2, wrong=_ROWS), axis=axis)

  @parameterized.parameters("first", "second")
  def test_wrong_raw_ids_raise_on_all(self, axis):
    mesh = _mesh(first=2, second=2)
    ids = np.zeros((4 * _BATCH, 1), np.int32)
    results = _run(_lookup_ids(2), mesh, [ids], axis=axis)
    np.testing.assert_array_equal(results, 1)
    ids[-1] = 2 * _ROWS
    with self.assertRaisesRegex(_NATIVE_ERRORS, "Feature 'f'.*has id 8"):
      _run(_lookup_ids(2), mesh, [ids], axis=axis)


if __name__ == "__main__":
  absltest.main()
