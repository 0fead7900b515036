# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference_convert_ids
from jax_tpu_embedding.sparsecore.lib.core.primitives import convert_ids
import numpy as np

_PAD = 2**31 - 1


def _convert_reference(*operands, **params):
  function = functools.partial(reference_convert_ids.convert_ids, **params)
  return jax.jit(function)(*operands)


_IMPLEMENTATIONS = {
    "reference": _convert_reference,
    "cpu": convert_ids.convert_ids_p.bind,
}


def _one_feature(**changes):
  """One table of 8 rows on one device with two SparseCores."""
  return (
      dict(
          combiner="mean",
          global_device_count=1,
          num_sc_per_device=2,
          feature_names=("f",),
          row_offsets=(0,),
          col_offsets=(0,),
          col_shifts=(0,),
          vocabulary_sizes=(8,),
          has_weights=False,
      )
      | changes
  )


def _decode(buffers, num_sources, num_targets):
  """The entries as {(source, target, id, sample): gain}; checks the padding."""
  row_pointers, ids, samples, gains = map(np.asarray, buffers)
  region = ids.size // num_sources
  block = max(num_targets, 8)
  entries, used = {}, np.zeros(ids.size, bool)
  for source in range(num_sources):
    begin = 0
    ends = row_pointers[source * block : (source + 1) * block]
    for target in range(num_targets):
      for cell in range(begin, ends[target]):
        cell += source * region
        used[cell] = True
        key = (source, target, int(ids[cell]), int(samples[cell]))
        assert key not in entries, f"{key} is there twice"
        entries[key] = gains[cell]
      begin = -(-ends[target] // 8) * 8
    np.testing.assert_array_equal(ends[num_targets:], begin)
  np.testing.assert_array_equal(ids[~used], _PAD)
  np.testing.assert_array_equal(samples[~used], _PAD)
  np.testing.assert_array_equal(np.isnan(gains[~used]), True)
  return entries


def _oracle(features, weights, params):
  """The entries, one id after the other.

  Source: docs/reference/buffer_format.md.
  """
  num_sc = params["num_sc_per_device"]
  num_scs = num_sc * params["global_device_count"]
  entries = {}
  for f, ids in enumerate(features):
    per_sc = len(ids) // num_sc
    for position, row in enumerate(ids):
      w = np.float64(weights[f][position]) if weights else np.ones(len(row))
      divisor = {
          "sum": 1.0,
          "mean": w.sum(),
          "sqrtn": np.sqrt((w**2).sum()),
      }[params["combiner"]]
      source, r = divmod(position, per_sc)
      sample = params["row_offsets"][f] // num_scs + r
      for i, weight in zip(row.tolist(), w):
        column = (
            (i + params["col_shifts"][f]) % num_scs
            + (i - i % num_scs)
            + params["col_offsets"][f]
        )
        key = (source, column % num_scs, column // num_scs, sample)
        entries[key] = entries.get(key, 0.0) + weight / divisor
  return entries


class ConvertIdsTest(parameterized.TestCase):

  @parameterized.parameters(list(_IMPLEMENTATIONS))
  def test_worked_example(self, implementation):
    # Valency 2; samples [0, 3] [5, 2] | [1, 1] [4, 0].
    ids = np.array([[0, 3], [5, 2], [1, 1], [4, 0]], np.int32)
    row_pointers, embedding_ids, sample_ids, gains = _IMPLEMENTATIONS[
        implementation
    ](ids, **_one_feature())
    np.testing.assert_array_equal(
        row_pointers, [2, 10] + [16] * 6 + [2, 9] + [16] * 6
    )
    # 4 ids per SparseCore: 8 cells, and 8 for each of two partitions.
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
    self.assertTrue(np.isnan(gains[region + 9]))

  @parameterized.product(
      implementation=list(_IMPLEMENTATIONS),
      combiner=["sum", "mean", "sqrtn"],
      has_weights=[False, True],
      topology=[(1, 1), (1, 3), (3, 4)],
  )
  def test_stacked_features(
      self, implementation, combiner, has_weights, topology
  ):
    global_device_count, num_sc = topology
    num_scs = global_device_count * num_sc
    rng = np.random.default_rng(num_scs)
    # Three features of two tables; 12 and 24 samples on each device. The second
    # table starts after 16 rows of each shard and is rotated by num_sc.
    samples, valencies = (12, 24, 12), (3, 1, 5)
    features = [
        rng.integers(0, 13, shape, dtype=np.int32)
        for shape in zip(samples, valencies)
    ]
    weights = [
        rng.uniform(0.5, 2, ids.shape).astype(np.float32) for ids in features
    ]
    weights = weights if has_weights else []
    offsets = np.array([0, 12, 36]) * global_device_count
    params = dict(
        combiner=combiner,
        global_device_count=global_device_count,
        num_sc_per_device=num_sc,
        feature_names=("a", "b", "c"),
        row_offsets=tuple(offsets.tolist()),
        col_offsets=(0, 16 * num_scs, 0),
        col_shifts=(0, num_sc, 0),
        vocabulary_sizes=(13, 13, 13),
        has_weights=has_weights,
    )
    buffers = _IMPLEMENTATIONS[implementation](*features, *weights, **params)
    actual = _decode(buffers, num_sc, num_scs)
    expected = _oracle(features, weights, params)
    self.assertSameElements(actual, expected)
    for key, gain in expected.items():
      np.testing.assert_allclose(actual[key], gain, rtol=1e-6)
    # The same bytes from both, but where weights are divided.
    rtol = 1e-6 if has_weights and combiner != "sum" else 0
    for one, other in zip(
        buffers, _convert_reference(*features, *weights, **params)
    ):
      np.testing.assert_allclose(one, other, rtol=rtol)

  @parameterized.parameters(8, -1)
  def test_ids_out_of_range_raise_on_cpu(self, bad):
    ids = np.array([[0], [1], [bad], [7]], np.int32)
    with self.assertRaisesRegex(
        (ValueError, jax.errors.JaxRuntimeError), f"'?f'?.*{bad}.*8"
    ):
      jax.block_until_ready(
          convert_ids.convert_ids_p.bind(ids, **_one_feature())
      )

  def test_reference_shows_ids_out_of_range(self):
    ids = jnp.array([[0], [8], [-1], [7]], jnp.int32)
    buffers = _convert_reference(ids, **_one_feature())
    activations = reference.lookup(
        *buffers,
        jnp.int32(1),
        jnp.ones((8, 1)),
        device_batch_size=4,
        num_sc_per_device=2,
    )
    np.testing.assert_array_equal(activations[:, 0], [1, np.nan, np.nan, 1])


class ConvertIdsChecksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("baseline", {}, None),
      (
          "ids_type",
          {"ids": np.ones((4, 2), np.float32)},
          "Feature 'f': ids must have type int32, got float32",
      ),
      (
          "ids_rank",
          {"ids": np.ones(4, np.int32)},
          "Feature 'f': ids must have dim 2, got 1",
      ),
      (
          "ids_shared",
          {"ids": np.ones((3, 2), np.int32)},
          "that the 2 SparseCores of a device can share equally, got 3",
      ),
      (
          "weights_type",
          {"weights": np.ones((4, 2), np.int32)},
          "Feature 'f': weights must have type float32, got int32",
      ),
      (
          "weights_shape",
          {"weights": np.ones((4, 1), np.float32)},
          r"Feature 'f': weights must have shape \(4, 2\), got \(4, 1\)",
      ),
      (
          "combiner",
          {"combiner": "max"},
          "combiner must be one of sum, mean, sqrtn, got 'max'",
      ),
      (
          "devices",
          {"global_device_count": 0},
          "global_device_count must be positive, got 0",
      ),
      (
          "cores",
          {"num_sc_per_device": 0},
          "num_sc_per_device must be positive, got 0",
      ),
      (
          "no_features",
          {"feature_names": ()},
          "the number of features must be positive, got 0",
      ),
      (
          "offsets",
          {"col_offsets": (0, 8)},
          "col_offsets must have one value for each of the 1 features, got 2",
      ),
      (
          "operands",
          {"has_weights": False},
          "takes 1 operands for 1 features with has_weights=False, got 2",
      ),
  )
  def test_bad_arguments_raise(self, change, message):
    arguments = (
        _one_feature(
            ids=np.ones((4, 2), np.int32),
            weights=np.ones((4, 2), np.float32),
            has_weights=True,
        )
        | change
    )
    operands = arguments.pop("ids"), arguments.pop("weights")
    if message is None:
      self.assertLen(convert_ids.convert_ids_p.bind(*operands, **arguments), 4)
    else:
      with self.assertRaisesRegex(ValueError, message):
        convert_ids.convert_ids_p.bind(*operands, **arguments)


if __name__ == "__main__":
  absltest.main()
