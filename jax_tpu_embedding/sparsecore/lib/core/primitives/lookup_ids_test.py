# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup from ids has the bits of conversion and lookup, on any devices."""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import batch_errors
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup_ids
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_NUM_SCS = 4
_ROWS_PER_SHARD = 32
_NUM_SAMPLES = 24  # of each feature, on all devices
_LIMITS = dict(max_ids_per_partition=4096, max_unique_ids_per_partition=4096)
_P = jax.sharding.PartitionSpec


def _features():
  """A ragged feature with weights and a dense one, in one stack."""
  return (
      raw_ids.Feature(
          name="a",
          vocabulary_size=60,
          col_shift=1,
          is_ragged=True,
          has_weights=True,
          non_finite_weights="keep",
      ),
      raw_ids.Feature(
          name="b",
          vocabulary_size=30,
          row_offset=_NUM_SAMPLES,
          col_offset=16 * _NUM_SCS,
          col_shift=3,
          out_of_range_ids="drop",
      ),
  )


def _ids(num_devices):
  """Values, row splits and weights of `a`, ids of `b`; all devices'."""
  rng = np.random.default_rng(0)
  num_samples = _NUM_SAMPLES
  sizes = rng.integers(0, 7, num_samples)
  sizes[[3, 17]] = 60  # whole tables, with repeats
  values, splits, weights = [], [], []
  capacity = 160 * 4 // num_devices
  parts = np.split(sizes, num_devices)
  all_values = iter(rng.integers(0, 60, sizes.sum()))
  all_weights = rng.normal(size=sizes.sum())
  all_weights[::7] = 0
  all_weights[1::11] = 1e-40  # subnormal
  all_weights = iter(all_weights)
  for part in parts:
    used = int(part.sum())
    values.append([next(all_values) for _ in range(used)])
    values[-1] += [-9] * (capacity - used)
    weights.append([next(all_weights) for _ in range(used)])
    weights[-1] += [0.5] * (capacity - used)
    splits.append(np.concatenate([[0], np.cumsum(part)]))
  return (
      np.int32(np.concatenate(values)),
      np.int32(np.concatenate(splits)),
      np.float32(np.concatenate(weights)),
      np.int32(rng.integers(-1, 30, (num_samples, 5))),
  )


def _params(combiner, num_devices):
  return dict(
      combiner=combiner,
      global_device_count=num_devices,
      num_sc_per_device=_NUM_SCS // num_devices,
      features=_features(),
      feature_stacking_strategy="SPLIT_THEN_STACK",
  )


def _lookup_params(num_devices):
  return _LIMITS | dict(device_batch_size=2 * _NUM_SAMPLES // num_devices)


def _from_ids(
    combiner,
    num_devices,
    table,
    *ids,
    num_minibatches=1,
    keeps_errors=False,
    **params,
):
  return lookup_ids.lookup_ids_p.bind(
      table,
      jnp.int32(num_minibatches),
      *ids,
      keeps_errors=keeps_errors,
      **params,
      **_params(combiner, num_devices),
      **_lookup_params(num_devices),
  )


def _from_buffers(combiner, num_devices, table, *ids):
  buffers = convert_ids.convert_ids_p.bind(
      *ids, **_params(combiner, num_devices)
  )
  return lookup.lookup_p.bind(
      *buffers, jnp.int32(1), table, **_lookup_params(num_devices)
  )


def _run(function, num_devices, table, ids, **options):
  """Activations [2, samples, ...], feature after feature."""
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("x",))
  function = jax.jit(
      jax.shard_map(
          functools.partial(function, **options),
          mesh=mesh,
          in_specs=_P("x"),
          out_specs=_P("x"),
          check_vma=False,
      )
  )
  stacked = np.asarray(function(table, *ids))
  # By SparseCore, feature, sample.
  by_sc = stacked.reshape(_NUM_SCS, 2, -1, *stacked.shape[1:])
  return np.moveaxis(by_sc, 1, 0).reshape(2, _NUM_SAMPLES, *stacked.shape[1:])


