# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

P = jax.sharding.PartitionSpec

_Adagrad = embedding_spec.AdagradOptimizerSpec
_OPTIMIZERS = (
    embedding_spec.SGDOptimizerSpec(),
    _Adagrad(initial_accumulator_value=0.25),
    embedding_spec.FTRLOptimizerSpec(initial_accumulator_value=0.5),
    embedding_spec.RowwiseAdagradOptimizerSpec(initial_accumulator_value=0.25),
)


def _tables(optimizer, num_shards, dtype=np.float32):
  """Two stacks: one of tables whose rows and columns need padding."""
  specs = []
  for name, rows, columns, stddev in (
      ("a", 130, 13, 1.0),
      ("b", 57, 13, 2.0),
      ("c", 40, 24, 3.0),
  ):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=rows,
        embedding_dim=columns,
        initializer=jax.nn.initializers.normal(stddev),
        optimizer=optimizer,
        dtype=dtype,
    )
    specs.append(
        embedding_spec.FeatureSpec(
            name=name,
            table_spec=table,
            input_shape=(32, 1),
            output_shape=(32, columns),
        )
    )
  embedding.auto_stack_tables(specs, num_shards, 1)
  return [spec.table_spec for spec in specs]


def _init(tables, sharding, num_sc, **options):
  return embedding.init_embedding_variables(
      jax.random.key(0), tables, sharding, num_sc, **options
  )


def _by_programs(*args, **options):
  with mock.patch.object(_host_fill, "_MAX_BYTES", 0):
    return _init(*args, **options)


class HostFillTest(parameterized.TestCase):

  def _assert_same(self, values, expected):
    self.assertEqual(jax.tree.structure(values), jax.tree.structure(expected))
    for value, other in zip(jax.tree.leaves(values), jax.tree.leaves(expected)):
      self.assertEqual(value.sharding, other.sharding)
      self.assertEqual(value.committed, other.committed)
      self.assertEqual(value.dtype, other.dtype)
      np.testing.assert_array_equal(
          np.asarray(value, np.float32), np.asarray(other, np.float32)
      )

  @parameterized.parameters(
      *((optimizer, (4, 2), np.float32) for optimizer in _OPTIMIZERS),
      (_OPTIMIZERS[1], (1, 4), jax.numpy.bfloat16),
      (_OPTIMIZERS[1], (1, 1), np.float32),
  )
  def test_makes_what_programs_make(self, optimizer, topology, dtype):
    num_devices, num_sc = topology
    mesh = jax.sharding.Mesh(jax.devices()[:num_devices], "x")
    sharding = jax.sharding.NamedSharding(mesh, P("x", None))
    tables = _tables(optimizer, num_devices * num_sc, dtype)
    values = _init(tables, sharding, num_sc)
    self._assert_same(values, _by_programs(tables, sharding, num_sc))

  def test_devices_that_share_an_axis_with_others(self):
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    for spec in (P("x", None), P(("y", "x"), None), P("x", None, None)):
      sharding = jax.sharding.NamedSharding(mesh, spec)
      num_devices = 4 if isinstance(spec[0], tuple) else 2
      tables = _tables(_OPTIMIZERS[1], num_devices * 2)
      values = _init(tables, sharding, 2, bypass_mesh_check=True)
      expected = _by_programs(tables, sharding, 2, bypass_mesh_check=True)
      self._assert_same(values, expected)

  def test_arrays_that_jax_may_move(self):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    sharding = jax.sharding.NamedSharding(mesh, P("x", None))
    tables = _tables(_OPTIMIZERS[1], 2)
    values = _init(tables, sharding, 2, commit=False)
    self.assertFalse(any(x.committed for x in jax.tree.leaves(values)))
    self._assert_same(values, _by_programs(tables, sharding, 2, commit=False))

  def test_the_memory_is_of_jax(self):
    # What is NumPy's cannot be given to a program that writes in place.
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    sharding = jax.sharding.NamedSharding(mesh, P("x", None))
    write = jax.jit(lambda x: x.at[0].add(1), donate_argnums=0)
    for dtype in (np.float32, jax.numpy.bfloat16):
      tables = _tables(_OPTIMIZERS[0], 1, dtype)
      for _ in range(8):
        for stack in _init(tables, sharding, 1).values():
          address = stack.table.unsafe_buffer_pointer()
          after = write(stack.table)
          self.assertEqual(after.unsafe_buffer_pointer(), address)

  def test_large_variables_are_made_by_programs(self):
    devices = jax.devices()[:1]
    for rows, expected in ((2**19, True), (2**19 + 1, False)):
      stack = jax.ShapeDtypeStruct((rows, 16), np.float32)
      self.assertEqual(_host_fill.is_for(stack, devices), expected)

  def test_other_devices_have_a_memory_of_their_own(self):
    stack = jax.ShapeDtypeStruct((8, 16), np.float32)
    tpu = mock.Mock(platform="tpu")
    self.assertFalse(_host_fill.is_for(stack, [jax.devices()[0], tpu]))


if __name__ == "__main__":
  absltest.main()
