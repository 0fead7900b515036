# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import sparse_dense_matmul_csr
from jax_tpu_embedding.sparsecore.lib.core.testing import random_coo
import numpy as np

_lookup_p = sparse_dense_matmul_csr.tpu_sparse_dense_matmul_csr_primitive
_LIMITS = dict(max_ids_per_partition=64, max_unique_ids_per_partition=64)

# jaxlib raises the first if the call ran at once, the second if it ran later.
_NATIVE_ERRORS = (ValueError, jax.errors.JaxRuntimeError)


def _lookup_on_cpu(
    coo,
    table,
    *,
    batch_size,
    num_sc_per_device,
    enable_minibatching=False,
    **kw,
):
  del num_sc_per_device  # Follows from the row pointers.
  return _lookup_p.bind(
      *coo.operands,
      table,
      device_batch_size=batch_size,
      enable_minibatching=enable_minibatching,
      **_LIMITS,
      **kw,
  )


def _lookup_reference(coo, table, *, batch_size, **kw):
  function = functools.partial(
      lookup_and_update.lookup, device_batch_size=batch_size, **kw
  )
  return jax.jit(function)(*coo.operands, table)


_IMPLEMENTATIONS = {"reference": _lookup_reference, "cpu": _lookup_on_cpu}


class LookupTest(parameterized.TestCase):

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      num_sc=[1, 2, 3, 4],
      num_minibatches=[None, 1, 3],
      ids_per_sample=[0, 6],
  )
  def test_is_the_matrix_product(
      self, implementation, num_sc, num_minibatches, ids_per_sample
  ):
    coo = random_coo.random_coo(
        num_sc_per_device=num_sc,
        rows_per_shard=40,
        batch_size_per_sc=12,
        ids_per_sample=ids_per_sample,
        num_minibatches=num_minibatches,
        seed=num_sc,
    )
    table = np.random.default_rng(0).normal(size=(num_sc * 40, 24))
    table = table.astype(np.float32)
    actual = _IMPLEMENTATIONS[implementation](
        coo,
        table,
        batch_size=num_sc * 12,
        num_sc_per_device=num_sc,
        enable_minibatching=num_minibatches is not None,
    )
    self.assertEqual(actual.dtype, jnp.float32)
    np.testing.assert_allclose(actual, coo.weights @ table, atol=1e-5)

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_quantization_rounds_rows_to_buckets(self, implementation):
    # One sample with ids 0 to 3 and gains 1; buckets at -1, 0 and 1.
    coo = _one_id_per_sample([0, 1, 2, 3])
    table = np.array([[-7.0], [-0.4], [0.6], [0.5]], np.float32)
    actual = _IMPLEMENTATIONS[implementation](
        coo,
        table,
        batch_size=4,
        num_sc_per_device=1,
        quantization_config=(-1.0, 1.0, 3),
    )
    np.testing.assert_allclose(actual[:, 0], [-1, 0, 1, 1], atol=1e-6)

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS), dtype=["bfloat16", "float16"]
  )
  def test_tables_of_low_precision_are_read_exactly(
      self, implementation, dtype
  ):
    coo = random_coo.random_coo(
        num_sc_per_device=2,
        rows_per_shard=40,
        batch_size_per_sc=12,
        ids_per_sample=3,
    )
    table = np.random.default_rng(0).normal(size=(80, 24))
    table = jnp.asarray(table, dtype)
    look_up = functools.partial(
        _IMPLEMENTATIONS[implementation],
        coo,
        batch_size=24,
        num_sc_per_device=2,
    )
    actual = look_up(table)
    self.assertEqual(actual.dtype, jnp.float32)
    np.testing.assert_array_equal(actual, look_up(table.astype(jnp.float32)))

  @parameterized.parameters(None, 3)
  def test_table_without_columns_is_one_of_one_column(self, num_minibatches):
    coo = random_coo.random_coo(
        num_sc_per_device=2,
        rows_per_shard=40,
        batch_size_per_sc=12,
        ids_per_sample=3,
        num_minibatches=num_minibatches,
    )
    table = np.random.default_rng(0).normal(size=80).astype(np.float32)
    lookup = functools.partial(
        _lookup_on_cpu,
        coo,
        batch_size=24,
        num_sc_per_device=2,
        enable_minibatching=num_minibatches is not None,
    )
    actual = lookup(table)
    self.assertEqual(actual.shape, (24,))
    np.testing.assert_array_equal(actual, lookup(table[:, None])[:, 0])

  def test_reference_shows_ids_out_of_range(self):
    coo = _one_id_per_sample([0, 4, -1, 3])
    table = np.ones((4, 1), np.float32)
    actual = _lookup_reference(coo, table, batch_size=4, num_sc_per_device=1)
    np.testing.assert_array_equal(actual[:, 0], [1, np.nan, np.nan, 1])

  def test_runs_without_jit(self):
    coo = _one_id_per_sample([2, 0])
    with jax.disable_jit():
      actual = _lookup_on_cpu(
          coo,
          jnp.arange(4.0)[:, None],
          batch_size=2,
          num_sc_per_device=1,
      )
    np.testing.assert_array_equal(actual, [[2], [0]])

  def test_runs_under_jit_and_compiles_once(self):
    coo = _one_id_per_sample([3, 1])
    traces = []

    @jax.jit
    def step(table):
      traces.append(table)
      return _lookup_on_cpu(coo, table, batch_size=2, num_sc_per_device=1)

    for scale in (1.0, 2.0):
      table = scale * np.arange(4.0, dtype=np.float32)[:, None]
      np.testing.assert_array_equal(step(table)[:, 0], [3 * scale, scale])
    self.assertLen(traces, 1)