def _table(dtype, *columns):
  rows = _NUM_SCS * _ROWS_PER_SHARD
  values = np.random.default_rng(1).normal(size=(rows, *columns))
  return jnp.asarray(values, dtype)


class LookupIdsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("sum", jnp.float32, 24),
      ("mean", jnp.bfloat16, 64),
      ("sqrtn", jnp.float16, 5),
  )
  def test_bits_are_those_of_buffers_on_any_number_of_devices(
      self, combiner, dtype, dim
  ):
    table = _table(dtype, dim)
    expected = None
    for num_devices in (1, 2, 4):
      ids = _ids(num_devices)
      args = num_devices, table, ids
      found = _run(functools.partial(_from_ids, combiner, num_devices), *args)
      if expected is None:
        expected = _run(
            functools.partial(_from_buffers, combiner, num_devices), *args
        )
        self.assertTrue((np.abs(expected).sum((1, 2)) > 0).all())
      self.assertEqual(found.tobytes(), expected.tobytes())

  def test_tables_without_columns_and_quantized_rows(self):
    table = _table(jnp.float32)
    for num_devices in (1, 2):
      ids = _ids(num_devices)
      found, expected = (
          _run(
              functools.partial(f, "mean", num_devices), num_devices, table, ids
          )
          for f in (_from_ids, _from_buffers)
      )
      self.assertEqual(found.shape, (2, _NUM_SAMPLES))
      np.testing.assert_array_equal(found, expected)
    table = _table(jnp.float32, 8)
    config = dict(quantization_config=(-1.0, 1.5, 16))
    with mock.patch.dict(_LIMITS, config):
      found, expected = (
          _run(functools.partial(f, "sum", 1), 1, table, _ids(1))
          for f in (_from_ids, _from_buffers)
      )
    np.testing.assert_array_equal(found, expected)

  def test_without_shared_memory_parts_give_the_same_bits(self):
    table = _table(jnp.float32, 8)
    ids = _ids(2)
    function = functools.partial(_from_ids, "mean", 2)
    expected = _run(function, 2, table, ids)
    with mock.patch.object(mesh_axis, "_is_in_one_process", return_value=False):
      found = _run(function, 2, table, ids, keeps_errors=True)
    np.testing.assert_array_equal(found, expected)

  @parameterized.parameters(1, 2)
  def test_a_wrong_id_fails_the_program_on_all_devices(self, num_devices):
    ids = list(_ids(num_devices))
    ids[0] = ids[0].copy()
    ids[0][0] = 60
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        ("Device 0 of the axis: " if num_devices > 1 else "")
        + "Feature 'a': sample 0 has id 60 at position 0, outside of",
    ):
      _run(
          functools.partial(_from_ids, "sum", num_devices),
          num_devices,
          _table(jnp.float32, 8),
          ids,
      )

  def test_weights_whose_divisor_overflows_fail_the_program(self):
    features = (raw_ids.Feature(name="a", vocabulary_size=9, has_weights=True),)
    params = _params("mean", 1) | dict(features=features) | _LIMITS
    look_up = functools.partial(
        lookup_ids.lookup_ids_p.bind,
        _table(jnp.float32, 8),
        jnp.int32(1),
        np.zeros((8, 2), np.int32),
        keeps_errors=False,
        device_batch_size=8,
        **params,
    )
    weights = np.ones((8, 2), np.float32)
    weights[3] = 3e38
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        "Feature 'a': sample 3 has weights whose sum is more than float32 can",
    ):
      jax.block_until_ready(look_up(weights))
    weights[3] = [3e38, -3e38]  # Their sum is zero.
    np.testing.assert_array_equal(look_up(weights)[3], np.zeros(8))

  @parameterized.parameters(1, 2)
  def test_errors_that_are_kept_make_the_device_nan(self, num_devices):
    ids = list(_ids(num_devices))
    ids[0] = ids[0].copy()
    ids[0][0] = -2
    found = _run(
        functools.partial(_from_ids, "sum", num_devices),
        num_devices,
        _table(jnp.float32, 8),
        ids,
        keeps_errors=True,
    )
    is_of_first = np.arange(_NUM_SAMPLES) < _NUM_SAMPLES // num_devices
    for of_feature in found:
      np.testing.assert_array_equal(np.isnan(of_feature).all(1), is_of_first)
    with self.assertRaisesRegex(
        Exception, "Feature 'a': sample 0 has id -2 at position 0"
    ):
      batch_errors.raise_errors()

  # It is data as ids are: if one device alone fails, the others wait for it.
  @parameterized.parameters(1, 2)
  def test_minibatches_of_the_last_device_fail_all(self, num_devices):
    def look_up(table, *ids):
      is_last = jax.lax.axis_index("x") == num_devices - 1
      return _from_ids(
          "sum", num_devices, table, *ids, num_minibatches=1 + is_last
      )

    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        ("Device 1 of the axis: " if num_devices > 1 else "")
        + "num_minibatches is 2, expected 1",
    ):
      _run(look_up, num_devices, _table(jnp.float32, 8), _ids(num_devices))

  @parameterized.parameters(1, 2)
  def test_minibatches_that_are_wrong_are_kept_as_errors_too(self, num_devices):
    found = _run(
        functools.partial(_from_ids, "sum", num_devices),
        num_devices,
        _table(jnp.float32, 8),
        _ids(num_devices),
        num_minibatches=2,
        keeps_errors=True,
    )
    self.assertTrue(np.isnan(found).all())
    with self.assertRaisesRegex(Exception, "num_minibatches is 2, expected 1"):
      batch_errors.raise_errors()

  def test_other_platforms_have_the_parts(self):
    table = jax.ShapeDtypeStruct((_NUM_SCS * _ROWS_PER_SHARD, 8), jnp.float32)
    ids = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in _ids(1)]
    traced = jax.jit(functools.partial(_from_ids, "mean", 1)).trace(table, *ids)
    calls = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu", "rocm")
    }
    self.assertEqual(calls["cpu"].count("@jte_"), 1)
    self.assertNotIn("@jte_", calls["rocm"])
    self.assertIn("SparseDenseMatmul", calls["tpu"])

  def test_rows_of_codes_go_to_the_parts_too(self):
    table = jax.ShapeDtypeStruct((_NUM_SCS * _ROWS_PER_SHARD, 8), jnp.int32)
    ids = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in _ids(1)]
    look_up = functools.partial(_from_ids, "mean", 1, int8_columns=20)
    traced = jax.jit(look_up).trace(table, *ids)
    for platform, num_calls in ("cpu", 1), ("rocm", 0), ("tpu", 0):
      text = traced.lower(lowering_platforms=(platform,)).as_text()
      self.assertEqual(text.count("@jte_"), num_calls)

  def test_operands_are_checked_as_those_of_the_parts_are(self):
    table, ids = _table(jnp.float32, 8), _ids(1)
    with self.assertRaisesRegex(ValueError, "takes 4 operands"):
      _from_ids("sum", 1, table, *ids[:3])
    with self.assertRaisesRegex(ValueError, "table must have type float32, "):
      _from_ids("sum", 1, table.astype(jnp.int32), *ids)

  def test_cannot_be_differentiated_or_mapped(self):
    table, ids = _table(jnp.float32, 8), _ids(1)
    with self.assertRaisesRegex(NotImplementedError, "lookup_ids cannot be"):
      jax.grad(lambda table: _from_ids("sum", 1, table, *ids).sum())(table)
    with self.assertRaisesRegex(NotImplementedError, "no batching rule"):
      jax.vmap(lambda table: _from_ids("sum", 1, table, *ids))(table[None])


if __name__ == "__main__":
  absltest.main()
