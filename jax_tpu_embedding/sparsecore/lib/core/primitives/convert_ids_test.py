# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import conversion
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
from jax_tpu_embedding.sparsecore.lib.core.testing import every_lowering
import numpy as np

jax.config.update("jax_num_cpu_devices", 3)

_PAD = 2**31 - 1


def _convert_reference(*operands, **params):
  function = functools.partial(conversion.convert_ids, **params)
  return jax.jit(function)(*operands)


_EMULATED_P = every_lowering.as_on(
    "cuda", "convert_ids", convert_ids.convert_ids_p
)


def _convert_emulated(*operands, **params):
  return jax.jit(functools.partial(_EMULATED_P.bind, **params))(*operands)


# What is wrong shows in the results of these, and is no error.
_SHOWING = {
    "reference": _convert_reference,
    "gpu": _convert_emulated,
}
_IMPLEMENTATIONS = _SHOWING | {"cpu": convert_ids.convert_ids_p.bind}


def _params(combiner="mean", num_sc_per_device=2, **feature):
  """One table of 8 rows on one device."""
  feature = dict(name="f", vocabulary_size=8) | feature
  return dict(
      combiner=combiner,
      global_device_count=1,
      num_sc_per_device=num_sc_per_device,
      features=(raw_ids.Feature(**feature),),
      feature_stacking_strategy="SPLIT_THEN_STACK",
  )


def _activations(buffers, num_samples, num_sc_per_device=2):
  """What a lookup makes of the buffers, in a table of ones."""
  activations = lookup_and_update.lookup(
      *buffers,
      jnp.int32(1),
      jnp.ones((8, 1)),
      device_batch_size=num_samples,
      num_sc_per_device=num_sc_per_device,
  )
  return activations[:, 0]


class ConvertIdsTest(parameterized.TestCase):

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_worked_example(self, implementation):
    # Valency 2; samples [0, 3] [5, 2] | [1, 1] [4, 0].
    ids = np.array([[0, 3], [5, 2], [1, 1], [4, 0]], np.int32)
    row_pointers, embedding_ids, sample_ids, gains = _IMPLEMENTATIONS[
        implementation
    ](ids, **_params())
    np.testing.assert_array_equal(
        row_pointers, [2, 10] + [16] * 6 + [2, 9] + [16] * 6
    )
    # 4 ids per SparseCore and up to 7 wasted cells for each of two partitions,
    # in whole multiples of 8.
    region = embedding_ids.size // 2
    self.assertEqual(region, 24)
    pad = [_PAD] * 6
    np.testing.assert_array_equal(embedding_ids[:16], [0, 1, *pad, 1, 2, *pad])
    np.testing.assert_array_equal(sample_ids[:16], [0, 1, *pad, 0, 1, *pad])
    np.testing.assert_array_equal(gains[:2], [0.5, 0.5])
    np.testing.assert_array_equal(
        embedding_ids[region : region + 10], [0, 2, *pad, 0, _PAD]
    )
    np.testing.assert_array_equal(
        sample_ids[region : region + 10], [1, 1, *pad, 0, _PAD]
    )
    # Id 1 occurs twice in one sample: one entry.
    self.assertEqual(gains[region + 8], 1.0)
    self.assertEqual(gains[region + 9], 0.0)

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_values_after_the_last_split_are_ignored(self, implementation):
    # Samples [3] [] [5, 1] [0]; then room that nobody uses.
    values = np.array([3, 5, 1, 0, -7, 99, 4], np.int32)
    splits = np.array([0, 1, 1, 3, 4], np.int32)
    row_pointers, embedding_ids, sample_ids, _ = _IMPLEMENTATIONS[
        implementation
    ](values, splits, **_params(num_sc_per_device=1, is_ragged=True))
    np.testing.assert_array_equal(row_pointers, [4] + [8] * 7)
    np.testing.assert_array_equal(embedding_ids[:5], [0, 1, 3, 5, _PAD])
    np.testing.assert_array_equal(sample_ids[:5], [3, 2, 0, 2, _PAD])

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_all_ragged_ids_may_belong_to_one_sparsecore(self, implementation):
    values = np.arange(8, dtype=np.int32)
    for splits in ([0, 8, 8, 8, 8], [0, 0, 0, 0, 8]):
      buffers = _IMPLEMENTATIONS[implementation](
          values,
          np.array(splits, np.int32),
          **_params("sum", is_ragged=True),
      )
      np.testing.assert_array_equal(_activations(buffers, 4), np.diff(splits))

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      # Samples [-1, 6] and [8, 0], of 8 rows.
      case=[
          ("drop", [0, 6]),
          ("clamp", [0, 0, 6, 7]),
          ("modulo", [0, 6, 7]),  # both of the second sample's are 0
      ],
  )
  def test_ids_out_of_range(self, implementation, case):
    policy, expected = case
    row_pointers, embedding_ids, _, gains = _IMPLEMENTATIONS[implementation](
        np.array([[-1, 6], [8, 0]], np.int32),
        **_params(num_sc_per_device=1, out_of_range_ids=policy),
    )
    num_entries = row_pointers[0]
    np.testing.assert_array_equal(embedding_ids[:num_entries], expected)
    # Whatever is left of a sample, its gains add up to one.
    self.assertEqual(gains[:num_entries].sum(), 2.0)

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_good_ids_pass_jax_debug_nans(self, implementation):
    ids = np.array([[0, 3], [5, 2]], np.int32)
    # Without a care, the mean of the first sample would be NaN.
    weights = np.array([[0, 0], [1, 3]], np.float32)
    with jax.debug_nans(True), jax.debug_infs(True):
      buffers = _IMPLEMENTATIONS[implementation](
          ids, weights, **_params(has_weights=True)
      )
    np.testing.assert_array_equal(_activations(buffers, 2), [0, 1])


class BadValuesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("too_large", np.int32(8), "id 8 at position 0, outside of .0, 8."),
      ("negative", np.int32(-1), "sample 2 has id -1"),
      ("beyond_int32", np.uint32(2**32 - 1), "has id 4294967295"),
  )
  def test_ids_out_of_range_raise_on_cpu(self, bad, message):
    ids = np.array([0, 1, bad, 7], bad.dtype)[:, None]
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), f"Feature 'f': .*{message}"
    ):
      jax.block_until_ready(convert_ids.convert_ids_p.bind(ids, **_params()))

  def test_weights_that_are_not_finite_raise_on_cpu(self):
    ids = np.zeros((4, 1), np.int32)
    weights = np.array([[1], [np.inf], [1], [1]], np.float32)
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), "'f': sample 1 has weight inf"
    ):
      jax.block_until_ready(
          convert_ids.convert_ids_p.bind(
              ids, weights, **_params(has_weights=True)
          )
      )

  @parameterized.named_parameters(
      ("late_begin", [1, 2, 3, 4, 6], "must be 5 numbers that ascend from 0"),
      ("descending", [0, 4, 2, 4, 6], "must be 5 numbers that ascend from 0"),
      ("late_end", [0, 2, 4, 6, 9], r"must end in \[0, 8\].*got 9"),
      ("negative_end", [0, 0, 0, 0, -1], r"must end in \[0, 8\].*got -1"),
  )
  def test_bad_row_splits_raise_on_cpu_and_show_elsewhere(
      self, splits, message
  ):
    operands = np.arange(8, dtype=np.int32), np.array(splits, np.int32)
    params = _params("sum", is_ragged=True)
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError),
        f"Feature 'f': row_splits {message}",
    ):
      jax.block_until_ready(convert_ids.convert_ids_p.bind(*operands, **params))
    for convert in _SHOWING.values():
      buffers = convert(*operands, **params)
      np.testing.assert_array_equal(_activations(buffers, 4), [np.nan] * 4)

  @parameterized.parameters(*_SHOWING)
  def test_ids_out_of_range_show_elsewhere(self, implementation):
    ids = jnp.array([[0], [8], [-1], [7]], jnp.int32)
    buffers = _SHOWING[implementation](ids, **_params())
    np.testing.assert_array_equal(
        _activations(buffers, 4), [1, np.nan, np.nan, 1]
    )

  @parameterized.parameters(*_SHOWING)
  def test_wrong_ids_that_are_also_dropped_show(self, implementation):
    ids = jnp.array([[0], [8], [1], [7]], jnp.int32)
    weights = jnp.array([[1], [jnp.inf], [jnp.inf], [1]])
    buffers = _SHOWING[implementation](
        ids, weights, **_params(has_weights=True, non_finite_weights="drop")
    )
    np.testing.assert_array_equal(_activations(buffers, 4), [1, np.nan, 0, 1])

  @parameterized.product(
      implementation=list(_SHOWING), combiner=["sum", "mean", "sqrtn"]
  )
  def test_weights_that_are_not_finite_show_elsewhere(
      self, implementation, combiner
  ):
    ids = jnp.zeros((4, 2), jnp.int32)
    weights = jnp.array([[0, 1], [1, jnp.inf], [jnp.nan, 1], [1, 0]])
    buffers = _SHOWING[implementation](
        ids, weights, **_params(combiner, has_weights=True)
    )
    np.testing.assert_array_equal(
        _activations(buffers, 4), [1, np.nan, np.nan, 1]
    )

  @parameterized.product(
      implementation=list(_SHOWING),
      case=[("sum", 0), ("mean", np.nan), ("sqrtn", np.nan)],
  )
  def test_divisors_that_overflow_show_elsewhere(self, implementation, case):
    combiner, expected = case
    ids = jnp.zeros((4, 2), jnp.int32)
    weights = jnp.array([[0, 1], [3e38, 3e38], [0, 0], [1, 0]])
    # Where nothing is divided, the row that two large weights count is none.
    if combiner == "sum":
      weights = weights.at[1].set(jnp.array([3e38, -3e38]))
    buffers = _SHOWING[implementation](
        ids, weights, **_params(combiner, has_weights=True)
    )
    np.testing.assert_array_equal(_activations(buffers, 4), [1, expected, 0, 1])


class ErrorsKeptTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("id", [[0], [8]], [[1], [1]], {}),
      ("weight", [[0], [1]], [[np.inf], [1]], {}),
      ("divisor", [[0, 1]] * 2, [[3e38, 3e38], [1, 1]], {}),
      # The error of the id is found, whatever becomes of its weight.
      ("both", [[0], [8]], [[1], [np.inf]], dict(non_finite_weights="drop")),
  )
  def test_row_pointers_say_that_there_is_an_error(self, ids, weights, policy):
    operands = np.array(ids, np.int32), np.array(weights, np.float32)
    params = _params(has_weights=True, **policy) | dict(keeps_errors=True)
    for name, convert in _IMPLEMENTATIONS.items():
      row_pointers = np.asarray(convert(*operands, **params)[0])
      with self.subTest(name):
        self.assertEqual(row_pointers[0], constants.FAILED_CONVERSION)
        np.testing.assert_array_equal(row_pointers[1:], 0)

  def test_a_weight_of_an_id_that_is_dropped_is_no_error(self):
    ids = np.array([[0], [8]], np.int32)
    weights = np.array([[1], [np.inf]], np.float32)
    params = _params(has_weights=True, out_of_range_ids="drop")
    for name, convert in _IMPLEMENTATIONS.items():
      buffers = convert(ids, weights, **params, keeps_errors=True)
      with self.subTest(name):
        self.assertEqual(buffers[0][0], 1)


class TransformationsTest(parameterized.TestCase):

  @parameterized.product(
      primitive=[convert_ids.convert_ids_p, _EMULATED_P],
      check_vma=[True, False],
  )
  def test_devices_convert_their_own_ids(self, primitive, check_vma):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 8, (12, 3), np.int32)
    weights = rng.uniform(size=(12, 3)).astype(np.float32)
    params = _params(has_weights=True) | {"global_device_count": 3}
    function = jax.jit(functools.partial(primitive.bind, **params))
    axis = jax.sharding.PartitionSpec("x")
    sharded = jax.shard_map(
        function,
        mesh=jax.sharding.Mesh(jax.devices(), ("x",)),
        in_specs=axis,
        out_specs=axis,
        check_vma=check_vma,
    )
    of_devices = [
        function(ids[d : d + 4], weights[d : d + 4]) for d in (0, 4, 8)
    ]
    for actual, parts in zip(jax.jit(sharded)(ids, weights), zip(*of_devices)):
      np.testing.assert_array_equal(actual, np.concatenate(parts))

  @parameterized.parameters("tpu", "rocm")
  def test_other_platforms_get_plain_operations(self, platform):
    params = _params("sqrtn", has_weights=True, is_ragged=True)
    exported = jax.export.export(
        jax.jit(functools.partial(convert_ids.convert_ids_p.bind, **params)),
        platforms=(platform,),
    )(
        jax.ShapeDtypeStruct((16,), jnp.int32),
        jax.ShapeDtypeStruct((5,), jnp.int32),
        jax.ShapeDtypeStruct((16,), jnp.float32),
    )
    self.assertNotIn("custom_call", exported.mlir_module())
    # Its arithmetic is in float64; what it gives is not.
    self.assertEqual(
        [str(aval.dtype) for aval in exported.out_avals],
        ["int32", "int32", "int32", "float32"],
    )

  def test_vmap_is_an_error(self):
    function = functools.partial(convert_ids.convert_ids_p.bind, **_params())
    with self.assertRaisesRegex(
        NotImplementedError, "convert_ids has no batching rule.*using vmap"
    ):
      jax.vmap(function)(np.zeros((2, 4, 1), np.int32))

  def test_gradients_are_an_error(self):
    params = _params(has_weights=True)

    def gain(weights):
      ids = np.zeros((4, 1), np.int32)
      return convert_ids.convert_ids_p.bind(ids, weights, **params)[3][0]

    with self.assertRaisesRegex(
        NotImplementedError, "convert_ids cannot be differentiated"
    ):
      jax.grad(gain)(np.ones((4, 1), np.float32))


if __name__ == "__main__":
  absltest.main()