def _one_id_per_sample(ids):
  """One SparseCore, sample i has ids[i] with gain 1."""
  pad = 8 - len(ids)
  return random_coo.RandomCoo(
      row_pointers=np.array([len(ids)] + [8] * 7, np.int32),
      embedding_ids=np.array(ids + [-1] * pad, np.int32),
      sample_ids=np.array([*range(len(ids))] + [-1] * pad, np.int32),
      gains=np.array([1.0] * len(ids) + [np.nan] * pad, np.float32),
      num_minibatches=np.int32(1),
      weights=np.zeros((0, 0)),
      touched=np.zeros(0, bool),
  )


def _valid_arguments():
  """Operands and static parameters of a lookup of 4 samples in 8 rows."""
  coo = _one_id_per_sample([0, 1, 2, 3])
  names = (
      "row_pointers",
      "embedding_ids",
      "sample_ids",
      "gains",
      "num_minibatches",
  )
  return dict(
      zip(names, coo.operands),
      table=np.ones((8, 16), np.float32),
      device_batch_size=4,
      max_ids_per_partition=64,
      max_unique_ids_per_partition=64,
  )


def _bind(arguments):
  operands = [
      arguments.pop(name)
      for name in (
          "row_pointers",
          "embedding_ids",
          "sample_ids",
          "gains",
          "num_minibatches",
          "table",
      )
  ]
  return _lookup_p.bind(*operands, **arguments)


class LookupChecksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("baseline", {}, None),
      (
          "row_pointers_type",
          {"row_pointers": np.ones(8, np.int16)},
          "row_pointers must have type int32, got int16",
      ),
      (
          "sample_ids_type",
          {"sample_ids": np.ones(8, np.float32)},
          "sample_ids must have type int32, got float32",
      ),
      (
          "embedding_ids_type",
          {"embedding_ids": np.ones(8, np.uint32)},
          "embedding_ids must have type int32, got uint32",
      ),
      (
          "gains_type",
          {"gains": np.ones(8, np.float16)},
          "gains must have type float32, got float16",
      ),
      (
          "num_minibatches_type",
          {"num_minibatches": np.float32(1)},
          "num_minibatches must have type int32, got float32",
      ),
      (
          "table_type",
          {"table": np.ones((8, 16), np.int32)},
          "table must have type float32, bfloat16, float16, got int32",
      ),
      (
          "row_pointers_rank",
          {"row_pointers": np.ones((8, 1), np.int32)},
          r"row_pointers must have dim 1, got 2: shape \(8, 1\)",
      ),
      (
          "table_rank",
          {"table": np.ones((8, 16, 1), np.float32)},
          "table must have dim 1 or 2, got 3",
      ),
      (
          "num_minibatches_rank",
          {"num_minibatches": np.ones(1, np.int32)},
          "num_minibatches must have dim 0, got 1",
      ),
      (
          "sample_ids_rank",
          {"sample_ids": np.ones((8, 1), np.int32)},
          "sample_ids must have dim 1, got 2",
      ),
      (
          "embedding_ids_shape",
          {"embedding_ids": np.ones(16, np.int32)},
          r"embedding_ids must have shape \(8,\), got \(16,\)",
      ),
      (
          "gains_shape",
          {"gains": np.ones(16, np.float32)},
          r"gains must have shape \(8,\), got \(16,\)",
      ),
      (
          "sharding_strategy",
          {"sharding_strategy": 2},
          r"sharding_strategy must be 1 \(MOD\), got 2",
      ),
      (
          "max_ids",
          {"max_ids_per_partition": 0},
          "max_ids_per_partition must be positive, got 0",
      ),
      (
          "max_unique_ids",
          {"max_unique_ids_per_partition": -1},
          "max_unique_ids_per_partition must be positive, got -1",
      ),
      (
          "batch_size",
          {"device_batch_size": 0},
          "device_batch_size must be positive, got 0",
      ),
      (
          "buckets",
          {"quantization_config": (0.0, 1.0, 1)},
          "num_buckets must be at least 2, got 1",
      ),
      (
          "quantization_range",
          {"quantization_config": (1.0, 1.0, 2)},
          "min_value must be less than max_value, got 1.0 >= 1.0",
      ),
      (
          "quantization_nan",
          {"quantization_config": (np.nan, 1.0, 4)},
          "must be finite in float32, got nan, 1.0",
      ),
      (
          "quantization_infinite",
          {"quantization_config": (0.0, np.inf, 4)},
          "must be finite in float32, got 0.0, inf",
      ),
      (
          "quantization_beyond_float32",
          {"quantization_config": (1e39, 1.001e39, 4)},
          r"must be finite in float32, got 1e\+39",
      ),
      (
          "quantization_difference",
          {"quantization_config": (-3e38, 3e38, 4)},
          "must be finite in float32.* inf and 0.0",
      ),
      (
          "quantization_quotient",
          {"quantization_config": (0.0, 1e-42, 4)},
          "must be finite in float32.* and inf",
      ),
      (
          "row_pointers_size",
          {"row_pointers": np.ones(12, np.int32)},
          "row_pointers has 12 entries, which fits no number of SparseCores",
      ),
  )
  def test_bad_arguments_raise(self, change, message):
    arguments = _valid_arguments() | change
    if message is None:
      self.assertEqual(_bind(arguments).shape, (4, 16))
    else:
      with self.assertRaisesRegex(ValueError, message):
        _bind(arguments)

  def test_unknown_parameters_raise_with_the_name_of_the_primitive(self):
    with self.assertRaisesRegex(TypeError, "argument 'max_ids'") as raised:
      _bind(_valid_arguments() | {"max_ids": 3})
    self.assertIn(
        "In a call of sparse_dense_matmul_csr.", raised.exception.__notes__
    )

  @parameterized.named_parameters(
      ("fraction", {"max_ids_per_partition": 1.5}, "max_ids.*, got 1.5"),
      ("claim", {"max_unique_ids_per_partition": True}, "max_uni.*, got True"),
      ("batch_size", {"device_batch_size": 4.5}, "device_b.*, got 4.5"),
      ("buckets", {"quantization_config": (0, 1, 2.5)}, "num_buck.*, got 2.5"),
  )
  def test_what_is_no_integer_raises(self, change, message):
    with self.assertRaisesRegex(TypeError, message):
      _bind(_valid_arguments() | change)

  @parameterized.named_parameters(
      ("row_pointer", "row_pointers", 0, 9, r"row_pointers\[0\] is 9"),
      ("negative_pointer", "row_pointers", 0, -1, r"row_pointers\[0\] is -1"),
      ("lowest_pointer", "row_pointers", 0, -(2**31), r"\[0\] is -2147483648"),
      (
          "id",
          "embedding_ids",
          3,
          8,
          r"embedding_ids\[3\] is 8, expected 0 to 7",
      ),
      ("negative_id", "embedding_ids", 3, -2, r"embedding_ids\[3\] is -2"),
      ("sample", "sample_ids", 2, 4, r"sample_ids\[2\] is 4, expected 0 to 3"),
      ("padding", "sample_ids", 2, 2**31 - 1, r"sample_ids\[2\] is 2147483647"),
  )
  def test_corrupt_buffers_raise_on_cpu(self, name, position, value, message):
    arguments = _valid_arguments()
    arguments[name][position] = value
    with self.assertRaisesRegex(_NATIVE_ERRORS, message):
      _bind(arguments).block_until_ready()

  def test_rows_that_cores_cannot_share_raise_on_cpu(self):
    arguments = _valid_arguments() | {
        "row_pointers": np.zeros(16, np.int32),
        "table": np.ones((7, 16), np.float32),
    }
    with self.assertRaisesRegex(
        _NATIVE_ERRORS,
        "The table has 7 rows, expected a multiple of the 2 SparseCores",
    ):
      _bind(arguments).block_until_ready()

  def test_cannot_be_differentiated(self):
    def loss(table):
      return _bind(_valid_arguments() | {"table": table}).sum()

    with self.assertRaisesRegex(
        NotImplementedError, "cannot be differentiated.*SparseCoreEmbed"
    ):
      jax.grad(loss)(jnp.ones((8, 16)))

  def test_mapped_it_runs_once_for_each(self):
    tables = np.random.default_rng(0).normal(size=(8, 3, 16))
    tables = tables.astype(np.float32)

    def lookup(table, gains):
      return _bind(_valid_arguments() | {"table": table, "gains": gains})

    gains = np.arange(8, dtype=np.float32)
    actual = jax.vmap(lookup, (1, None))(tables, gains)
    for i in range(3):
      np.testing.assert_array_equal(actual[i], lookup(tables[:, i], gains))


if __name__ == "__main__":
  absltest.main()
